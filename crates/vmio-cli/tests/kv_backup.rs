//! `vmio kv backup` and `vmio kv restore` as users run them.

use std::error::Error;
use std::fs::{File, read, read_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

fn kv(command: &str, paths: &[&Path]) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).args(paths);
    run
}

/// A store with two segments, three keyspaces and a large value.
fn created(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let store = dir.join("store.kv");
    succeeded(kv("create", &[&store]).args(["--size", "256M"]))?;
    succeeded(kv("create-segment", &[&store]).args(["--size", "256M"]))?;
    succeeded(kv("put", &[&store]).args(["apple", "red"]))?;
    succeeded(kv("put", &[&store]).args(["--keyspace", "plants", "apple", "tree"]))?;
    let film = dir.join("film");
    std::fs::write(&film, patterned(3 << 20))?;
    succeeded(kv("put", &[&store]).args(["--keyspace", "old", "--segment", "1", "film", "--file"]).arg(&film))?;
    std::fs::remove_file(film)?;
    Ok(store)
}

/// All that a store has, in text.
fn contents(store: &Path) -> Result<String, Box<dyn Error>> {
    assert!(succeeded(&mut kv("check", &[store]))?.contains("problems   0"));
    let stat = succeeded(kv("stat", &[store]).arg("--json"))?;
    let stat: serde_json::Value = serde_json::from_str(&stat)?;
    let of_segment = |segment: &serde_json::Value| format!("{} {}\n", segment["number"], segment["keyspaces"]);
    let segments = stat["segments"].as_array().ok_or("no segments")?;
    let mut text: String = segments.iter().map(of_segment).collect();
    for keyspace in ["default", "plants", "old"] {
        text += &succeeded(kv("scan", &[store]).args(["--keyspace", keyspace]))?;
    }
    Ok(text)
}

fn names(dir: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names: Vec<String> = Vec::new();
    for entry in read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn a_store_is_restored_from_a_file_and_through_pipes() -> TestResult {
    let dir = tempfile::tempdir()?;
    let [file, from_file, piped] = ["backup", "from-file.kv", "piped.kv"].map(|name| dir.path().join(name));
    let store = created(dir.path())?;
    let expected = contents(&store)?;
    assert!(expected.starts_with("0 [\"default\",\"plants\"]\n1 [\"old\"]\napple\tred\napple\ttree\nfilm\t"));

    let said = succeeded(&mut kv("backup", &[&store, &file]))?;
    assert!(said.starts_with("3 keys of 3 keyspaces, 3"), "{said}");
    assert_eq!(succeeded(&mut kv("restore", &[&file, &from_file]))?, said);
    assert_eq!(contents(&from_file)?, expected);

    let mut backup = kv("backup", &[&store, Path::new("-")]).stdout(Stdio::piped()).spawn()?;
    let pipe = backup.stdout.take().ok_or("no output")?;
    succeeded(kv("restore", &[Path::new("-"), &piped]).args(["--size", "1G"]).stdin(pipe))?;
    assert!(backup.wait()?.success());
    assert_eq!(contents(&piped)?, expected);
    let stat: serde_json::Value = serde_json::from_str(&succeeded(kv("stat", &[&piped]).arg("--json"))?)?;
    assert_eq!(stat["volume_bytes"], 1 << 30);
    Ok(())
}

#[test]
fn a_wrong_backup_makes_no_store_and_says_where_it_is_wrong() -> TestResult {
    let dir = tempfile::tempdir()?;
    let [file, new] = ["backup", "new.kv"].map(|name| dir.path().join(name));
    let store = created(dir.path())?;
    succeeded(&mut kv("backup", &[&store, &file]))?;
    let backup = read(&file)?;
    let length = backup.len();
    std::fs::write(&file, &backup[..length - 1])?;
    refused(
        &mut kv("restore", &[&file, &new]),
        &format!("at byte {} is damaged: it ends before it should", length - 1),
    )?;
    std::fs::write(&file, b"something else, which is longer than a backup's beginning")?;
    refused(&mut kv("restore", &[&file, &new]), "it does not begin with its magic bytes")?;
    refused(kv("restore", &[Path::new("-"), &new]).stdin(Stdio::null()), "it ends before it should")?;
    refused(&mut kv("restore", &[&dir.path().join("none"), &new]), "cannot read")?;
    std::fs::write(&file, &backup)?;
    refused(kv("restore", &[&file, &new]).args(["--size", "100M"]), "is full")?;
    refused(&mut kv("restore", &[&file, &store]), "exists")?;
    assert_eq!(names(dir.path())?, ["backup", "store.kv"]);
    Ok(())
}

#[test]
fn a_store_in_use_is_not_backed_up_and_a_former_backup_stays() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("backup");
    let store = created(dir.path())?;
    std::fs::write(&file, "former")?;
    let mut user = kv("load", &[&store]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // The name of its last thread shows that it has the store open; a backup at that moment would be in its way.
    let is_open = || {
        let tasks = read_dir(format!("/proc/{}/task", user.id())).into_iter().flatten().flatten();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.any(|name| name.trim_end() == "vmio-kv-compact")
    };
    assert!(test_depth::comes_true(is_open), "it has not opened the store");
    refused(&mut kv("backup", &[&store, &file]), "is in use")?;
    assert_eq!(read(&file)?, b"former");
    drop(user.stdin.take());
    assert!(user.wait()?.success());
    refused(&mut kv("backup", &[&store, &store]), "are the same file")?;
    // Its reader goes away.
    let mut backup = kv("backup", &[&store, Path::new("-")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(backup.stdout.take());
    assert!(!backup.wait()?.success());
    Ok(())
}

#[test]
fn a_killed_restore_leaves_nothing() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (store, file) = (created(dir.path())?, dir.path().join("backup"));
    succeeded(&mut kv("backup", &[&store, &file]))?;
    let backup = read(&file)?;
    let mut restore = kv("restore", &[Path::new("-"), &dir.path().join("new.kv")]).stdin(Stdio::piped()).spawn()?;
    // A pipe holds 64 KiB: the restore has read all before, and waits.
    restore.stdin.as_mut().ok_or("no input")?.write_all(&backup[..backup.len() - 100])?;
    restore.kill()?;
    restore.wait()?;
    assert_eq!(names(dir.path())?, ["backup", "store.kv"]);
    Ok(())
}

#[test]
fn a_full_disk_keeps_nothing_of_a_restore() -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &[&store]).args(["--size", "1G"]))?;
    let large = dir.path().join("large");
    File::create(&large)?.set_len(200 << 20)?;
    for key in ["1", "2"] {
        succeeded(kv("put", &[&store]).arg(key).arg("--file").arg(&large))?;
    }
    let before = names(disk.path())?;
    let mut backup = kv("backup", &[&store, Path::new("-")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pipe = backup.stdout.take().ok_or("no output")?;
    let mut restore = kv("restore", &[Path::new("-"), &disk.path().join("new.kv")]);
    refused(restore.stdin(pipe), "its file system is full")?;
    // It has the pipe open as well.
    drop(restore);
    assert!(!backup.wait()?.success(), "it went on without a reader");
    assert_eq!(names(disk.path())?, before);
    let free = rustix::fs::statvfs(disk.path())?;
    assert!(free.f_bfree * free.f_frsize > 200 << 20, "the space is free again");
    Ok(())
}
