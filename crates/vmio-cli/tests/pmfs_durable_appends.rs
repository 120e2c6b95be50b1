//! `vmio run --mode sync` and `strict` on a mounted vmio-pmfs: appends and overwrites are durable and whole without a system call.
//!
//! The images lie in /dev/shm: what the kernel does durably takes no time there.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::interruption::interrupted;
use crate::common::modes::under;
use crate::common::programs::{has, leave_out, plain, text};
use crate::common::{TestResult, succeeded, vmio};
use crate::pmfs::{Mounted, can_mount, fsck, made};

/// On an ordinary file a test needs the option: no power fails here, only programs end.
const PERSISTENT: &[&str] = &["--assume-persistent"];
const RECORD: usize = 4000;

/// Appends records, each full of its number, and prints the number. Every `several`th record goes out in two parts.
const APPENDER: &str = r#"
import os, sys, time
path, flags, first, count, several = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
fd = os.open(path, eval(flags, vars(os)) | os.O_CREAT, 0o600)
if not eval(flags, vars(os)) & os.O_APPEND: os.lseek(fd, 0, os.SEEK_END)
# By the kernel, in mode strict, or by extents of the image.
def leased(): return "LEASE  ACTIVE" in open("/proc/self/fdinfo/%d" % fd).read() or "/image" in open("/proc/self/maps").read()
for n in range(first, first + count):
    data = n.to_bytes(4, "little") * 1000
    if n % several: done = os.write(fd, data)
    else: done = os.writev(fd, [data[:1001], data[1001:]])
    assert done == len(data), done
    print(n, flush=True)
    # The thread that takes the lease has no time of its own on a busy machine.
    for _ in range(1000):
        if n != first + 20 or leased(): break
        time.sleep(0.01)
"#;

fn appender(mode: &str, folder: &Path, flags: &str, first: u32, count: u32, several: u32) -> Command {
    let file = folder.join("log");
    let [first, count, several] = [first, count, several].map(|number| number.to_string());
    under(mode, folder, &["python3", "-c", APPENDER, text(&file), flags, &first, &count, &several])
}

/// How many records a file has, all of which are whole.
fn records(file: &Path) -> Result<u64, Box<dyn Error>> {
    let bytes = fs::read(file)?;
    for (number, record) in (1_u32..).zip(bytes.chunks(RECORD)) {
        if record.len() < RECORD || record.chunks(4).any(|word| word != number.to_le_bytes()) {
            return Err(format!("record {number} is not whole").into());
        }
    }
    Ok((bytes.len() / RECORD) as u64)
}

fn can_run() -> bool {
    let can = can_mount() && has("python3");
    if !can {
        _ = leave_out("python3");
    }
    can
}

/// Mounts an image again once nobody from before may store to it.
fn again(image: &Path, folder: &Path) -> Result<Mounted, Box<dyn Error>> {
    let mut mounted = None;
    assert!(test_depth::comes_true(|| {
        mounted = Mounted::with(image, folder, PERSISTENT).ok();
        mounted.is_some()
    }));
    mounted.ok_or_else(|| "no mount".into())
}

/// A number of the report at the end.
pub fn counted(said: &str, name: &str) -> Result<u64, Box<dyn Error>> {
    let (_, rest) = said.split_once(&format!("\"{name}\":")).ok_or_else(|| format!("no {name}: {said}"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}

#[test]
fn a_kill_of_the_server_and_of_the_program_takes_no_append_that_has_returned() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let kinds = ["O_RDWR | O_APPEND", "O_WRONLY | O_APPEND", "O_WRONLY", "O_RDWR"];
    for (round, mode) in ["sync", "strict", "sync", "strict"].into_iter().enumerate() {
        let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
        let file = folder.join("log");
        _ = fs::remove_file(&file);
        let command = appender(mode, &folder, kinds[round], 1, 1 << 20, 500);
        let last = interrupted(command, 700 + round as u64 * 90, |_| mounted.kill())?;
        // Nobody has asked for the file since: only the medium knows.
        let mounted = again(&image, &folder)?;
        if mode == "strict" {
            succeeded(vmio().arg("recover").arg(&folder))?;
        }
        let found = records(&file)?;
        assert!(found == last || found == last + 1, "{mode}: {found} records; {last} was the last");
        mounted.unmount()?;
        fsck(&image)?;
    }
    Ok(())
}

#[test]
fn durable_appends_are_served_without_the_kernel_and_the_log() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    for (options, is_served) in [(PERSISTENT, true), (&[], false)] {
        let mounted = Mounted::with(&image, &folder, options)?;
        let file = folder.join("log");
        for mode in ["sync", "strict", "posix"] {
            for flags in ["O_RDWR | O_APPEND", "O_WRONLY | O_APPEND", "O_RDWR", "O_RDWR | O_APPEND | O_DSYNC"] {
                _ = fs::remove_file(&file);
                let is_volatile = mode == "posix" && !flags.contains("O_DSYNC");
                // The kernel's take their time.
                let count = if is_served || is_volatile { 1000 } else { 50 };
                let output = appender(mode, &folder, flags, 1, count, 1000).output()?;
                let said = String::from_utf8(output.stderr)?;
                let what = format!("{mode}, {flags}, {options:?}: {said}");
                assert!(output.status.success(), "{what}");
                let served = counted(&said, "writes_served")?;
                let expected = if is_served || is_volatile { 900..=1000 } else { 0..=0 };
                assert!(expected.contains(&served), "{what}");
                if mode == "strict" && is_served {
                    assert!(counted(&said, "writes_logged")? < 100, "{what}");
                }
                assert_eq!(records(&file)?, u64::from(count), "{what}");
            }
        }
        mounted.unmount()?;
        fsck(&image)?;
    }
    Ok(())
}

