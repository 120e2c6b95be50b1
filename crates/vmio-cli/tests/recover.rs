//! `vmio recover` on logs of dead processes.

use std::fs::{self, File};
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use crate::common::{TestResult, refused, succeeded, vmio};
use operation_log::{FOLDER_NAME, FileIdentity, Log, LogOptions};
use serde_json::Value;

/// A log with two operations for each of some files, which have neither.
fn logged(under: &Path, names: &[&str]) -> Result<Log, Box<dyn std::error::Error>> {
    let log = Log::create(under, LogOptions::new().capacity_bytes(1 << 20))?;
    for name in names {
        let path = under.join(name);
        fs::write(&path, "before")?;
        let file = log.file(FileIdentity::of(File::open(&path)?)?, &path)?;
        drop(log.write(file, 0, 6, &[IoSlice::new(b"after ")])?);
        drop(log.write(file, 6, 6, &[IoSlice::new(b"the crash")])?);
    }
    Ok(log)
}

fn json(arguments: &[&str], under: &Path) -> Result<Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&succeeded(vmio().arg("recover").args(arguments).arg("--json").arg(under))?)?)
}

fn logs(under: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let folder = under.join(FOLDER_NAME);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

#[test]
fn what_was_logged_is_told_of_and_then_written() -> TestResult {
    let folder = tempfile::tempdir()?;
    let under = folder.path();
    drop(logged(under, &["same", "renamed", "gone"])?);
    fs::rename(under.join("renamed"), under.join("new"))?;
    fs::remove_file(under.join("gone"))?;

    let looked = json(&["--dry-run"], under)?;
    assert_eq!((&looked["dry_run"], &looked["logs"][0]["state"]), (&true.into(), &"to be replayed".into()));
    assert_eq!((fs::read(under.join("same"))?, logs(under)?.len()), (b"before".to_vec(), 1));

    let text = succeeded(vmio().args(["recover", "--dry-run"]).arg(under))?;
    let expected = [
        ("same", String::new()),
        ("renamed", format!(", now {}", under.join("new").display())),
        ("gone", ", gone: cannot be written".into()),
    ];
    for (name, now) in expected {
        let line = format!("file  {}: 2 operations, 15 bytes{now}\n", under.join(name).display());
        assert!(text.contains(&line), "{line} is missing in {text}");
    }

    let done = json(&[], under)?;
    let log = &done["logs"][0];
    assert_eq!((&log["state"], &log["error"], &log["torn"]), (&"replayed".into(), &Value::Null, &0.into()));
    assert_eq!(log["owner"], std::process::id());
    assert_eq!(log["files"][0]["found_at"], under.join("same").display().to_string());
    assert_eq!(log["files"][2]["found_at"], Value::Null);
    for name in ["same", "new"] {
        assert_eq!(fs::read(under.join(name))?, b"after the crash");
    }
    assert!(logs(under)?.is_empty());
    let text = succeeded(vmio().arg("recover").arg(under))?;
    assert!(text.starts_with("nothing to recover"), "{text}");
    Ok(())
}

#[test]
fn logs_of_running_processes_are_not_touched() -> TestResult {
    let folder = tempfile::tempdir()?;
    let log = logged(folder.path(), &["file"])?;
    let text = succeeded(vmio().arg("recover").arg(folder.path()))?;
    assert!(text.contains("in use by a running process"), "{text}");
    assert_eq!(fs::read(folder.path().join("file"))?, b"before");
    drop(log);
    let text = succeeded(vmio().arg("recover").arg(folder.path()))?;
    assert!(text.contains("replayed and removed"), "{text}");
    Ok(())
}

#[test]
fn a_damaged_log_remains_and_the_others_are_replayed() -> TestResult {
    let folder = tempfile::tempdir()?;
    let under = folder.path();
    drop(logged(under, &["file"])?);
    let damaged = under.join(FOLDER_NAME).join("1-0.log");
    fs::write(&damaged, vec![1; 1 << 16])?;
    refused(vmio().arg("recover").arg("--dry-run").arg(under), "1 log of a dead process remains")?;
    let output = vmio().arg("recover").arg("--json").arg(under).output()?;
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout)?;
    let states: Vec<&str> =
        object["logs"].as_array().into_iter().flatten().filter_map(|l| l["state"].as_str()).collect();
    assert!(states.contains(&"not replayed") && states.contains(&"replayed"), "{object}");
    assert_eq!(logs(under)?, [damaged]);
    assert_eq!(fs::read(under.join("file"))?, b"after the crash");
    refused(vmio().arg("recover").arg(under.join("none")), "cannot recover")
}
