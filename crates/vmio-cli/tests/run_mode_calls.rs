//! `vmio run --mode`: calls that the kernel or the C library does by itself find and leave the files as without vmio.

use std::error::Error;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::disk::{Disk, FileSystem};
use crate::common::modes::{self, same_as_plain, under};
use crate::common::programs::{compiled, has, leave_out, text};
use crate::common::{TestResult, dir_in_memory, patterned, succeeded};

const MODES: [&str; 3] = ["posix", "sync", "strict"];
const CACHED_MODES: [&str; 3] = ["posix --cache 8M", "sync --cache 8M", "strict --cache 8M"];

/// The beginning of the Python programs.
const CHECKED: &str = r#"
import ctypes, fcntl, os, struct, sys, termios
c = ctypes.CDLL(None, use_errno=True)
def checked(outcome):
    if outcome < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return outcome
"#;

/// Runs such a program in a mode, in a folder with a file of 1 MiB.
fn python(mode: &str, folder: &Path, program: &str, words: &[&str]) -> Result<Output, Box<dyn Error>> {
    let file = folder.join("data");
    fs::write(&file, patterned(1 << 20))?;
    // Bytes that the page cache has not written yet have no space on some file systems.
    succeeded(Command::new("sync").arg(&file))?;
    let program = modes::python(&format!("{CHECKED}{program}"));
    let mut command = under(mode, folder, &["python3", "-c", &program]);
    Ok(command.args(words).current_dir(folder).output()?)
}

/// Writes ten pages, and becomes another program.
const EXECUTED: &str = r#"
fd = leased(os.open("data", os.O_RDWR))
os.set_inheritable(fd, True)
for n in range(10): assert os.write(fd, b"new!" * 1024) == 4096
words = (ctypes.c_char_p * 4)(b"sh", b"-c", b"cat <&%d | wc -c" % fd, None)
environment = ctypes.c_void_p.in_dll(c, "environ")
checked(c.execveat(-100, b"/bin/sh", words, environment, 0))
"#;

#[test]
fn execveat_hands_over_what_was_written_and_where() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let dir = tempfile::tempdir()?;
        let output = python(mode, dir.path(), EXECUTED, &[])?;
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim(), ((1 << 20) - 40960).to_string(), "{mode}: where the next program reads: {error}");
        let mut wanted = patterned(1 << 20);
        wanted[..40960].copy_from_slice(&b"new!".repeat(10240));
        assert!(fs::read(dir.path().join("data"))? == wanted, "{mode}: what was written is lost");
    }
    Ok(())
}

/// Overwrites half of a file, syncs in some way, and is killed.
const SYNCED: &str = r#"
fd = leased(os.open("data", os.O_RDWR))
for at in range(0, 1 << 19, 4096): assert os.pwrite(fd, b"new!" * 1024, at) == 4096
if sys.argv[1] == "sync": os.sync()
else: checked(c.syncfs(fd))
os.kill(os.getpid(), 9)
"#;

#[test]
fn sync_and_syncfs_write_back_what_is_in_the_cache() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for call in ["sync", "syncfs"] {
        let dir = tempfile::tempdir()?;
        let output = python(CACHED_MODES[0], dir.path(), SYNCED, &[call])?;
        assert_eq!(output.status.signal(), Some(9), "{call}: {}", String::from_utf8_lossy(&output.stderr));
        let found = fs::read(dir.path().join("data"))?;
        assert!(found[..1 << 19] == b"new!".repeat(1 << 17), "{call}: what was written is lost");
    }
    Ok(())
}

/// Makes a file by each of the calls that make a name with a suffix.
const MADE: &str = r#"
for made in [c.mkstemps, c.mkstemps64, c.mkostemps, c.mkostemps64]:
    name = ctypes.create_string_buffer(b"./madeXXXXXX.txt")
    fd = checked(made(name, 4, 0) if "mko" in made.__name__ else made(name, 4))
    assert os.write(fd, bytes(1 << 20)) == 1 << 20
    flags = [line for line in open("/proc/self/fdinfo/%d" % fd) if line.startswith("flags")][0].split()[1]
    print(made.__name__, "is durable" if int(flags, 8) & os.O_DSYNC else "is not durable")
    if sys.argv[1] != "sync": leased(fd)
"#;

#[test]
fn files_made_with_a_suffix_are_as_others() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for (mode, durable) in [("posix", 0), ("sync", 4)] {
        let dir = tempfile::tempdir()?;
        let output = python(mode, dir.path(), MADE, &[mode])?;
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.matches(" is durable").count(), durable, "{mode}: {said}");
    }
    Ok(())
}

/// Checks the number of bytes left to read, at some positions.
const LEFT: &str = r#"
fd = os.open("data", os.O_RDWR)
for wanted in (1 << 20, (1 << 20) - 12288):
    leased(fd)
    found = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    assert found == wanted, (found, wanted)
    leased(fd)
    for n in range(3): os.read(fd, 4096)
