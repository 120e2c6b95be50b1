//! Programs under `vmio run --mode` on a mounted vmio-pmfs that cut and append, lock and fork.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::TestResult;
use crate::common::modes::{served, under};
use crate::common::programs::{compiled, has, leave_out, text};
use crate::pmfs::{Mounted, can_mount, fsck, made};

/// A mounted file system on what counts as persistent memory.
struct Lab {
    dir: tempfile::TempDir,
    image: PathBuf,
    mounted: Mounted,
}

impl Lab {
    fn new() -> Result<Option<Lab>, Box<dyn Error>> {
        Lab::with(&[])
    }

    /// With options of the mount. None where a test cannot run.
    fn with(options: &[&str]) -> Result<Option<Lab>, Box<dyn Error>> {
        if !can_mount() {
            return Ok(None);
        }
        if !has("python3") {
            leave_out("python3 is not installed")?;
            return Ok(None);
        }
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let image = made(dir.path())?;
        let mounted =
            Mounted::with(&image, &dir.path().join("mounted"), &[&["--assume-persistent"], options].concat())?;
        Ok(Some(Lab { dir, image, mounted }))
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Runs a Python program in a mode, on a file. It must succeed.
    fn python(&self, mode: &str, program: &str) -> Result<Output, Box<dyn Error>> {
        let (folder, program) = (self.folder(), format!("{SERVED}{program}"));
        succeeded(under(mode, &folder, &["python3", "-c", &program, text(&folder.join("file"))]))
    }

    fn end(self) -> TestResult {
        self.mounted.unmount()?;
        fsck(&self.image)
    }
}

fn succeeded(mut command: Command) -> Result<Output, Box<dyn Error>> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stdout));
    Ok(output)
}

/// The beginning of each program: a file that is served by its extents.
const SERVED: &str = r#"
import fcntl, mmap, os, socket, sys, time
path = sys.argv[1]
def served(flags=os.O_APPEND):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    os.write(fd, b"x" * 5000)
    # The thread that takes the lease has no time of its own on a busy machine.
    for n in range(30000):
        os.pread(fd, 1, n % 5000)
        if "/image" in open("/proc/self/maps").read(): return fd
        time.sleep(.001)
    sys.exit("the file is not served")
"#;

#[test]
fn a_file_that_the_program_cuts_stays_served() -> TestResult {
    let Some(lab) = Lab::new()? else { return Ok(()) };
    let program = r#"
fd = served()
for round in range(300):
    os.ftruncate(fd, 0)
    for n in range(10): assert os.write(fd, b"%04d" % round * 100) == 400
    assert os.fstat(fd).st_size == 4000
    assert os.pread(fd, 5000, 3996) == b"%04d" % round
    os.ftruncate(fd, 3000)
    assert os.pread(fd, 5000, 2996) == b"%04d" % round
    os.ftruncate(fd, 6000)
    assert os.pread(fd, 5000, 2996) == b"%04d" % round + bytes(3000)
"#;
    for mode in ["posix", "sync"] {
        let output = lab.python(mode, program)?;
        let (reads, writes) = (served(&output, "reads_served"), served(&output, "writes_served"));
        assert!(reads >= 900 && writes >= 2900, "{mode}: {reads} reads, {writes} writes");
    }
    lab.end()
}

#[test]
fn appends_of_several_buffers_are_served() -> TestResult {
    let Some(lab) = Lab::new()? else { return Ok(()) };
    let program = r#"
for flags in os.O_APPEND, 0:
    open(path, "w").close()
    fd = served(flags)
    for n in range(500):
        parts = [b"%04d" % n * size for size in (1, 25, 300)] + [b""]
        assert os.writev(fd, parts) == 4 * 326
    assert os.lseek(fd, 0, os.SEEK_CUR) == 5000 + 500 * 4 * 326
    found = os.pread(fd, 1 << 20, 5000)
    assert found == b"".join(b"%04d" % n * 326 for n in range(500))
    os.close(fd)
"#;
    for mode in ["strict", "sync", "posix"] {
        let output = lab.python(mode, program)?;
        let (logged, writes) = (served(&output, "writes_logged"), served(&output, "writes_served"));
        assert!(writes >= 950 && logged < 50, "{mode}: {writes} writes, {logged} of them in the log");
    }
    lab.end()
}

