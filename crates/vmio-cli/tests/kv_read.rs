//! `vmio kv get`, `scan` and `stat` change nothing: they run at the same time, and where nothing can be written.

use std::error::Error;
use std::fs::{File, read};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::{TestResult, refused, succeeded, vmio};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

fn kv(command: &str, store: &Path) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).arg(store);
    run
}

fn created(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let store = dir.join("store.kv");
    succeeded(kv("create", &store).args(["--size", "256M"]))?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    Ok(store)
}

/// Fills the disk, to the last block that a hole could take.
fn fill(disk: &Path) -> TestResult {
    let ballast = File::create(disk.join("ballast"))?;
    let mut bytes = 0;
    for piece in [1 << 20, 4096] {
        while statvfs(disk)?.f_bfree > 0 && fallocate(&ballast, FallocateFlags::empty(), bytes, piece).is_ok() {
            bytes += piece;
        }
    }
    Ok(())
}

#[test]
fn a_store_on_a_full_disk_is_read() -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    let store = created(disk.path())?;
    fill(disk.path())?;
    // The store has some free space already; after that, puts fail.
    let value = "x".repeat(100_000);
    let put = |number: u32| kv("put", &store).args([&format!("long {number}"), &value]).output();
    let refused = (0..200).map(put).find(|put| put.as_ref().is_ok_and(|put| !put.status.success()));
    let refused = refused.ok_or("puts went on though the disk is full")??;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("its file system is full"), "{message}");
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    assert!(succeeded(&mut kv("scan", &store))?.starts_with("apple\tred\n"));
    assert!(succeeded(&mut kv("stat", &store))?.contains("keyspaces  default"));
    std::fs::remove_file(disk.path().join("ballast"))?;
    succeeded(kv("put", &store).args(["pear", "green"]))?;
    assert_eq!(succeeded(kv("get", &store).arg("pear"))?, "green");
    Ok(())
}

#[test]
fn a_store_on_a_file_system_that_takes_no_writes_is_read() -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    let store = created(disk.path())?;
    succeeded(Command::new("mount").args(["-o", "remount,ro"]).arg(disk.path()))?;
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    refused(kv("put", &store).args(["pear", "green"]), "Read-only file system")
}

#[test]
fn many_read_at_a_time_and_none_changes_the_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let value = "x".repeat(200_000);
    succeeded(kv("put", &store).args(["long", &value[..100_000]]))?;
    succeeded(kv("put", &store).args(["longer", &value[..100_000]]))?;
    let before = read(&store)?;
    // The scan has the store open until somebody reads all its output.
    let mut scan = kv("scan", &store).stdout(Stdio::piped()).spawn()?;
    let mut output = BufReader::with_capacity(64, scan.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    assert_eq!(line, "apple\tred\n");
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    refused(kv("put", &store).args(["pear", "green"]), "another process has it mapped read-only")?;
    output.read_to_string(&mut line)?;
    assert!(scan.wait()?.success());
    assert_eq!(line.len(), "apple\tred\nlong\t\nlonger\t\n".len() + 200_000);
    assert!(before == read(&store)?, "the file has changed");
    succeeded(kv("put", &store).args(["pear", "green"]))?;
    Ok(())
}
