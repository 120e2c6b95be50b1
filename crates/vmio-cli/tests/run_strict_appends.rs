//! `vmio run --mode strict`: a process's appends to a file that it alone has open are durable and whole when the calls return.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::disk::{Disk, FileSystem};
use crate::common::interruption::interrupted;
use crate::common::modes::under;
use crate::common::programs::{has, leave_out, plain, text};
use crate::common::{TestResult, succeeded, vmio};

const RECORD: usize = 40_000;

/// Appends records, each full of its number, and prints the number.
const APPENDER: &str = r#"
import os, sys
fd, record = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND), int(sys.argv[2])
for n in range(1, 1 << 30):
    data = n.to_bytes(4, "little") * (record // 4)
    if n % 3: done = os.write(fd, data)
    else: done = os.writev(fd, [data[:1001], data[1001:]])
    assert done == record
    print(n, flush=True)
"#;

fn appender(folder: &Path, is_strict: bool) -> Command {
    let file = folder.join("data");
    let program = ["python3", "-c", APPENDER, text(&file), "40000"];
    if is_strict { under("strict", folder, &program) } else { plain(&program) }
}

/// Whether the file has only whole records, and all that were reported.
fn holds_what_was_appended(file: &Path, last: u64) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    for (number, record) in (1_u32..).zip(bytes.chunks(RECORD)) {
        if record.len() < RECORD || record.chunks(4).any(|word| word != number.to_le_bytes()) {
            return Err(format!("record {number} is not whole"));
        }
    }
    let records = (bytes.len() / RECORD) as u64;
    if records == last || records == last + 1 { Ok(()) } else { Err(format!("{records} records; {last} was the last")) }
}

#[test]
fn what_was_appended_is_whole_or_not_there_after_a_kill() -> TestResult {
    let dir = tempfile::tempdir()?;
    for round in 0..4 {
        let file = dir.path().join("data");
        fs::write(&file, [])?;
        let last = interrupted(appender(dir.path(), true), 10 + round, |appender| Ok(appender.kill()?))?;
        succeeded(vmio().arg("recover").arg(dir.path()))?;
        holds_what_was_appended(&file, last)?;
    }
    Ok(())
}

#[test]
fn what_was_appended_survives_the_power() -> TestResult {
    survives_the_power(FileSystem::Ext4)
}

#[test]
fn so_it_does_on_xfs() -> TestResult {
    if !has("mkfs.xfs") {
        return leave_out("mkfs.xfs (xfsprogs) is not installed");
    }
    survives_the_power(FileSystem::Xfs)
}

fn survives_the_power(kind: FileSystem) -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
    for round in 0..3 {
        // The first round runs without vmio, and must lose the last appends: otherwise the test shows nothing.
        let is_strict = round > 0;
        let file = disk.path().join("data");
        fs::write(&file, [])?;
        succeeded(Command::new("sync").arg("-f").arg(&file))?;
        let last = interrupted(appender(disk.path(), is_strict), 20 + 7 * round, |_| disk.cut_power())?;
        disk.start_again()?;
        if is_strict {
            succeeded(vmio().arg("recover").arg(disk.path()))?;
        }
        let found = holds_what_was_appended(&file, last);
        assert_eq!(found.is_ok(), is_strict, "round {round}: {found:?}");
    }
    Ok(())
}
