//! `vmio run --engine ring0`: the program's threads in a virtual machine of the process's own. At ring 3 where the host emulates ring 0.

use std::process::Command;

use crate::common::programs::{compiled, has, leave_out};
use crate::common::ring0::{chooses_level, under, under_with};
use crate::common::{TestResult, succeeded, vmio};

/// Threads that store and load more than the cache holds, system calls with pointers into the mapping, the same bytes at three addresses, programs and
/// children that are started, and a child that touches what it does not have.
const PROGRAM: &str = r#"
import mmap, os, subprocess, threading
size = 24 << 20
file = open("data", "w+b")
file.truncate(size)
map = mmap.mmap(file.fileno(), size)
def work(n):
    for at in range(n * 4096, size, 4 * 4096):
        map[at:at + 8] = at.to_bytes(8, "little")
    for at in range(n * 4096, size, 4 * 4096):
        assert map[at:at + 8] == at.to_bytes(8, "little")
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
view = memoryview(map)
with open("../copy", "wb", buffering=0) as copy:
    assert copy.write(view) == size
with open("../copy", "rb", buffering=0) as copy:
    copy.seek(4096)
    assert copy.readinto(view[:1 << 20]) == 1 << 20
print([int.from_bytes(map[at:at + 8], "little") for at in (0, 8192, 1 << 20)])
again = mmap.mmap(file.fileno(), size)
loads = mmap.mmap(file.fileno(), 1 << 20, prot=mmap.PROT_READ)
for at in range(16, size, 4096):
    again[at:at + 4] = b"here"
    assert map[at:at + 4] == b"here" and (at > 1 << 20 or loads[at:at + 4] == b"here")
kept = map[12288:12296]
with open("../copy", "r+b", buffering=0) as copy:
    assert copy.write(memoryview(loads)[4096:8192]) == 4096
    copy.seek(0)
    assert copy.readinto(memoryview(again)[12288:16384]) == 4096
assert map[12288:12296] == map[4096:4104] == loads[12288:12296]
again[12288:12296] = kept
again.close()
print(subprocess.run(["echo", "a child"], capture_output=True).stdout)
def child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def maps_anew():
    other = open("other", "w+b")
    other.truncate(1 << 20)
    mmap.mmap(other.fileno(), 1 << 20)[0:5] = b"child"
    return 3
if os.environ.get("POLLED"):
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    assert any(name.startswith("iou-sqp-") for name in names), names
print(child(maps_anew), open("other", "rb").read(5), child(lambda: map[0]))
map.flush()
"#;

#[test]
fn threads_calls_and_children_of_a_program_do_what_they_do_without() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    does_what_it_does_without(&[], &tempfile::tempdir()?)
}

/// vmio reads and writes the file there by loads and stores.
#[test]
fn a_program_on_persistent_memory_does_what_it_does_without() -> TestResult {
    let Some(folder) = std::env::var_os("VMIO_TEST_DAX") else {
        test_depth::skipped("VMIO_TEST_DAX names no folder on persistent memory");
        return Ok(());
    };
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    does_what_it_does_without(&[], &tempfile::tempdir_in(folder)?)
}

/// A thread of the kernel submits reads and writes, for children too.
#[test]
fn a_program_with_polled_submissions_does_what_it_does_without() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let tried =
        under_with(&["--poll-submissions"], dir.path(), "16M").arg("true").env("VMIO_RING0_LEVEL", "3").output()?;
    let error = String::from_utf8_lossy(&tried.stderr);
    if error.contains("polls submissions") {
        return leave_out(error.trim());
    }
    does_what_it_does_without(&["--poll-submissions"], &tempfile::tempdir()?)
}

#[test]
fn polled_submissions_are_refused_with_other_engines() -> TestResult {
    let folder = tempfile::tempdir()?;
    let mut command = vmio();
    command.args(["run", "--engine", "managed", "--poll-submissions", "--cache", "16M", "--under"]);
    let output = command.arg(folder.path()).args(["--", "true"]).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("poll_submissions"), "{error}");
    assert!(error.contains("use one of these"), "{error}");
    Ok(())
}

fn does_what_it_does_without(options: &[&str], dir: &tempfile::TempDir) -> TestResult {
    let folder = dir.path().join("under");
    std::fs::create_dir(&folder)?;
    let mut command = under_with(options, &folder, "16M");
    command.current_dir(&folder).args(["python3", "-c", PROGRAM]);
    if !options.is_empty() {
        command.env("POLLED", "1");
    }
    if !chooses_level(&mut command, &folder)? {
        return Ok(());
    }
    let printed = succeeded(&mut command)?;
    assert_eq!(printed, "[4096, 12288, 1048576]\nb'a child\\n'\n3 b'child' -11\n");
    let bytes = std::fs::read(folder.join("data"))?;
    let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    for at in (0..bytes.len()).step_by(4096) {
        let read = if at < 1 << 20 { at + 4096 } else { at };
        assert_eq!(word(at), read as u64);
        assert_eq!(&bytes[at + 16..at + 20], b"here");
    }
    Ok(())
}

/// Handlers of signals touch the mapping amid faults on it, and jump out of calls that hold its pages.
#[test]
fn signals_come_as_they_come_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let folder = dir.path().join("under");
    std::fs::create_dir(&folder)?;
    let program = compiled("ring0_signals", dir.path(), &[])?;
    let mut plainly = Command::new(&program);
    assert_eq!(succeeded(plainly.arg(dir.path().join("plain")))?, "400 jumps\n");
    let mut command = under(&folder, "8M");
    command.arg(&program).arg(folder.join("data"));
    if !chooses_level(&mut command, &folder)? {
        return Ok(());
    }
    assert_eq!(succeeded(&mut command)?, "400 jumps\n");
    Ok(())
}
