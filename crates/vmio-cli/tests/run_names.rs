//! `vmio run --mode`: calls about names, attributes and descriptors return the same as without vmio, in each mode.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::modes::{by, prints_as_plain, random_runs, same_output, served, served_by_all, under};
use crate::common::programs::{as_nobody, compiled, for_everybody, has, leave_out, plain, source, text};
use crate::common::{TestResult, succeeded};

const MODES: [&str; 3] = ["posix", "sync", "strict"];
const CACHED_MODES: [&str; 3] = ["posix --cache 8M", "sync --cache 8M", "strict --cache 8M"];
const STEPS: u32 = 500;

fn random_names(folder: &Path) -> Result<String, Box<dyn Error>> {
    let program = compiled("random_names", folder, &[text(&source("random_paths"))])?;
    Ok(text(&program).to_owned())
}

#[test]
fn random_names_are_what_they_are_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = random_names(dir.path())?;
    for mode in MODES.into_iter().chain(CACHED_MODES) {
        // In the other modes each call waits for the device.
        let (quick, deep) = if mode.starts_with("posix") { (2, 16) } else { (1, 4) };
        let outputs = random_runs(mode, Path::new(&program), STEPS, test_depth::seeds(quick, deep), prints_as_plain)?;
        let (reads, flushes) = (served_by_all(&outputs, "reads_served"), served_by_all(&outputs, "metadata_flushes"));
        // At least that for each seed; if not, the test has tested nothing.
        let seeds = outputs.len() as u64;
        assert!(
            reads > 10 * seeds && (mode.starts_with("posix") || flushes > 50 * seeds),
            "{mode}: {reads} reads, {flushes} flushes, {seeds} seeds"
        );
    }
    Ok(())
}

/// Runs a program as a user other than root, for whom permissions matter.
fn as_nobody_prints(mode: &str, dir: &Path, program: &[&str]) -> Result<Output, Box<dyn Error>> {
    let folders = ["without", "with"].map(|name| dir.join(name));
    for folder in &folders {
        fs::create_dir(folder)?;
    }
    let vmio = Command::new(for_everybody(dir)?);
    let (mut expected, mut command) = (plain(program), by(vmio, mode, &folders[1], program));
    let [expected, command] = [(&mut expected, &folders[0]), (&mut command, &folders[1])]
        .map(|(command, folder)| as_nobody(command.current_dir(folder), folder));
    same_output(expected, command)
}

#[test]
fn so_they_are_for_a_user_without_rights() -> TestResult {
    let dir = tempfile::tempdir()?;
    for_everybody(dir.path())?;
    let program = random_names(dir.path())?;
    for mode in MODES {
        random_runs(mode, Path::new(&program), STEPS, test_depth::seeds(1, 4), as_nobody_prints)?;
    }
    Ok(())
}

/// Prints the results and errors of calls.
const TELL: &str = r#"
import errno, fcntl, os, stat, struct, sys, time
def told(what, call, *arguments, **more):
    try: answer = call(*arguments, **more)
    except OSError as error: answer = errno.errorcode[error.errno]
    print(*what, "a descriptor" if call is os.open and isinstance(answer, int) else answer)
    return answer
def leased(name, flags):
    fd = os.open(name, flags)
    for n in range(30): os.pread(fd, 10, n)
    time.sleep(.2)
    for n in range(30): os.pread(fd, 10, n)
    return fd
"#;

/// Runs a Python program, which must print the same in each mode as without vmio.
fn tells_the_same(modes: &[&str], script: &str) -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in modes {
        let dir = tempfile::tempdir()?;
        prints_as_plain(mode, dir.path(), &["python3", "-c", &format!("{TELL}{script}")])
            .map_err(|error| format!("{mode}: {error}"))?;
    }
    Ok(())
}

const BUFFERS: &str = r#"
open("data", "wb").write(bytes(100000))
for fd in (999, leased("data", os.O_RDWR), os.open("data", os.O_WRONLY), os.open("data", os.O_RDONLY)):
    for count in (1024, 1025):
        print(fd == 999, count)
        buffers = [bytearray(1)] * count
        told(("readv",), os.readv, fd, buffers)
        told(("preadv",), os.preadv, fd, buffers, 5)
        told(("writev",), os.writev, fd, buffers)
        told(("pwritev",), os.pwritev, fd, buffers, 5)
        told(("pwritev, durably",), os.pwritev, fd, buffers, 5, os.RWF_DSYNC)
