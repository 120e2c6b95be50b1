//! `vmio bench` on tiny files: every engine verifies what it reads, and the JSON has every key.

mod common;

use std::fs;
use std::path::Path;

use common::{TestResult, refused, succeeded, vmio};
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
    assert!(count("shootdowns_evict") > 0 && count("shootdowns_evict") * 16 <= count("evicted_clean"), "{stats}");
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
fn fetch_runs_every_way_that_this_user_may() -> TestResult {
    let doctor: Value = serde_json::from_str(&succeeded(vmio().args(["doctor", "--json"]))?)?;
    let features = doctor["kernel_features"].as_array().ok_or("no features")?;
    let has_io_uring = features.iter().any(|feature| feature["name"] == "io-uring" && feature["ok"] == true);
    let dir = tempfile::tempdir()?;
    let runs = bench(&[
        "fetch",
        "--dir",
        text(dir.path()),
        "--size",
        "32M",
        "--cache",
        "8M",
        "--secs",
        "0.3",
        "--warm-up",
        "0.1",
        "--threads",
        "2",
        "--ways",
        if has_io_uring { "vmio-fetch,vmio-ensure,vmio,raw-reads" } else { "vmio-fetch,vmio-ensure,vmio" },
    ])?;
    let ways: Vec<_> = runs.iter().map(|run| (run["way"].as_str(), run["in_flight"].as_u64())).collect();
    let expected = [("vmio-fetch", 64), ("vmio-ensure", 1), ("vmio", 1), ("raw-reads", 64)];
    assert_eq!(ways, expected.map(|(way, in_flight)| (Some(way), Some(in_flight)))[..if has_io_uring { 4 } else { 3 }]);
    for run in &runs {
        assert_eq!(run["verify_errors"], 0, "{run}");
        assert!(run["ops_per_s"].as_f64().is_some_and(|ops| ops > 0.0), "{run}");
        assert!(run["device_pages_per_s"].as_f64().is_some_and(|pages| pages > 0.0), "{run}");
    }
    // What was fetched was there when it was loaded, but for what had to go again at once.
    let count = |key: &str| runs[0][key].as_u64().unwrap_or_default();
    assert!(!has_io_uring || count("fetched_pages") > 10 * count("load_misses"), "{}", runs[0]);
    Ok(())
}

#[test]
fn searches_find_the_same_wherever_their_heap_is() -> TestResult {
    let dir = tempfile::tempdir()?;
    let options = ["--scale", "16", "--searches", "2", "--rounds", "1", "--sides", "memory,vmio,mmap"];
    let results = bench(&[&["heap", "--dir", text(dir.path())][..], &options].concat())?;
    // Linux mmap takes a memory cgroup.
    assert!((2..=3).contains(&results.len()), "{results:?}");
    for (result, side) in results.iter().zip(["memory", "vmio", "mmap"]) {
        assert_eq!(result["side"], side);
        assert_eq!(result["searches_s"].as_array().map(Vec::len), Some(2), "{result}");
        for key in ["build_s", "search_s", "cpu_s"] {
            assert!(result[key].as_f64().is_some_and(|seconds| seconds > 0.0), "{key} of {result}");
        }
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "something is left in the folder");
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
    // Now it holds the content, and stays.
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
    // Few enough for the sample that decides whether the file holds the content to pass them by,
    // too many for the thousands of reads of a run to miss them all.
    content[(8 << 20) + 4096..(8 << 20) + 9 * 4096].fill(0xff);
    fs::write(&path, content)?;
    let output = run().output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "wrong words were not noticed");
    assert!(error.contains("not what they should be") || error.contains("DESTROYS"), "{error}");
    let priority = ["bench", "priority", "--cache", "8M", "--range", "1M", "--stream", "15M", "--file"];
    refused(vmio().args(priority).arg(&path), "not what they should be")?;
    Ok(())
}

#[test]
fn bad_arguments_are_refused_with_advice() -> TestResult {
    refused(vmio().args(["bench", "map", "--pattern", "random"]), "zipf:0.99")?;
    refused(vmio().args(["bench", "map", "--op", "append"]), "mixed:95")?;
    let engines =
        "there are vmio, vmio-memfd, vmio-reader-thread, vmio-managed, vmio-kernel, vmio-16k, vmio-64k, mmap, pread";
    refused(vmio().args(["bench", "map", "--engines", "nvme"]), engines)?;
    refused(vmio().args(["bench", "map", "--size", "2X"]), "512M")?;
    refused(vmio().args(["bench", "map", "--size", "7", "--dir", "/tmp"]), "at least one page")?;
    for command in ["map", "fetch", "commit"] {
        refused(vmio().args(["bench", command, "--secs", "nan"]), "from 0.01 to 86400")?;
    }
    refused(vmio().args(["bench", "commit", "--warm-up=-1"]), "--warm-up")?;
    refused(vmio().args(["bench", "priority", "--overwrite"]), "--file")?;
    refused(vmio().args(["bench", "map", "--threads", "0"]), "1..=1024")?;
    refused(vmio().args(["bench", "map", "--file", "/absent/file"]), "--size")?;
    refused(vmio().args(["bench", "map", "--size", "1M", "--dir", "/absent"]), "--dir")?;
    refused(vmio().args(["bench", "child", "nonsense"]), "other bench commands")?;
    Ok(())
}

