//! `vmio bench map` on tiny files: every engine verifies its reads, and the JSON has every key.

use std::fs;
use std::path::Path;

use crate::common::{TestResult, refused, succeeded, vmio};
use serde_json::Value;

const KEYS: [&str; 16] = [
    "engine",
    "pattern",
    "op",
    "threads",
    "ops_per_s",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "read_bytes",
    "write_bytes",
    "cpu_s_per_mop",
    "max_rss_bytes",
    "shootdowns",
    "verify_errors",
];

/// Runs `bench` with JSON on standard output.
fn bench(arguments: &[&str]) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let json = succeeded(vmio().arg("bench").args(arguments).args(["--json", "-"]))?;
    Ok(serde_json::from_str(&json)?)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

#[test]
fn map_runs_every_engine_pattern_and_operation() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench(&[
        "map",
        "--dir",
        text(dir.path()),
        "--size",
        "16M",
        "--cache",
        "8M",
        "--pattern",
        "uniform,zipf:0.99,seq",
        "--op",
        "read,mixed:50",
        "--threads",
        "2",
        "--secs",
        "0.2",
        "--engines",
        "vmio,pread",
        "--breakdown",
    ])?;
    assert_eq!(runs.len(), 12);
    for run in &runs {
        for key in KEYS {
            assert!(run.get(key).is_some(), "{key} is missing in {run}");
        }
        assert_eq!(run["verify_errors"], 0, "{run}");
        assert!(run["ops_per_s"].as_f64().is_some_and(|ops| ops > 0.0), "{run}");
        assert_eq!(run["engine"] == "vmio", run["shootdowns"].is_u64(), "{run}");
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "the temporary file is left");
    Ok(())
}

#[test]
fn the_reader_thread_engine_runs_or_says_which_rights_it_needs() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut command = vmio();
    command.args(["bench", "map", "--size", "16M", "--cache", "8M", "--threads", "2", "--secs", "0.2", "--json", "-"]);
    let output =
        command.args(["--op", "mixed:50", "--engines", "vmio-reader-thread", "--dir"]).arg(dir.path()).output()?;
    if output.status.success() {
        let runs: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        assert_eq!((&runs[0]["engine"], &runs[0]["verify_errors"]), (&"vmio-reader-thread".into(), &0.into()));
        assert!(runs[0]["shootdowns"].is_u64());
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("CAP_SYS_PTRACE") || error.contains("Linux 6.6"), "{error}");
    }
    Ok(())
}

#[test]
fn map_does_without_what_an_older_kernel_lacks() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench(&[
        "map",
        "--dir",
        text(dir.path()),
        "--size",
        "64M",
        "--cache",
        "16M",
        "--threads",
        "1",
        "--secs",
        "0.5",
        "--engines",
        "vmio",
        "--without",
        "batched-unmap,wp-async",
    ])?;
    let stats = &runs[0]["stats"];
    let count = |key: &str| stats[key].as_u64().unwrap_or_default();
    assert_eq!(runs[0]["without"], serde_json::json!(["batched-unmap", "wp-async"]));
    assert_eq!(runs[0]["verify_errors"], 0);
    // A shootdown for each page would be as many of them.
    assert!(count("shootdowns_evict") > 0 && count("shootdowns_evict") * 8 <= count("evicted_clean"), "{stats}");
    Ok(())
}

#[test]
fn mmap_runs_in_a_cgroup_or_is_left_out_with_a_reason() -> TestResult {
    let dir = tempfile::tempdir()?;
    let report = succeeded(
        vmio()
            .args(["bench", "map", "--size", "64M", "--cache", "32M", "--threads", "1", "--secs", "0.1"])
            .args(["--engines", "mmap,vmio-managed,pread", "--dir"])
            .arg(dir.path()),
    )?;
    assert!(report.contains("\nmmap ") || report.contains("mmap is left out"), "{report}");
    assert!(report.contains("\nvmio-managed ") || report.contains("is left out"), "{report}");
    assert!(report.contains("\npread"), "{report}");
    Ok(())
}