#[test]
fn others_see_durable_appends_and_take_over() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
    let file = folder.join("log");
    let free = || rustix::fs::statvfs(&folder).map(|space| space.f_bfree);
    let before = free()?;
    // Each process goes on where the one before has ended, by any way.
    let mut first = 1;
    for (mode, several) in [("sync", 7), ("posix", 9), ("strict", 3), ("strict", 1000)] {
        succeeded(&mut appender(mode, &folder, "O_RDWR | O_APPEND", first, 300, several))?;
        first += 300;
        assert_eq!(records(&file)?, u64::from(first) - 1, "{mode}");
    }
    let [count, several] = ["50", "1000"];
    succeeded(&mut plain(&["python3", "-c", APPENDER, text(&file), "O_WRONLY | O_APPEND", "1201", count, several]))?;
    assert_eq!(records(&file)?, 1250);
    // What was cut off does not come back, and what was reserved is free again.
    fs::File::options().write(true).open(&file)?.set_len(RECORD as u64)?;
    assert_eq!(records(&file)?, 1);
    fs::remove_file(&file)?;
    assert!(free()? + 2 >= before, "{} of {before} blocks", free()?);
    mounted.unmount()?;
    fsck(&image)
}

/// Two threads write by one descriptor, whose position says where.
const SHARERS: &str = r#"
import os, sys, threading
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
def write(thread):
    for n in range(1, 1001): assert os.write(fd, (n * 2 + thread).to_bytes(4, "little") * 250) == 1000
threads = [threading.Thread(target=write, args=(thread,)) for thread in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
found = open(sys.argv[1], "rb").read()
records = [found[at:at + 1000] for at in range(0, len(found), 1000)]
assert all(record == record[:4] * 250 for record in records), "a record is not whole"
numbers = sorted(int.from_bytes(record[:4], "little") for record in records)
assert numbers == list(range(2, 2002)), "%d records" % len(numbers)
"#;

#[test]
fn threads_that_share_a_position_leave_no_gap() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
    for mode in ["strict", "sync"] {
        let file = folder.join(mode);
        let output = under(mode, &folder, &["python3", "-c", SHARERS, text(&file)]).output()?;
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    mounted.unmount()?;
    fsck(&image)
}

/// Overwrites the records of a file one after the other, from the first again and again, each full of its number, and prints the number.
const OVERWRITER: &str = r#"
import os, sys
path, count, records = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_RDWR)
for n in range(1, count + 1):
    data = n.to_bytes(4, "little") * 1000
    at = (n - 1) % records * len(data)
    done = os.pwrite(fd, data, at) if n % 5 else os.pwritev(fd, [data[:1001], data[1001:]], at)
    assert done == len(data), done
    print(n, flush=True)
"#;

fn overwriter(folder: &Path, count: u32, records: u32) -> Command {
    let [count, records] = [count, records].map(|number| number.to_string());
    under("strict", folder, &["python3", "-c", OVERWRITER, text(&folder.join("log")), &count, &records])
}

#[test]
fn a_kill_in_mode_strict_leaves_each_overwrite_whole() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let file = folder.join("log");
    let all: u32 = 300;
    let mut replayed = 0;
    for round in 0..3 {
        let mut mounted = Some(Mounted::with(&image, &folder, PERSISTENT)?);
        fs::write(&file, vec![0; RECORD * all as usize])?;
        // The server, too, but once.
        let kill = |_: &mut _| if round == 1 { Ok(()) } else { mounted.take().map_or(Ok(()), Mounted::kill) };
        let last = interrupted(overwriter(&folder, 1 << 20, all), 900 + round * 110, kill)? as u32;
        let mounted = mounted.map_or_else(|| again(&image, &folder), Ok)?;
        let recovered = succeeded(vmio().args(["recover", "--json"]).arg(&folder))?;
        let recovered: serde_json::Value = serde_json::from_str(&recovered)?;
        replayed += recovered["logs"][0]["files"][0]["operations"].as_u64().unwrap_or(0);
        let bytes = fs::read(&file)?;
        assert_eq!(bytes.len(), RECORD * all as usize);
        for (index, record) in (0..all).zip(bytes.chunks(RECORD)) {
            let found = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            assert!(record.chunks(4).all(|word| word == found.to_le_bytes()), "record {index} is not whole");
            // The last number up to `last` that belongs here, or the one that was under way.
            let expected = last - (last - 1 - index) % all;
            assert!(
                found == expected || found == last + 1 && last % all == index,
                "{index}: {found}, {expected}, {last}"
            );
        }
        mounted.unmount()?;
        fsck(&image)?;
    }
    // A log has space for 250 writes.
    assert!(replayed > 50, "the logs had {replayed} writes");
    Ok(())
}

#[test]
fn log_entries_are_stores_on_persistent_memory() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    for (options, stored) in [(PERSISTENT, 190..=210), (&[], 0..=0)] {
        let mounted = Mounted::with(&image, &folder, options)?;
        fs::write(folder.join("log"), vec![0; RECORD * 50])?;
        let output = overwriter(&folder, 200, 50).output()?;
        let said = String::from_utf8(output.stderr)?;
        assert!(output.status.success(), "{said}");
        assert!(stored.contains(&counted(&said, "log_entries_stored")?), "{options:?}: {said}");
        mounted.unmount()?;
        fsck(&image)?;
    }
    Ok(())
}
