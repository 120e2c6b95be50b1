//! `vmio run --engine managed`: files that several processes store to, for users without any right.

use std::error::Error;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::disk::{Disk, FileSystem};
use crate::common::programs::{as_nobody, compiled, for_everybody, has, leave_out, mapped, report, text};
use crate::common::{TestResult, patterned, succeeded};

fn under(folder: &Path, program: &[&str]) -> Command {
    let mut command = mapped("managed", folder, program);
    command.current_dir(folder);
    command
}

const SHARED: &str = r#"
import mmap, os, subprocess, sys
file = open("data", "r+b")
map = mmap.mmap(file.fileno(), 0)
map[0:6] = b"parent"
CHILD = """
import mmap
file = open('data', 'r+b')
map = mmap.mmap(file.fileno(), 0)
print(map[0:6])
map[4096:4101] = b'child'
file.write(b'by a call')
file.flush()
"""
print(subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True).stdout, end="")
print(map[4096:4101], map[0:9], open("data", "rb").read(9))
"#;

/// Each process sees the other's stores and calls at once, which they would not with pages of vmio's own.
#[test]
fn processes_store_to_one_file() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let output = under(dir.path(), &["python3", "-c", SHARED]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "b'parent'\nb'child' b'by a call' b'by a call'\n");
    let reports = String::from_utf8_lossy(&output.stderr).matches("\"mappings\":1").count();
    assert_eq!(reports, 2, "one of them was not vmio's: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

const FORK: &str = r#"
import mmap, os
file = open("data", "w+b")
file.truncate(64 << 20)
map = mmap.mmap(file.fileno(), 64 << 20)
map[0:6] = b"parent"
pid = os.fork()
if pid == 0:
    for at in range(0, 64 << 20, 4096):
        map[at + 8] = 1
    print(map[0:6], flush=True)
    map.close()
    again = mmap.mmap(file.fileno(), 64 << 20)
    again[16:21] = b"child"
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(map[16:21], sum(map[at + 8] for at in range(0, 64 << 20, 4096)))
"#;

#[test]
fn a_forked_child_has_its_parents_mappings() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let said = succeeded(&mut under(dir.path(), &["python3", "-c", FORK]))?;
    assert_eq!(said, "b'parent'\nb'child' 16384\n");
    Ok(())
}

const KILLED: &str = r#"
import mmap, os, signal
file = open("data", "w+b")
file.truncate(1 << 20)
map = mmap.mmap(file.fileno(), 1 << 20)
map[4096:4102] = b"stored"
os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn what_a_killed_program_has_stored_is_in_the_file() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let status = under(dir.path(), &["python3", "-c", KILLED]).status()?;
    assert_eq!(status.signal(), Some(9));
    assert_eq!(&fs::read(dir.path().join("data"))?[4096..4102], b"stored");
    Ok(())
}

const PROTECTED: &str = r#"
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
file = open("data", "r+b")
at = libc.mmap(None, ctypes.c_size_t(1 << 16), 3, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
def signal_of(touch):
    pid = os.fork()
    if pid == 0:
        touch()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def store(page):
    return lambda: ctypes.memset(at + page * 4096, 7, 1)
def load(page):
    return lambda: ctypes.string_at(at + page * 4096, 1)
def call(name, page, *more):
    assert getattr(libc, name)(ctypes.c_void_p(at + page * 4096), ctypes.c_size_t(4096), *more) == 0
call("mprotect", 1, mmap.PROT_READ)
call("mprotect", 2, 0)
call("munmap", 3)
call("mlock", 4)
print(signal_of(store(1)), signal_of(load(1)), signal_of(load(2)), signal_of(load(3)), signal_of(store(4)))
call("mprotect", 1, 3)
print(signal_of(store(1)))
# The addresses before are not the mapping's.
print(libc.munmap(ctypes.c_void_p(at - 4096), ctypes.c_size_t(2 * 4096)), ctypes.get_errno(), signal_of(load(0)))
again = libc.mmap(None, ctypes.c_size_t(4096), 3, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(3 * 4096))
ctypes.memset(again, 8, 1)
print(os.pread(file.fileno(), 1, 3 * 4096), os.pread(file.fileno(), 1, 4096))
"#;

/// Linux itself protects, unmaps and locks parts one by one.
#[test]
fn protection_is_linuxs() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let output = under(dir.path(), &["python3", "-c", PROTECTED]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "-11 0 -11 -11 0\n0\n-1 22 0\nb'\\x08' b'\\x07'\n", "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(&output)?;
    assert_eq!((report["mappings"].as_u64(), report["not_served"].as_u64()), (Some(2), Some(0)), "{report}");
    Ok(())
}

const CLOSES_ALL: &str = r#"
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
file = open("data", "r+b")
at = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
for fd in range(3, 64):
    if fd != file.fileno():
        try:
            os.close(fd)
        except OSError:
            pass
os.closerange(file.fileno() + 1, 64)
others = [open(f"other{n}", "wb") for n in range(12)]
ctypes.memset(at, 9, 1)
assert libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(1 << 20)) == 0
file.close()
for other in others:
    other.write(b"written")
    other.close()
