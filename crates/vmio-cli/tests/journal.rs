//! `vmio journal` on journals after a crash, sound and damaged.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{TestResult, refused, succeeded, vmio};
use serde_json::Value;
use vmio::backing::{Access, Backing, FileBacking};
use vmio::journal::{Journal, JournalOptions};

const PAGE: usize = 4096;
const LOG_START: u64 = 128 << 10;

#[repr(align(4096))]
struct Aligned([u8; 3 * PAGE]);

/// A journal with two commits that the file does not hold yet and a spill behind them, and its file.
fn crashed_journal(dir: &Path) -> Result<(PathBuf, PathBuf), Box<dyn std::error::Error>> {
    let (live, path, data) = (dir.join("live.journal"), dir.join("test.journal"), dir.join("data"));
    fs::write(&data, vec![0; 8 * PAGE])?;
    let journal = Journal::create_file(&live, LOG_START + (1 << 20), JournalOptions::new().checkpoint_at(1.0))?;
    let file = journal.join(FileBacking::open(&data, Access::ReadWrite)?)?;
    journal.commit(|commit| commit.write(&file, 0, &Aligned([1; 3 * PAGE]).0))?;
    file.write_at(PAGE as u64, &Aligned([2; 3 * PAGE]).0)?;
    journal.commit(|_| Ok(()))?;
    file.write_at(0, &Aligned([3; 3 * PAGE]).0)?;
    // A copy of the journal as kill -9 would leave it now.
    fs::copy(&live, &path)?;
    Ok((path, data))
}

fn json(command: &[&str], path: &Path) -> Result<Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&succeeded(vmio().arg("journal").args(command).arg("--json").arg(path))?)?)
}

#[test]
fn inspect_shows_records_and_what_opening_would_do() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (path, data) = crashed_journal(dir.path())?;
    let before = fs::read(&path)?;
    let object = json(&["inspect"], &path)?;
    let kinds: Vec<&str> =
        object["records"].as_array().into_iter().flatten().filter_map(|r| r["kind"].as_str()).collect();
    assert_eq!(kinds, ["batch", "commit", "spill", "commit", "spill"]);
    assert_eq!(object["records"][0]["offset"], LOG_START);
    assert_eq!(object["records"][2]["commit"], 2);
    assert_eq!(object["last_commit"], 2);
    assert_eq!(object["applied_commit"], 0);
    assert_eq!(object["pages_to_replay"], 4);
    assert_eq!(object["bytes_to_forget"], 4 * PAGE);
    assert_eq!(object["files"][0]["path"], data.display().to_string());
    assert_eq!(object["files"][0]["committed_bytes"], 8 * PAGE);
    let text = succeeded(vmio().args(["journal", "inspect"]).arg(&path))?;
    assert!(text.contains("to replay  2 commits, 4 pages") && text.contains("state      sound\n"), "{text}");
    assert!(fs::read(&path)? == before, "inspecting changes the journal");
    Ok(())
}

#[test]
fn verify_passes_over_a_torn_end_and_fails_for_damage() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (path, _) = crashed_journal(dir.path())?;
    succeeded(vmio().args(["journal", "verify"]).arg(&path))?;
    let file = fs::File::options().write(true).open(&path)?;
    // In the spill behind the last commit, which no commit covers: records of 4, 1, 4 and 1 pages come before.
    let torn = LOG_START + 10 * PAGE as u64;
    file.write_all_at(b"torn", torn + 2 * PAGE as u64 + 9)?;
    let object = json(&["verify"], &path)?;
    assert_eq!((&object["torn_at"], &object["damaged_at"]), (&Value::from(torn), &Value::Null));
    assert_eq!(object["last_commit"], 2);
    // In an image of the first commit, which was durable when the second began.
    file.write_all_at(b"rot", LOG_START + PAGE as u64 + 9)?;
    refused(vmio().args(["journal", "verify"]).arg(&path), &format!("damaged at byte {LOG_START}"))?;
    let output = vmio().args(["journal", "verify", "--json"]).arg(&path).output()?;
    assert!(!output.status.success());
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout)?["damaged_at"], LOG_START);
    Ok(())
}

#[test]
fn what_is_no_journal_or_in_use_is_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    fs::write(&path, vec![0; 1 << 20])?;
    refused(vmio().args(["journal", "verify"]).arg(&path), "no journal")?;
    refused(vmio().args(["journal", "inspect", "missing"]), "cannot open missing")?;
    let journal = Journal::create_file(&path, 1 << 20, JournalOptions::new())?;
    refused(vmio().args(["journal", "inspect"]).arg(&path), "in use: another process")?;
    drop(journal);
    let text = succeeded(vmio().args(["journal", "verify"]).arg(&path))?;
    assert!(text.contains("to replay  0 commits, 0 pages"), "{text}");
    // The error names another version.
    fs::File::options().write(true).open(&path)?.write_all_at(&[9], 8)?;
    fs::File::options().write(true).open(&path)?.write_all_at(&[9], (64 << 10) + 8)?;
    refused(vmio().args(["journal", "verify"]).arg(&path), "version 9")
}
