//! `vmio-bench posix` and `programs`: programs plain and under `vmio run --mode`, by the `vmio` beside.

use std::fs;
use std::process::Command;

use crate::common::{TestResult, beside, leave_out, succeeded, vmio_bench};

/// Whether a program is there.
fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn the_benchmark_measures_each_pattern_on_both_sides() -> TestResult {
    if !beside("vmio").is_file() {
        return leave_out("vmio is not built beside vmio-bench: cargo build -p vmio-cli");
    }
    let dir = tempfile::tempdir()?;
    for (mode, size) in [("posix", "4M"), ("sync", "512K"), ("strict", "512K")] {
        let mut command = vmio_bench();
        command.args(["posix", "--mode", mode, "--size", size, "--rounds", "2", "--json", "-", "--dir"]);
        let results: Vec<serde_json::Value> = serde_json::from_str(&succeeded(command.arg(dir.path()))?)?;
        let patterns = results.iter().filter_map(|result| result["pattern"].as_str()).collect::<Vec<_>>();
        assert_eq!(patterns, ["sequential-reads", "random-reads", "sequential-writes", "random-writes", "appends"]);
        let is_there = |result: &serde_json::Value, key: &str| result[key].as_f64() > Some(0.0);
        assert!(results.iter().all(|result| is_there(result, "mode_ns") && is_there(result, "speedup")), "{mode}");
        let copies = results.iter().filter(|result| is_there(result, "copy_ns")).count();
        assert_eq!(copies, if mode == "posix" { 4 } else { 2 }, "{mode}: a call that is no copy");
        assert_eq!(fs::read_dir(dir.path())?.count(), 0, "something was left behind");
    }
    Ok(())
}

#[test]
fn the_benchmark_runs_programs_plain_and_in_each_mode() -> TestResult {
    if !beside("vmio").is_file() {
        return leave_out("vmio is not built beside vmio-bench: cargo build -p vmio-cli");
    }
    // On a disk, the calls of modes sync and strict take a minute.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    // A database whose every transaction is synchronized takes half a minute.
    let asked = test_depth::pick("tar", "tar,sqlite-rollback");
    let mut command = vmio_bench();
    command.args(["programs", "--programs", asked, "--rounds", "1", "--json", "-", "--dir"]);
    let results: Vec<serde_json::Value> = serde_json::from_str(&succeeded(command.arg(dir.path()))?)?;
    let programs: Vec<_> = results.iter().filter_map(|result| result["program"].as_str()).collect();
    assert_eq!(programs, asked.split(',').filter(|name| *name == "tar" || is_installed("sqlite3")).collect::<Vec<_>>());
    for result in &results {
        let modes = result["modes"].as_array().ok_or("no modes")?;
        assert_eq!(
            modes.iter().filter_map(|mode| mode["mode"].as_str()).collect::<Vec<_>>(),
            ["posix", "sync", "strict"]
        );
        assert!(modes.iter().all(|mode| mode["speedup"].as_f64() > Some(0.0)), "{result}");
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "something was left behind");
    Ok(())
}