print(sum(os.path.getsize(f"other{n}") for n in range(12)), open("data", "rb").read(1))
"#;

/// The program does not close vmio's descriptors with the rest, and none of its own becomes vmio's.
#[test]
fn a_program_closes_what_is_open() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let said = succeeded(&mut under(dir.path(), &["python3", "-c", CLOSES_ALL]))?;
    assert_eq!(said, "84 b'\\t'\n");
    Ok(())
}

/// The program stays within the cache, and its user needs no right.
#[test]
fn a_user_without_rights_has_a_budget() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("threads", dir.path(), &[])?;
    let mut command = Command::new(for_everybody(dir.path())?);
    // Without --engine: the best engine that this machine has.
    command.args(["run", "--cache", "8M", "--stats", "--json", "--under"]).arg(dir.path()).arg("--");
    command.args([text(&program), text(&dir.path().join("data")), "128"]);
    let output = as_nobody(&mut command, dir.path()).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(&output)?;
    assert!(report["engine"] == "managed" || Path::new("/dev/vmio").exists(), "{report}");
    // On a busy machine the reclaimer may come late, and stores are faster than the device.
    assert!(report["evicted_pages"].as_u64() > Some(2048), "{report}");
    Ok(())
}

const SYNCS: &str = r#"
import mmap, os, sys
def mapped(path):
    file = open(path, "w+b")
    file.truncate(64 << 20)
    return mmap.mmap(file.fileno(), 64 << 20)
def synced(map):
    try:
        map.flush(0, 4096)
        return True
    except OSError:
        return False
healthy, unserved, failing = (mapped(path) for path in sys.argv[1:])
def stored_and_synced(map):
    for at in range(0, 64 << 20, 4096):
        map[at] = 1
    return synced(map)
# Eight times the cache: vmio itself has to write, and fails. On a busy machine stores may be done before it does.
first = all(stored_and_synced(failing) for _ in range(50))
for map in healthy, unserved:
    map[0] = 1
# Linux tells of the failure once.
print([first] + [synced(map) for map in (failing, failing, healthy, unserved)])
"#;

/// msync fails for the file of which vmio could not write pages, each time, and for no other.
#[test]
fn a_failed_write_fails_the_syncs_of_its_file_alone() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let (dir, beside) = (tempfile::tempdir()?, tempfile::tempdir()?);
    // The disk promises more than its own disk has: writes fail.
    let Some(memory) = SmallMemory::new(&dir.path().join("memory"))? else { return Ok(()) };
    let Some(disk) = Disk::new(&memory.0, FileSystem::Ext4)? else { return Ok(()) };
    let files = [dir.path().join("healthy"), beside.path().join("unserved"), disk.path().join("failing")];
    let mut words = vec!["python3", "-c", SYNCS];
    words.extend(files.iter().map(|path| text(path)));
    assert_eq!(succeeded(&mut under(dir.path(), &words))?, "[False, False, False, True, True]\n");
    Ok(())
}

/// A file system in memory that holds little, mounted until it drops.
struct SmallMemory(PathBuf);

impl SmallMemory {
    /// Mounts it; none if this user may not.
    fn new(at: &Path) -> Result<Option<Self>, Box<dyn Error>> {
        fs::create_dir(at)?;
        match succeeded(Command::new("mount").args(["-t", "tmpfs", "-o", "size=40m", "vmio-test"]).arg(at)) {
            Ok(_) => Ok(Some(SmallMemory(at.to_owned()))),
            Err(error) => {
                test_depth::skipped(format_args!("no file system can be mounted: {error}"));
                Ok(None)
            }
        }
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}