#[test]
fn a_file_with_other_content_is_not_overwritten_unasked() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    fs::write(&path, vec![7; 1 << 20])?;
    let run = |overwrite: &[&str]| {
        let mut command = vmio();
        command.args(["bench", "map", "--cache", "8M", "--threads", "1", "--secs", "0.05"]);
        command.args(["--engines", "pread", "--file"]).arg(&path).args(overwrite);
        command
    };
    refused(&mut run(&[]), "DESTROYS")?;
    assert!(fs::read(&path)? == vec![7; 1 << 20]);
    succeeded(&mut run(&["--overwrite"]))?;
    // Now the file holds the content, and keeps it.
    succeeded(&mut run(&[]))?;
    assert_eq!(fs::metadata(&path)?.len(), 1 << 20);
    Ok(())
}

#[test]
fn a_damaged_word_is_found() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    let run = || {
        let mut command = vmio();
        command.args(["bench", "map", "--cache", "8M", "--threads", "1", "--secs", "0.2", "--size", "16M"]);
        command.args(["--engines", "pread", "--file"]).arg(&path);
        command
    };
    succeeded(&mut run())?;
    let mut content = fs::read(&path)?;
    // Few enough for the sample that decides whether the file holds the content to miss them, too many for the thousands of reads of a run
    // to miss them all.
    content[(8 << 20) + 4096..(8 << 20) + 9 * 4096].fill(0xff);
    fs::write(&path, content)?;
    let output = run().output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "wrong words were not noticed");
    assert!(error.contains("not what they should be") || error.contains("DESTROYS"), "{error}");
    Ok(())
}

#[test]
fn bad_arguments_are_refused_with_advice() -> TestResult {
    refused(vmio().args(["bench", "map", "--pattern", "random"]), "zipf:0.99")?;
    refused(vmio().args(["bench", "map", "--op", "append"]), "mixed:95")?;
    let engines = "there are vmio, vmio-memfd, vmio-reader-thread, vmio-managed, vmio-kernel, vmio-ring0, vmio-ring0-polled, vmio-16k, vmio-64k, mmap, pread";
    refused(vmio().args(["bench", "map", "--engines", "nvme"]), engines)?;
    refused(vmio().args(["bench", "map", "--size", "2X"]), "512M")?;
    refused(vmio().args(["bench", "map", "--size", "7", "--dir", "/tmp"]), "at least one page")?;
    refused(vmio().args(["bench", "map", "--secs", "nan"]), "from 0.01 to 86400")?;
    refused(vmio().args(["bench", "map", "--threads", "0"]), "1..=1024")?;
    refused(vmio().args(["bench", "map", "--file", "/absent/file"]), "--size")?;
    refused(vmio().args(["bench", "map", "--size", "1M", "--dir", "/absent"]), "--dir")?;
    refused(vmio().args(["bench-child", "nonsense"]), "other bench commands")?;
    Ok(())
}

#[test]
fn who_measures_the_rest_is_told() -> TestResult {
    let commit = ["bench", "commit", "--dir", "."];
    refused(vmio().args(commit), "cargo run --release -p vmio-bench -- commit --dir .")?;
    let lmdb = "lmdb is measured by vmio-bench: cargo run --release -p vmio-bench -- kv --engines vmio,lmdb";
    refused(vmio().args(["bench", "kv", "--engines", "vmio,lmdb"]), lmdb)?;
    refused(vmio().args(["bench", "kv", "--engines", "rocksdb"]), "--features peers -- kv --engines vmio,rocksdb")?;
    refused(
        vmio().args(["bench", "kv", "--engines", "leveldb"]),
        "is no engine: there are vmio, vmio-reader-thread, vmio-kernel, vmio-ring0, lmdb, redb",
    )
}

#[test]
fn every_command_has_help_with_examples() -> TestResult {
    for command in [
        &["--help"][..],
        &["doctor", "--help"],
        &["cat", "--help"],
        &["cp", "--help"],
        &["sum", "--help"],
        &["bench", "--help"],
        &["bench", "map", "--help"],
        &["bench", "kv", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let help = succeeded(vmio().args(command))?;
        assert!(help.contains("Examples:\n  vmio"), "{command:?}: {help}");
    }
    Ok(())
}
