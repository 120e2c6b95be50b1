//! `vmio run --mode` with `--cache` where something is missing: a device that takes the bytes, memory or descriptors for the cache, a file
//! system that can read past the page cache.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::modes::{python, served, under};
use crate::common::programs::{has, leave_out, plain, text};
use crate::common::{TestResult, patterned, succeeded};

const MODE: &str = "posix --cache 8M";

/// When it prints `written`, its bytes are in the cache alone. Then it waits for a line of input, which says that another process has
/// opened the file.
const HOLDER: &str = r#"
import errno, resource
fd = leased(os.open("data", os.O_RDWR), lambda fd, n: os.pwrite(fd, b"leased", 0))
os.fsync(fd)
assert os.pwrite(fd, b"lost" * 1024, 500 << 10) == 4096
if sys.argv[1] == "limit":
    # From here on the kernel writes nothing for this process behind the first 64 KiB.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
print("written", flush=True)
sys.stdin.readline()
same = os.dup(fd)
for each in [fd, same, fd]:
    for sync in [os.fsync, os.fdatasync]:
        try: sync(each)
        except OSError as error: assert error.errno == errno.EIO, error
        else: sys.exit("a sync did not tell that something is lost")
"#;

/// Runs a process with a file in its cache that cannot be written back when another process opens the file. Returns the other's output.
fn holder_and_other(folder: &Path, how: &str, fail: impl FnOnce() -> TestResult) -> Result<Output, Box<dyn Error>> {
    let file = folder.join("data");
    fs::write(&file, patterned(1 << 20))?;
    succeeded(Command::new("sync").arg(&file))?;
    let mut command = under(MODE, folder, &["python3", "-c", &python(HOLDER), how]);
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut holder = command.spawn()?;
    let mut input = holder.stdin.take().ok_or("it is piped")?;
    let mut output = BufReader::new(holder.stdout.take().ok_or("it is piped")?);
    let mut said = String::new();
    output.read_line(&mut said)?;
    assert_eq!(said, "written\n");
    fail()?;
    // After 45 s the kernel lets the other go on in any case: that would be of no use.
    let other = plain(&["timeout", "30", "cat", text(&file)]).output()?;
    assert_ne!(other.status.code(), Some(124), "the other hangs");
    input.write_all(b"on\n")?;
    let outcome = holder.wait_with_output()?;
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{how}: {errors}");
    let expected = format!("{} could not be written (", file.canonicalize().unwrap_or(file).display());
    assert!(errors.contains(&expected) && errors.contains("some of the program's writes to it are lost"), "{errors}");
    Ok(other)
}

#[test]
fn what_the_kernel_does_not_take_is_told_when_another_opens_the_file() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let other = holder_and_other(dir.path(), "limit", || Ok(()))?;
    // All bytes but those that could not be written.
    let mut expected = patterned(1 << 20);
    expected[..6].copy_from_slice(b"leased");
    assert!(other.status.success() && other.stdout == expected, "the other has read {} bytes", other.stdout.len());
    Ok(())
}

#[test]
fn so_is_what_a_device_does_not_take() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for kind in [FileSystem::Ext4, FileSystem::Xfs] {
        let dir = tempfile::tempdir()?;
        let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
        let other = holder_and_other(disk.path(), "device", || disk.cut_power())?;
        assert!(!other.status.success(), "{kind:?}: the test shows nothing");
    }
    Ok(())
}

/// Keeps a model of its file, while something is missing that the cache needs. Prints the file. The second word names the file of
/// vmio's messages.
const MODEL: &str = r#"
import random, resource
random.seed(5)
told = os.open(sys.argv[2], os.O_RDONLY)
def is_told():
    os.pread(fd, 1, 0)
    return b"cannot build the cache" in os.pread(told, 1 << 16, 0)
fd = os.open("data", os.O_RDWR)
model = bytearray(os.pread(fd, 2 << 20, 0))
if sys.argv[1] == "memory":
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (16 << 20),) * 2)
elif sys.argv[1] == "descriptors":
    # vmio has one for the file itself.
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 2,) * 2)
elif sys.argv[1] == "any descriptor":
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1,) * 2)
for n in range(2000):
    at = random.randrange(len(model) - 9000)
    if n == 20 and sys.argv[1] == "nothing": leased(fd)
    elif n == 20 and sys.argv[1] == "any descriptor": time.sleep(.3)
    elif n == 20: looked_for(fd, is_told)
    if n % 3:
        data = random.randbytes(random.randrange(1, 9000))
        assert os.pwrite(fd, data, at) == len(data)
        model[at:at + len(data)] = data
    else: assert os.pread(fd, 8000, at) == model[at:at + 8000], at
assert os.pread(fd, len(model) + 1, 0) == model
os.fsync(fd)
os.write(1, model)
"#;

/// Runs that program. Its output has vmio's messages.
fn model(mode: &str, folder: &Path, lacking: &str) -> Result<Output, Box<dyn Error>> {
    let elsewhere = tempfile::tempdir()?;
    let said = elsewhere.path().join("said");
    let mut command = under(mode, folder, &["python3", "-c", &python(MODEL), lacking, text(&said)]);
    let output = command.current_dir(folder).stderr(fs::File::create(&said)?).output()?;
    Ok(Output { stderr: fs::read(&said)?, ..output })
}

#[test]
fn without_room_for_a_cache_programs_have_the_page_cache() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for (lacking, is_told) in [("nothing", false), ("memory", true), ("descriptors", true), ("any descriptor", false)] {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("data");
        fs::write(&file, patterned(2 << 20))?;
        succeeded(Command::new("sync").arg(&file))?;
        let output = model("posix --cache 64M", dir.path(), lacking)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{lacking}: {said}");
        assert_eq!(said.contains("cannot build the cache"), is_told, "{lacking}: {said}");
        assert!(
            output.stdout == fs::read(&file)? && output.stdout.len() == 2 << 20,
            "{lacking}: the file has other bytes"
        );
    }
    Ok(())
}

/// Whether the file system reads past the page cache (RWF_DONTCACHE).
const IS_ABLE: &str = r#"
import os, sys
try: print(os.preadv(os.open(sys.argv[1], os.O_RDONLY), [bytearray(9)], 0, 0x80) == 9)
except OSError: print(False)
"#;

#[test]
fn a_file_system_that_cannot_read_past_the_page_cache_has_the_same_bytes() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return leave_out("there is no /dev/shm") };
    let file = dir.path().join("data");
    fs::write(&file, patterned(2 << 20))?;
    if succeeded(plain(&["python3", "-c", IS_ABLE]).arg(&file))? != "False\n" {
        return leave_out("the file system at /dev/shm can read past the page cache");
    }
    let output = model(MODE, dir.path(), "nothing")?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(served(&output, "writes_served") > 1000, "{said}");
    assert!(output.stdout == fs::read(&file)?, "the file has other bytes");
    Ok(())
}