#[test]
fn children_have_no_descriptors_of_their_parents_leases() -> TestResult {
    let Some(lab) = Lab::new()? else { return Ok(()) };
    let program = r#"
fd = served()
def links():
    for number in os.listdir("/proc/self/fd"):
        try: yield os.readlink("/proc/self/fd/" + number)
        except FileNotFoundError: pass
def leases(): return [link for link in links() if link.startswith("socket:") or "/image" in link or "vmio-not-leased" in link]
assert len(leases()) == 3, leases()
child = os.fork()
if child == 0:
    left = leases()
    if left: print("left in the child:", left, flush=True)
    # It may have leases of its own.
    own = served()
    os._exit(1 if left else 0)
assert os.waitpid(child, 0)[1] == 0
assert len(leases()) == 3, leases()
assert os.write(fd, b"more") == 4
"#;
    lab.python("posix", program)?;
    lab.end()
}

#[test]
fn messages_reach_what_no_lease_shows_yet() -> TestResult {
    let Some(lab) = Lab::new()? else { return Ok(()) };
    let program = r#"
part = 2 << 20
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 40 * part)
map = mmap.mmap(fd, 40 * part)
def at(n): return memoryview(map)[n * part:n * part + 1000]
for n, kind in enumerate((socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET)):
    here, there = socket.socketpair(socket.AF_UNIX, kind)
    there.setblocking(False)
    # A hole.
    assert here.send(at(9 * n + 1)) == 1000
    assert there.recv_into(at(9 * n + 2)) == 1000
    for place, receive in ((4, there.recv_into), (5, there.recvfrom_into), (6, lambda buffer: there.recvmsg_into([buffer]))):
        here.send(b"%d" % place * 1000)
        receive(at(9 * n + place))
        assert at(9 * n + place) == b"%d" % place * 1000
    assert here.sendmsg([at(9 * n + 7)]) == 1000
    assert there.recv(2000) == bytes(1000)
"#;
    lab.python("posix", program)?;
    lab.end()
}

fn program(name: &str, arguments: &[&str], expected: &str) -> TestResult {
    // Whoever waits for the server to lose patience waits too long for this test.
    let Some(lab) = Lab::with(&["--lease-timeout", "3000"])? else { return Ok(()) };
    let (program, folder) = (compiled(name, lab.dir.path(), &[])?, lab.folder());
    let files: Vec<PathBuf> = ["file", "other"].iter().map(|name| folder.join(name)).collect();
    let arguments = arguments.iter().map(|argument| match argument.parse::<usize>() {
        Ok(number @ 0..2) => text(&files[number]),
        _ => argument,
    });
    let command: Vec<&str> = std::iter::once(text(&program)).chain(arguments).collect();
    let output = succeeded(under("posix", Path::new(&folder), &command))?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    lab.end()
}

#[test]
fn a_child_without_descriptors_has_its_parents_mapping() -> TestResult {
    program("heirs", &["0", "limits"], "all children had it\n")
}

#[test]
fn mappings_of_a_locked_file_keep_one_descriptor_and_the_lock() -> TestResult {
    program("heirs", &["0", "locks"], "locked: 1, few descriptors more: 1, none: 1\n")
}

#[test]
fn fork_handlers_may_touch_what_no_lease_shows_yet() -> TestResult {
    program("heirs", &["0", "handlers"], "16 parts were touched\n")
}

#[test]
fn an_append_from_a_mapping_waits_for_nobody_who_waits_for_it() -> TestResult {
    program("sources", &["0", "1", "3000"], "appended\n")
}