"#;

#[test]
fn too_many_buffers_are_not_what_is_wrong_with_a_closed_descriptor() -> TestResult {
    tells_the_same(&MODES, BUFFERS)
}

const FAR: &str = r#"
open("data", "wb").write(bytes(100000))
for fd in (999, leased("data", os.O_RDWR), os.open("data", os.O_WRONLY), os.open("data", os.O_RDONLY)):
    for offset in (-1, -4096, (1 << 63) - 1, (1 << 63) - 10, 1 << 60, 1 << 31, 100000):
        print(fd == 999, offset)
        told(("pread",), os.pread, fd, 10, offset)
        told(("pwrite nothing",), os.pwrite, fd, b"", offset)
        if offset != 1 << 31: told(("pwrite",), os.pwrite, fd, b"0123456789", offset)
        told(("lseek",), os.lseek, fd, offset, os.SEEK_SET)
        told(("read there",), os.read, fd, 10)
        told(("lseek on",), os.lseek, fd, 1 << 60, os.SEEK_CUR)
        told(("lseek back",), os.lseek, fd, 5, os.SEEK_SET)
"#;

#[test]
fn where_no_file_has_bytes_calls_fail_as_they_do_without() -> TestResult {
    tells_the_same(&["posix", "posix --cache 8M", "strict"], FAR)
}

const OPENS: &str = r#"
import itertools
def prepare():
    open("file", "w").close(); os.mkdir("folder"); os.mkfifo("pipe"); os.symlink("file", "to_file"); os.symlink("folder", "to_folder"); os.symlink("nothing", "to_nothing")
names = ["file", "file/", "file/.", "folder", "folder/", "folder/.", ".", "pipe", "to_file", "to_file/", "to_folder", "to_folder/", "to_nothing", "to_nothing/", "absent", "absent/", "absent/file", "file/absent", "", "l" * 300]
more = [os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_PATH]
prepare()
for name, way in itertools.product(names, (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_DSYNC)):
    for some in itertools.product((0, 1), repeat=len(more)):
        flags = way | os.O_NONBLOCK | sum(flag for flag, is_asked in zip(more, some) if is_asked)
        fd = told((name[:9], oct(flags)), os.open, name, flags, 0o600)
        if isinstance(fd, int):
            print(oct(fcntl.fcntl(fd, fcntl.F_GETFL)), oct(os.fstat(fd).st_mode))
            os.close(fd)
        for made in ("nothing", "absent"):
            if os.path.lexists(made): os.unlink(made)
"#;

#[test]
fn files_are_opened_with_all_flags_as_without() -> TestResult {
    tells_the_same(&MODES, OPENS)
}

const ATTRIBUTES: &str = r#"
open("file", "w").close(); os.mkdir("folder"); os.mkfifo("pipe"); os.symlink("file", "link")
for name in ("file", "folder", "pipe", "link"):
    told((name, "chmod"), os.chmod, name, 0o700)
    told((name, "lchown"), os.chown, name, -1, os.getgid(), follow_symlinks=False)
    told((name, "utime"), os.utime, name, (1000, 2000), follow_symlinks=False)
    for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_PATH, os.O_PATH | os.O_NOFOLLOW):
        fd = os.open(name, flags)
        told((name, flags, "fchmod"), os.fchmod, fd, 0o710)
        told((name, flags, "fchown"), os.fchown, fd, -1, os.getgid())
        told((name, flags, "utime"), os.utime, fd, (1000, 3000))
    print(oct(os.lstat(name).st_mode), os.lstat(name).st_mtime)
"#;

#[test]
fn pipes_links_and_what_is_open_by_its_path_have_attributes() -> TestResult {
    tells_the_same(&MODES, ATTRIBUTES)
}

const LEASED: &str = r#"
open("data", "wb").write(bytes(100000))
for flags in (os.O_RDONLY, os.O_RDWR):
    fd = leased("data", flags)
    told(("flags",), fcntl.fcntl, fd, fcntl.F_GETFL)
    for more in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_TRUNC):
        again = told(("again",), os.open, "data", more | os.O_NONBLOCK)
        os.close(again)
    told(("length",), lambda: os.fstat(fd).st_size)
    os.close(fd)
