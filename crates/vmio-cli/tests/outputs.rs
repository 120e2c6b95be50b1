//! The files that commands write: they never replace inputs, they appear only when complete, and an output that takes nothing is an error.

use std::fs::{self, OpenOptions, read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{TestResult, patterned, refused, succeeded, vmio};

fn kv(command: &str, store: &Path) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).arg(store);
    run
}

#[test]
fn what_is_read_is_not_written_over() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &store).args(["--size", "64M"]))?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    refused(kv("get", &store).args(["apple", "--out"]).arg(&store), "are the same file")?;
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    let trace = dir.path().join("trace");
    fs::write(&trace, "1\n2\n1\n")?;
    let sim = |option: &str| {
        let mut run = vmio();
        run.args(["sim", "--cache", "1M", "--trace"]).arg(&trace).arg(option).arg(&trace);
        run
    };
    refused(&mut sim("--json"), "are the same file")?;
    assert_eq!(read(&trace)?, b"1\n2\n1\n");
    let recording = dir.path().join("recording");
    refused(
        vmio().args(["record", "--save"]).arg(&recording).arg("--out").arg(&recording).args(["--", "true"]),
        "are the same file",
    )?;
    let big = dir.path().join("big");
    fs::write(&big, patterned(20 << 20))?;
    succeeded(vmio().args(["record", "--save"]).arg(&recording).args(["--", "sleep", "0"]))?;
    let before = read(&recording)?;
    refused(vmio().arg("report").arg(&recording).arg("--out").arg(&recording), "are the same file")?;
    assert!(before == read(&recording)?);
    Ok(())
}

#[test]
fn what_fails_leaves_the_old_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("out");
    fs::write(&out, "of another run")?;
    assert!(!vmio().args(["trace", "--out"]).arg(&out).args(["--", "no-such-program"]).output()?.status.success());
    assert!(!vmio().args(["trace", "--out"]).arg(&out).args(["--", "true"]).output()?.status.success());
    assert_eq!(read(&out)?, b"of another run");
    assert_eq!(fs::read_dir(dir.path())?.count(), 1, "nothing is left beside");
    Ok(())
}

#[test]
fn a_place_for_results_that_cannot_be_is_refused_before_they_are_there() -> TestResult {
    let run = vmio().args(["bench", "map", "--json", "/absent/results.json"]).output()?;
    let said = String::from_utf8(run.stderr)?;
    assert!(run.status.code() == Some(2) && said.contains("there is no folder /absent"), "{said}");
    Ok(())
}

#[test]
fn a_full_standard_output_is_an_error() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (file, trace) = (dir.path().join("file"), dir.path().join("trace"));
    fs::write(&file, patterned(5000))?;
    fs::write(&trace, "1\n2\n1\n")?;
    let (file, trace) = (file.display().to_string(), trace.display().to_string());
    let copy = dir.path().join("copy").display().to_string();
    let commands: [&[&str]; 4] =
        [&["sum", &file], &["doctor"], &["cp", "--json", &file, &copy], &["sim", "--cache", "1M", "--trace", &trace]];
    for command in commands {
        let full = OpenOptions::new().write(true).open("/dev/full")?;
        refused(vmio().args(command).stdout(Stdio::from(full)), "standard output: No space left on device")?;
    }
    Ok(())
}

/// Opening a pipe waits for a process that opens its other end.
#[test]
fn pipes_and_files_without_a_length_are_told_from_files() -> TestResult {
    let dir = tempfile::tempdir()?;
    let pipe = dir.path().join("pipe");
    succeeded(Command::new("mkfifo").arg(&pipe))?;
    for command in ["get", "scan", "stat", "check", "dump"] {
        let mut run = kv(command, &pipe);
        if command == "get" {
            run.arg("key");
        }
        refused(&mut run, "neither a regular file nor a block device")?;
    }
    refused(vmio().args(["journal", "inspect"]).arg(&pipe), "neither a regular file nor a block device")?;
    refused(vmio().args(["sum", "/proc/cpuinfo"]), "has contents but no length")
}
