//! `vmio bench kv` and `vmio kv bench` on small stores: every phase verifies its reads. `vmio-bench kv` measures with the same code, and
//! its tests check more.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, refused, succeeded, vmio};
use object::{Object, ObjectSymbol};
use serde_json::Value;

/// A benchmark of small stores in a folder.
fn small(dir: &Path) -> Command {
    let mut command = vmio();
    command.args(["bench", "kv", "--memory", "64M", "--records", "1000", "--dir"]).arg(dir);
    command
}

#[test]
fn vmio_kv_alone_is_measured_by_default() -> TestResult {
    let dir = tempfile::tempdir()?;
    let json = succeeded(small(dir.path()).args(["--phases", "L,A", "--scenarios", "reopen", "--json", "-"]))?;
    let runs: Vec<Value> = serde_json::from_str(&json)?;
    let done: Vec<_> = runs.iter().map(|run| (run["engine"].as_str(), run["scenario"].as_str())).collect();
    assert_eq!(done, [None, None, Some("reopen")].map(|scenario| (Some("vmio"), scenario)));
    assert!(runs.iter().all(|run| run["errors"] == 0), "{runs:?}");
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");
    Ok(())
}

#[test]
fn a_store_is_measured_in_a_folder_of_ones_own() -> TestResult {
    let dir = tempfile::tempdir()?;
    let bench = |more: &[&str]| {
        let mut command = vmio();
        command.args(["kv", "bench", "--records", "1000", "--value-bytes", "200"]).args(more).arg(dir.path());
        command
    };
    let runs: Vec<Value> = serde_json::from_str(&succeeded(&mut bench(&["--json", "-"]))?)?;
    let done: Vec<_> = runs.iter().map(|run| (run["engine"].as_str(), run["phase"].as_str())).collect();
    assert_eq!(done, ["L", "C", "G"].map(|phase| (Some("vmio"), Some(phase))));
    assert!(runs.iter().all(|run| run["value_bytes"] == 200 && run["errors"] == 0), "{runs:?}");
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");
    assert!(succeeded(&mut bench(&[]))?.contains("G, zipfian"));
    refused(&mut bench(&["--memory", "1M"]), "engines need at least 48 MiB")
}

#[test]
fn the_pages_of_each_phase_are_for_the_simulator() -> TestResult {
    let dir = tempfile::tempdir()?;
    let folder = dir.path().to_str().ok_or("a folder whose name is text")?;
    let traces = ["--engines", "vmio", "--phases", "L,A,E", "--threads", "1", "--page-traces", folder];
    succeeded(small(dir.path()).args(traces))?;
    for phase in ["L", "A", "E"] {
        let trace = dir.path().join(format!("{phase}.pages"));
        assert!(!fs::read_to_string(&trace)?.is_empty(), "{phase} touches some pages");
        let told = succeeded(vmio().args(["sim", "--cache", "2M", "--policy", "lru", "--trace"]).arg(&trace))?;
        assert!(told.contains("LRU"), "{told}");
    }
    refused(small(dir.path()).args(["--page-traces", folder]), "--engines vmio")
}

/// The other stores belong to vmio-bench: this looks for a function of each, by its C name.
#[test]
fn the_command_contains_no_other_store() -> TestResult {
    let bytes = fs::read(env!("CARGO_BIN_EXE_vmio"))?;
    let file = object::File::parse(&*bytes)?;
    let functions: Vec<_> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(functions.iter().any(|name| name.contains("vmio_kv")), "a binary without its symbols says nothing");
    for function in ["sqlite3_open_v2", "mdb_env_open", "rocksdb_open"] {
        assert!(!functions.contains(&function), "{function} is in it");
    }
    Ok(())
}