"#;

#[test]
fn what_is_left_of_a_file_is_counted_from_the_position() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let dir = tempfile::tempdir()?;
        let output = python(mode, dir.path(), LEFT, &[])?;
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Locks ten bytes from a position on, and prints the range.
const LOCKED: &str = r#"
fd = leased(os.open("data", os.O_RDWR))
os.lseek(fd, 5000, os.SEEK_SET)
os.lockf(fd, os.F_LOCK, 10)
print([line.split()[-2:] for line in open("/proc/self/fdinfo/%d" % fd) if "POSIX" in line])
"#;

#[test]
fn record_locks_are_where_the_position_is() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let dir = tempfile::tempdir()?;
        let output = python(mode, dir.path(), LOCKED, &[])?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[['5000', '5009']]", "{mode}: {error}");
    }
    Ok(())
}

/// Clones and compares files with overwritten parts.
const CLONED: &str = r#"
FICLONE, FICLONERANGE, FIDEDUPERANGE = 0x40049409, 0x4020940d, 0xc0189436
LEN, HALF = 1 << 20, 1 << 19
model, fds = {}, {}
def overwrite(name, byte, start=0, end=LEN):
    leased(fds[name])
    for at in range(start, end, 4096): assert os.pwrite(fds[name], byte * 4096, at) == 4096
    model[name] = model[name][:start] + byte * (end - start) + model[name][end:]
def compare(how):
    for name in fds: assert os.pread(fds[name], LEN, 0) == model[name], (how, name)
for name, byte in (("a", b"a"), ("b", b"b")):
    fds[name] = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(fds[name], byte * LEN)
    os.fsync(fds[name])
    model[name] = byte * LEN
# Both sides of a clone are in the cache.
overwrite("a", b"1")
overwrite("b", b"2")
fcntl.ioctl(fds["b"], FICLONE, fds["a"])
model["b"] = model["a"]
compare("FICLONE")
overwrite("a", b"3")
overwrite("b", b"4")
fcntl.ioctl(fds["b"], FICLONERANGE, struct.pack("qQQQ", fds["a"], 0, HALF, HALF))
model["b"] = model["b"][:HALF] + model["a"][:HALF]
compare("FICLONERANGE")
def same(): return struct.unpack("QQHHIqQQiI", fcntl.ioctl(fds["a"], FIDEDUPERANGE, struct.pack("QQHHIqQQiI", 0, HALF, 1, 0, 0, fds["b"], 0, 0, 0, 0)))[7:9]
overwrite("a", b"5")
overwrite("b", b"5", 0, HALF)
assert same() == (HALF, 0), "what is the same was not found to be"
compare("the same")
leased(fds["b"])
overwrite("a", b"6", 4096, 8192)
assert same() == (0, 1), "what differs was taken for the same"
compare("others")
# What is written back at the end comes over nothing.
fcntl.ioctl(fds["b"], FICLONE, fds["a"])
model["b"] = model["a"]
os.write(1, model["a"] + model["b"])
"#;

#[test]
fn clones_have_what_was_written_and_nothing_is_written_over_them() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Xfs)? else { return Ok(()) };
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let output = python(mode, disk.path(), CLONED, &[])?;
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        let found = [fs::read(disk.path().join("a"))?, fs::read(disk.path().join("b"))?].concat();
        assert!(found == output.stdout, "{mode}: the files have other bytes");
    }
    Ok(())
}

#[test]
fn what_the_c_library_closes_by_itself_is_forgotten() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("closed_inside", dir.path(), &[])?;
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let work = tempfile::tempdir()?;
        same_as_plain(mode, work.path(), &[text(&program)]).map_err(|error| format!("{mode}: {error}"))?;
    }
    Ok(())
}

#[test]
fn handlers_that_block_all_signals_write_to_files() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("full_masks", dir.path(), &[])?;
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        let work = tempfile::tempdir()?;
        same_as_plain(mode, work.path(), &[text(&program)]).map_err(|error| format!("{mode}: {error}"))?;
    }
    Ok(())
}

#[test]
fn no_file_is_leased_during_a_call_of_the_kernel() -> TestResult {
    let dir = dir_in_memory()?;
    let program = compiled("beside_calls", dir.path(), &[])?;
    for (mode, rounds) in MODES.into_iter().chain(CACHED_MODES).zip(["1000", "100", "100", "1000", "100", "100"]) {
        let file = dir.path().join("data");
        let mut command = under(mode, dir.path(), &[text(&program), text(&file), rounds, "40"]);
        // Stores to the mapping from the first write on.
        let output = command.env("VMIO_RUN_STORES_AFTER", "0").output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let expected = "position 4194304\n0 reads behind the end, 0 writes lost\n0 parts wrong\n";
        assert_eq!(said, expected, "{mode}: {}: {errors}", output.status);
    }
    Ok(())
}
