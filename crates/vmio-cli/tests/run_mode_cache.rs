//! `vmio run --mode` with `--cache`: files in frames of the process's own, of which nobody else sees old bytes.

mod common;

use std::error::Error;
use std::fs;
use std::process::{Command, Output, Stdio};

use common::modes::{SQL, TOOLS, same_as_plain, seeds, served, under};
use common::programs::{compiled, has, leave_out, text};
use common::{TestResult, patterned, refused, succeeded, vmio};

/// So little memory that pages of the files are evicted.
const MODES: [&str; 3] = ["posix --cache 8M", "sync --cache 8M", "strict --cache 8M"];

/// What the caches of all processes have done of a kind.
fn cached(output: &Output, what: &str) -> u64 {
    let errors = String::from_utf8_lossy(&output.stderr);
    let reports = errors.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    reports.filter_map(|report| report["cache"][what].as_u64()).sum()
}

#[test]
fn random_calls_return_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("random_calls", dir.path(), &[])?;
    let mut writes = 0;
    for (mode, rounds) in MODES.into_iter().zip([6, 4, 4]) {
        let mut misses = 0;
        for seed in seeds(rounds) {
            let work = dir.path().join(format!("{mode} {seed}"));
            fs::create_dir(&work)?;
            let steps = if mode.starts_with("posix") { "400" } else { "150" };
            let output = same_as_plain(mode, &work, &[text(&program), ".", &seed.to_string(), steps])
                .map_err(|error| format!("{mode}, seed {seed}: {error}"))?;
            misses += cached(&output, "misses");
            writes += served(&output, "writes_served");
            fs::remove_dir_all(&work)?;
        }
        // Else nothing was tested.
        assert!(misses > 10, "{mode}: {misses} misses");
    }
    assert!(writes > 100, "{writes} writes");
    Ok(())
}

#[test]
fn threads_see_whole_blocks_while_others_change_the_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("readers", dir.path(), &[])?;
    for helper in ["yes", "no"] {
        let output = under(MODES[0], dir.path(), &[text(&program), text(&dir.path().join("data")), helper]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), said.as_ref()), (Some(0), "done\n"), "{:?}", output.status);
    }
    Ok(())
}

/// More than the cache takes, and another program that looks in between.
const OVERWRITE: &str = r#"
import os, random, subprocess, time
random.seed(3)
fd = os.open("data", os.O_RDWR)
model = bytearray(os.pread(fd, 24 << 20, 0))
def work(rounds):
    for n in range(rounds):
        at = random.randrange(len(model) - 9000)
        if n % 3:
            data = random.randbytes(random.randrange(1, 9000))
            assert os.pwrite(fd, data, at) == len(data)
            model[at:at + len(data)] = data
        else:
            assert os.pread(fd, 8000, at) == model[at:at + 8000], at
        if n == 20: time.sleep(.3)
work(3000)
assert open("/proc/self/fd/" + str(fd), "rb").read() == model, "another description"
print(len(model))
"#;

#[test]
fn a_file_larger_than_the_cache_is_what_another_description_reads() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("data"), patterned(24 << 20))?;
        // What the page cache has not written yet has no room on some file systems.
        succeeded(Command::new("sync").arg(dir.path().join("data")))?;
        let output = under(mode, dir.path(), &["python3", "-c", OVERWRITE]).current_dir(dir.path()).output()?;
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(served(&output, "writes_served") > 500, "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(cached(&output, "evicted_pages") > 100, "{mode}: nothing was evicted");
    }
    Ok(())
}

#[test]
fn what_was_written_is_in_the_file_when_the_program_has_ended() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let script = r#"
import os, time
fd = os.open("data", os.O_RDWR)
for n in range(30): os.pwrite(fd, b"old", n)
time.sleep(.3)
for n in range(3000): assert os.pwrite(fd, n.to_bytes(2, "little"), 1 << 20 | n * 2) == 2
assert os.fstat(fd).st_size == (1 << 20) + 6000
# Further than the cache has addresses.
assert os.pwrite(fd, b"far", 70 << 30) == 3
assert os.pread(fd, 3, 70 << 30) == b"far" and os.fstat(fd).st_size == (70 << 30) + 3
assert os.pread(fd, 2, 1 << 20) == b"\0\0" and os.pread(fd, 2, (1 << 20) + 2) == b"\1\0"
os.ftruncate(fd, (1 << 20) + 6000)
os._exit(0)
"#;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data");
    fs::write(&file, patterned(1 << 20))?;
    succeeded(Command::new("sync").arg(&file))?;
    let output = under(MODES[0], dir.path(), &["python3", "-c", script]).current_dir(dir.path()).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(served(&output, "writes_served") > 2000, "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<u8> = (0..3000_u16).flat_map(u16::to_le_bytes).collect();
    assert_eq!(fs::read(&file)?[1 << 20..], expected);
    Ok(())
}

/// Overwrites a block again and again, and says which number it has; only now and then it is synced.
const WRITER: &str = r#"
import os, sys, time
fd = os.open("data", os.O_RDWR)
for n in range(1, 1 << 30):
    os.pwrite(fd, n.to_bytes(8, "little") * 512, 8192)
    if n == 20: time.sleep(.3)
    if n % 100 == 0:
        print(n, flush=True)
        if sys.stdin.readline() == "": break
"#;

#[test]
fn who_opens_the_file_finds_what_was_written_last() -> Result<(), Box<dyn Error>> {
    use std::io::{BufRead, BufReader, Write};
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("data");
        fs::write(&file, patterned(1 << 20))?;
        succeeded(Command::new("sync").arg(&file))?;
        let mut command = under(mode, dir.path(), &["python3", "-c", WRITER]);
        command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut writer = command.spawn()?;
        let mut input = writer.stdin.take().ok_or("it is piped")?;
        let mut lines = BufReader::new(writer.stdout.take().ok_or("it is piped")?).lines();
        for _ in 0..3 {
            let number: u64 = lines.next().ok_or("the writer has ended")??.parse()?;
            // The kernel has us wait until the lease is back.
            let found = fs::read(&file)?;
            assert_eq!(found[8192..8200], number.to_le_bytes(), "{mode}");
            assert_eq!(found[8192..12288], number.to_le_bytes().repeat(512), "{mode}");
            input.write_all(b"on\n")?;
        }
        drop(input);
        let output = writer.wait_with_output()?;
        assert!(served(&output, "writes_served") > 20, "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[test]
fn sqlite_and_tools_do_what_they_do_without() -> TestResult {
    if !has("sqlite3") || !has("git") {
        return leave_out("sqlite3 or git is not installed");
    }
    for mode in ["delete", "wal"] {
        let dir = tempfile::tempdir()?;
        let script = format!("PRAGMA journal_mode = {mode};{SQL}");
        let output = same_as_plain(MODES[0], dir.path(), &["sqlite3", "database", &script])?;
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("ok\n"), "{mode}");
    }
    let dir = tempfile::tempdir()?;
    same_as_plain(MODES[0], dir.path(), &["sh", "-c", TOOLS])?;
    Ok(())
}

#[test]
fn what_cannot_be_is_said_before_the_program_starts() -> TestResult {
    let with = |options: &[&str]| {
        let mut command = vmio();
        command.args(["run", "--mode", "posix"]).args(options).args(["--under", ".", "--", "true"]);
        command
    };
    refused(&mut with(&["--cache", "1M"]), "--cache sets its size")?;
    refused(&mut with(&["--cache", "8M", "--engine", "kernel"]), "cannot be used with")
}