pipe = os.mkfifo("pipe") or os.open("pipe", os.O_RDWR)
for n in range(20): told(("a pipe",), os.pwrite, pipe, b"0", n)
for n in range(20): told(("a pipe",), os.write, pipe, b"0")
"#;

#[test]
fn a_program_is_not_in_its_own_way() -> TestResult {
    tells_the_same(&["posix", "sync --cache 8M", "strict"], LEASED)
}

/// Changed attributes of a leased file are flushed.
#[test]
fn attributes_of_a_leased_file_are_flushed() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let script = "open('data', 'wb').write(bytes(100000)); fd = leased('data', os.O_RDWR)\n\
                  for n in range(100): os.chmod('data', 0o600 + n % 8)";
    for mode in ["sync", "strict"] {
        let dir = tempfile::tempdir()?;
        let mut command = under(mode, dir.path(), &["python3", "-c", &format!("{TELL}{script}")]);
        let output = command.current_dir(dir.path()).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(served(&output, "metadata_flushes") >= 100, "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A shell chooses its descriptors' numbers itself.
const NUMBERS: &str = r#"
exec 3>a; exec 4>b; exec 5>c; exec 6>d
for n in 1 2 3 4 5 6 7 8 9; do echo $n >&4; echo $n >&6; done
exec 7>e; exec 8>f; echo seven >&7; echo eight >&8
cat a b c d e f
"#;

#[test]
fn a_shell_has_the_descriptors_that_it_chooses() -> TestResult {
    for mode in MODES {
        prints_as_plain(mode, tempfile::tempdir()?.path(), &["sh", "-c", NUMBERS])
            .map_err(|error| format!("{mode}: {error}"))?;
    }
    Ok(())
}

/// Another process says whether the program still has its lock after each call.
const LOCKS: &str = r#"
elsewhere = sys.argv[1] if len(sys.argv) > 1 else "elsewhere"
def is_locked(name):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try: fcntl.lockf(open(name, "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0
kept = []
for name in ("data", elsewhere):
    open(name, "wb").write(bytes(100000))
    fd = os.open(name, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    def still(what): print(what, is_locked(name))
    os.chmod(name, 0o600); still("chmod")
    os.utime(name, (1000, 2000)); still("utime")
    os.truncate(name, 5000); still("truncate")
    os.setxattr(name, "user.one", b"1"); still("setxattr")
    os.rename(name, name + ".moved"); os.rename(name + ".moved", name); still("rename")
    os.link(name, name + ".linked"); os.unlink(name + ".linked"); still("link")
    kept.append(os.open(name, os.O_RDWR)); still("open")
    kept.append(os.open(name, os.O_RDWR | os.O_CREAT)); still("open or create")
    os.fdopen(fd, "r+b", closefd=False).write(b"more"); still("a file object")
    os.close(kept[-1]); still("close")
"#;

const A_STREAM: &str = r#"
import ctypes
fcntl.lockf(fd, fcntl.LOCK_EX)
ctypes.CDLL(None).fdopen(fd, b"r+"); still("a stream")
"#;

#[test]
fn record_locks_are_given_up_when_they_are_without() -> TestResult {
    tells_the_same(&["posix", "sync"], &format!("{LOCKS}{A_STREAM}"))?;
    tells_the_same(&["strict"], LOCKS)?;
    // The same for a file that is under none of the folders.
    for mode in ["sync", "strict"] {
        let dir = tempfile::tempdir()?;
        let script = format!("{TELL}{LOCKS}");
        let said = [false, true].map(|is_in_mode| -> Result<String, Box<dyn Error>> {
            let (inside, outside) = (dir.path().join(format!("{is_in_mode}")), dir.path().join("outside"));
            fs::create_dir(&inside)?;
            let program = ["python3", "-c", &script, text(&outside)];
            let mut command = if is_in_mode { under(mode, &inside, &program) } else { plain(&program) };
            succeeded(command.current_dir(&inside))
        });
        let [without, with] = said;
        assert_eq!(without?, with?, "{mode}");
    }
    Ok(())
}
