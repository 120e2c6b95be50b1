//! `vmio run --mode` on a full disk: written bytes are there, refused writes have failed, and nothing else has changed.
//!
//! A plain run is no oracle: the free space depends on when the file system allocates.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use crate::common::disk::{Disk, FileSystem};
use crate::common::modes::{served, under};
use crate::common::programs::{has, leave_out, plain};
use crate::common::{TestResult, succeeded};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// The bytes that the program may fill.
const ROOM_BYTES: u64 = 6 << 20;

/// Keeps a model of its file, from the result of each call. Prints how often there was no space.
const PROGRAM: &str = r#"
import errno, os, random, sys, time
random.seed(int(sys.argv[1]))
holes = sys.argv[2]
fd, model, full, lacked = os.open("data", os.O_RDWR | os.O_CREAT), bytearray(), 0, 0
def wrote(at, data, done):
    if done and at + done > len(model): model.extend(bytes(at + done - len(model)))
    model[at:at + done] = data[:done]
def write(at, data):
    global full, lacked
    try: done = os.pwrite(fd, data, at)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        full, lacked = full + 1, lacked + 1
    else: wrote(at, data, done)
def compare(at, count):
    found = os.pread(fd, count, at)
    assert found == model[at:at + count], (at, count, len(found), len(model))
for n in range(500):
    at, data = random.randrange(12 << 20), random.randbytes(random.randrange(1, 60000))
    # A file with holes is not in a cache.
    if holes == "no": at = min(at, max(len(model) - random.randrange(3) * random.randrange(5000), 0))
    kind = random.randrange(8)
    if n == 20: time.sleep(.2)
    if kind < 4: write(at, data)
    elif kind == 4:
        # Mostly what has room.
        at = random.randrange(max(len(model) // 4096, 1)) * 4096
        compare(at, 5000)
        write(at, data[:4096])
    else:
        compare(at, random.randrange(60000))
    if full > 10:
        full = 0
        length = random.randrange(1 << 20)
        os.ftruncate(fd, length)
        del model[length:]
        model.extend(bytes(length - len(model)))
assert os.fstat(fd).st_size == len(model), "its length"
os.fsync(fd)
compare(0, len(model))
with open("/proc/self/fd/%d" % fd, "rb") as again: assert again.read() == model, "another description"
print(lacked)
"#;

fn fill(disk: &Path) -> Result<(), Box<dyn Error>> {
    let room = statvfs(disk)?;
    let ballast = File::create(disk.join("ballast"))?;
    // Root may take the reserved blocks.
    let bytes = (room.f_bfree * room.f_frsize).checked_sub(ROOM_BYTES).ok_or("the disk is too small")?;
    Ok(fallocate(&ballast, FallocateFlags::empty(), 0, bytes)?)
}

fn keeps_what_it_has_taken(kind: FileSystem) -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
    fill(disk.path())?;
    let (mut lacked, mut by_vmio) = (0, 0);
    for mode in ["posix", "posix --cache 8M", "sync", "strict", "strict --cache 8M"] {
        let folder = disk.path().join("folder");
        for (seed, holes) in test_depth::seeds(1, 4).flat_map(|seed| ["many", "no"].map(|holes| (seed, holes))) {
            fs::create_dir(&folder)?;
            let mut command = under(mode, &folder, &["python3", "-c", PROGRAM, &seed.to_string(), holes]);
            let output = command.current_dir(&folder).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode}, seed {seed}, {holes} holes: {said}");
            lacked += String::from_utf8_lossy(&output.stdout).trim().parse::<u64>()?;
            by_vmio += served(&output, "reads_served") + served(&output, "writes_logged");
            fs::remove_dir_all(&folder)?;
            // Frees the space of the deleted files.
            succeeded(plain(&["sync", "-f"]).arg(disk.path()))?;
        }
    }
    // If not, the test has tested nothing.
    assert!(lacked > 10 && by_vmio > 100, "{lacked} calls had no room, {by_vmio} were served");
    Ok(())
}

#[test]
fn a_full_ext4_keeps_what_it_has_taken() -> TestResult {
    keeps_what_it_has_taken(FileSystem::Ext4)
}

#[test]
fn so_does_a_full_xfs() -> TestResult {
    if !has("mkfs.xfs") {
        return leave_out("mkfs.xfs (xfsprogs) is not installed");
    }
    keeps_what_it_has_taken(FileSystem::Xfs)
}