#[test]
fn the_scenarios_hold_on_a_small_scale() -> TestResult {
    let dir = tempfile::tempdir()?;
    let dir = text(dir.path());

    let hit = bench(&["hit", "--dir", dir, "--size", "8M", "--rounds", "3"])?;
    assert_eq!(hit[0]["misses"], 0, "{hit:?}");

    let priority = bench(&["priority", "--dir", dir, "--range", "4M", "--stream", "64M", "--cache", "16M"])?;
    assert_eq!(priority[0]["resident_pages"], 1024, "{priority:?}");
    assert_eq!(priority[0]["misses"], 0, "{priority:?}");
    assert_eq!(priority[0]["verify_errors"], 0, "{priority:?}");

    let fresh = bench(&["fresh", "--dir", dir, "--size", "64M", "--cache", "16M"])?;
    assert_eq!(fresh[0]["advised"], true);
    assert_eq!(fresh[0]["read_bytes"], 0, "{fresh:?}");
    assert_eq!(fresh[0]["cache_read_bytes"], 0, "{fresh:?}");
    assert!(fresh.iter().all(|result| result["verify_errors"] == 0), "{fresh:?}");

    let sync = bench(&["sync", "--dir", dir, "--size", "16M", "--cache", "32M", "--rounds", "2"])?;
    assert!(sync[0]["stores"].as_u64().is_some_and(|stores| stores > 0), "{sync:?}");
    assert!(sync.iter().all(|result| result["verify_errors"] == 0), "{sync:?}");

    let units = bench(&["units", "--dir", dir, "--size", "128M", "--cache", "64M", "--loads", "500", "--rounds", "1"])?;
    assert_eq!(units.len(), 12, "{units:?}");
    assert!(units.iter().all(|result| result["verify_errors"] == 0 && result["hit_misses"] == 0), "{units:?}");
    let dynamic = units.iter().filter(|result| result["units"] == "dynamic");
    for result in dynamic {
        let huge_pages = result["huge_pages"].as_u64().unwrap_or(0);
        assert_eq!(huge_pages > 0, result["work"] != "random", "{result:?}");
    }
    Ok(())
}

#[test]
fn every_store_holds_what_was_committed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let small = ["--size", "2M", "--cache", "64M", "--journal", "2M", "--secs", "0.2", "--warm-up", "0.05"];
    let commit = |more: &[&str]| bench(&[&["commit", "--dir", text(dir.path())][..], &small[..], more].concat());

    let runs = commit(&["--pages", "1,16", "--threads", "2"])?;
    let measured: Vec<_> = runs.iter().map(|run| (run["store"].as_str(), run["pages"].as_u64())).collect();
    let stores = ["vmio", "mmap", "sqlite", "lmdb"];
    let expected = [1, 16, 16].iter().flat_map(|pages| stores.map(|store| (Some(store), Some(*pages))));
    assert_eq!(measured, expected.collect::<Vec<_>>());
    for run in &runs {
        assert_eq!(run["verify_errors"], 0, "{run}");
        assert_eq!(run["atomic"], run["store"] != "mmap", "{run}");
        assert!(run["commits"].as_u64().is_some_and(|commits| commits >= 1), "{run}");
    }
    let (commits, accesses) = runs.split_at(8);
    for run in commits {
        assert_eq!((&run["measure"], &run["threads"]), (&"commits".into(), &2.into()), "{run}");
        let count = |key: &str| run[key].as_u64().unwrap_or_default();
        assert_eq!(count("changed_bytes"), 128 * count("pages") * count("commits"), "{run}");
        // Where it is durable, its pages have been written.
        let device = &run["device_writes"];
        assert!(device.is_null() || device["bytes"].as_u64() >= Some(4096 * count("commits")), "{run}");
    }
    for run in accesses {
        assert_eq!((&run["measure"], &run["threads"]), (&"accesses".into(), &1.into()), "{run}");
        assert!(run["loads"]["accesses"].as_u64() > Some(1), "{run}");
        assert_eq!(run["stores"].is_object(), run["store"] == "vmio" || run["store"] == "mmap", "{run}");
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");

    let table =
        succeeded(vmio().args(["bench", "commit", "--dir", text(dir.path())]).args(small).args(["--pages", "4"]))?;
    assert!(table.contains("mmap + msync (not atomic)") && table.contains("lmdb, loads"), "{table}");
    let mut too_many = vmio();
    too_many.args(["bench", "commit", "--size", "1M", "--pages", "256", "--threads", "2", "--dir", text(dir.path())]);
    refused(&mut too_many, "make --size larger")
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
        &["bench", "hit", "--help"],
        &["bench", "priority", "--help"],
        &["bench", "fresh", "--help"],
        &["bench", "sync", "--help"],
        &["bench", "commit", "--help"],
        &["bench", "units", "--help"],
        &["bench", "kv", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let help = succeeded(vmio().args(command))?;
        assert!(help.contains("Examples:\n  vmio"), "{command:?}: {help}");
    }
    Ok(())
}
