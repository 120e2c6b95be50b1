//! `vmio run --mode` with `--cache`: the files are in a cache of the process's own, and no other process sees old bytes.

use std::error::Error;
use std::fs;
use std::process::{Command, Output, Stdio};

use crate::common::modes::{SQL, TOOLS, python, random_runs, same_as_plain, served, served_by_all, under};
use crate::common::programs::{compiled, has, leave_out, text};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

/// So little memory that pages of the files are evicted.
const MODES: [&str; 3] = ["posix --cache 8M", "sync --cache 8M", "strict --cache 8M"];

/// The sum of a count over all processes' caches.
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
    for mode in MODES {
        let steps = if mode.starts_with("posix") { 400 } else { 150 };
        let outputs = random_runs(mode, &program, steps, test_depth::seeds(2, 8), same_as_plain)?;
        let misses: u64 = outputs.iter().map(|output| cached(output, "misses")).sum();
        writes += served_by_all(&outputs, "writes_served");
        // At least one for each seed; if not, the test has tested nothing.
        assert!(misses > outputs.len() as u64, "{mode}: {misses} misses of {} seeds", outputs.len());
    }
    assert!(writes > 10, "{writes} writes");
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

#[test]
fn a_handler_that_ends_the_program_in_the_middle_of_a_call_loses_nothing() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("interrupted_writes", dir.path(), &[])?;
    let files = dir.path().join("files");
    fs::create_dir(&files)?;
    for mode in MODES {
        let overwriting = under(mode, &files, &[text(&program)]);
        let mut command = Command::new(&program);
        command.arg(files.join("data")).arg(overwriting.get_program()).args(overwriting.get_args());
        command.env("VMIO_RUN_STORES_AFTER", "100000");
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.matches(": 0 of ").count(), 4, "{mode}: {said}{}", String::from_utf8_lossy(&output.stderr));
        // The report lacks the counts of the interrupted call's file, but shows that it was served.
        assert!(served(&output, "files") > 0, "{mode}: nothing was tested");
    }
    Ok(())
}

#[test]
fn a_fork_in_the_middle_of_anything_takes_nothing_from_the_parent() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("forks", dir.path(), &[])?;
    let forks = test_depth::pick("200", "400");
    for mode in MODES {
        let output =
            under(mode, dir.path(), &[text(&program), text(&dir.path().join("data")), "read", forks]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "0 old bytes\n", "{mode}: {:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
        assert!(served(&output, "reads_served") > 0, "{mode}: nothing was tested");
    }
    Ok(())
}

/// Overwrites more than fits the cache, and reads the file by another description.
const OVERWRITE: &str = r#"
import random
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
        if n == 20: leased(fd)
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
        // Bytes that the page cache has not written yet have no space on some file systems.
        succeeded(Command::new("sync").arg(dir.path().join("data")))?;
        let output =
            under(mode, dir.path(), &["python3", "-c", &python(OVERWRITE)]).current_dir(dir.path()).output()?;
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
fd = leased(os.open("data", os.O_RDWR), lambda fd, n: os.pwrite(fd, b"old", n))
for again in range(2):
    for n in range(3000): assert os.pwrite(fd, n.to_bytes(2, "little"), 1 << 20 | n * 2) == 2
    assert os.fstat(fd).st_size == (1 << 20) + 6000
# A hole, and further than the cache has addresses.
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
    let output = under(MODES[0], dir.path(), &["python3", "-c", &python(script)]).current_dir(dir.path()).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(served(&output, "writes_served") > 2000, "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<u8> = (0..3000_u16).flat_map(u16::to_le_bytes).collect();
    assert_eq!(fs::read(&file)?[1 << 20..], expected);
    Ok(())
}

/// Overwrites a block again and again, and prints its number after each hundred writes; syncs nothing.
const WRITER: &str = r#"
fd = os.open("data", os.O_RDWR)
for n in range(1, 1 << 30):
    os.pwrite(fd, n.to_bytes(8, "little") * 512, 8192)
    if n == 20: leased(fd)
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
        let mut command = under(mode, dir.path(), &["python3", "-c", &python(WRITER)]);
        command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut writer = command.spawn()?;
        let mut input = writer.stdin.take().ok_or("it is piped")?;
        let mut lines = BufReader::new(writer.stdout.take().ok_or("it is piped")?).lines();
        for _ in 0..3 {
            let number: u64 = lines.next().ok_or("the writer has ended")??.parse()?;
            // The kernel makes this open wait until it has the lease back.
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

/// Keeps a file in its cache, changes its block after each line of input, and prints the block's number.
const HOLDER: &str = r#"
fd, n = os.open("data", os.O_RDWR), 0
def write():
    global n
    n += 1
    assert os.pwrite(fd, n.to_bytes(8, "little") * 512, 8192) == 4096
while True:
    leased(fd, lambda fd, n: write())
    for _ in range(50): write()
    print(n, flush=True)
    if sys.stdin.readline() == "": break
    assert os.pread(fd, 4096, 8192) == n.to_bytes(8, "little") * 512
"#;

/// Opens the file in some way, and prints the errno, or the block's number.
const OPENER: &str = r#"
import ctypes, errno, os, sys
c, how, name = ctypes.CDLL(None, use_errno=True), sys.argv[1], sys.argv[2]
c.fopen.restype = c.freopen.restype = ctypes.c_void_p
c.fileno.argtypes = [ctypes.c_void_p]
folder = os.open(".", os.O_DIRECTORY)
def stream(stream):
    if not stream: raise OSError(ctypes.get_errno(), how)
    return c.fileno(stream)
def plain(fd):
    if fd < 0: raise OSError(ctypes.get_errno(), how)
    return fd
old = c.fopen(b"/dev/null", b"r") if how == "freopen" else None
try:
    fd = {
        "read": lambda: os.open(name, os.O_RDONLY),
        "write": lambda: os.open(name, os.O_WRONLY | os.O_CREAT),
        "truncate": lambda: os.open(name, os.O_RDWR | os.O_TRUNC),
        "openat": lambda: os.open(name, os.O_RDWR, dir_fd=folder),
        "creat": lambda: plain(c.creat(name.encode(), 0o600)),
        "nonblock": lambda: os.open(name, os.O_RDONLY | os.O_NONBLOCK),
        "fopen": lambda: stream(c.fopen(name.encode(), b"r+,ccs=UTF-8")),
        "fopen for reads": lambda: stream(c.fopen(name.encode(), b"re")),
        "fopen cuts": lambda: stream(c.fopen(name.encode(), b"w")),
        "freopen": lambda: stream(c.freopen(name.encode(), b"r", ctypes.c_void_p(old))),
    }[how]()
    print(int.from_bytes(os.pread(fd, 8, 8192), "little") if how in ("read", "openat", "freopen") else "open")
except OSError as error: print(errno.errorcode[error.errno])
"#;

/// Opens a file that another process has in its cache, in each of these ways, and checks the results. Checks the file in the end.
fn opened_by_another(mode: &str, ways: &[(&str, &str)]) -> Result<(), Box<dyn Error>> {
    use std::io::{BufRead, BufReader, Write};
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data");
    fs::write(&file, patterned(1 << 20))?;
    succeeded(Command::new("sync").arg(&file))?;
    let mut command = under(mode, dir.path(), &["python3", "-c", &python(HOLDER)]);
    command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut holder = command.spawn()?;
    let mut input = holder.stdin.take().ok_or("it is piped")?;
    let mut lines = BufReader::new(holder.stdout.take().ok_or("it is piped")?).lines();
    let mut number = String::new();
    for (at, (way, expected)) in ways.iter().enumerate() {
        if at > 0 {
            input.write_all(b"on\n")?;
        }
        number = lines.next().ok_or("the holder has ended")??;
        let mut opener = under(mode, dir.path(), &["python3", "-c", OPENER, way, "data"]);
        let found = succeeded(opener.current_dir(dir.path()))?;
        let expected = if *expected == "its number" { &number } else { *expected };
        assert_eq!(found.trim_end(), expected, "{mode}: {way}");
    }
    drop(input);
    let output = holder.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last: u64 = number.parse()?;
    assert!(output.status.success(), "{mode}: {said}");
    assert!(served(&output, "writes_served") > 40, "{mode}: {said}");
    let mut wanted = patterned(1 << 20);
    wanted[8192..12288].copy_from_slice(&last.to_le_bytes().repeat(512));
    assert!(fs::read(&file)? == wanted, "{mode}: what was written last is not in the file");
    Ok(())
}

#[test]
fn who_opens_it_too_is_refused_if_that_is_wanted_and_nothing_is_lost() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let ways = ["read", "write", "truncate", "openat", "creat", "fopen", "fopen for reads", "fopen cuts", "freopen"];
    let refused: Vec<_> = ways.map(|way| (way, "EBUSY")).into_iter().chain([("nonblock", "EAGAIN")]).collect();
    for mode in MODES {
        opened_by_another(&format!("{mode} --when-shared refuse"), &refused)?;
        for way in ["read", "openat", "freopen"] {
            opened_by_another(&format!("{mode} --when-shared wait"), &[(way, "its number")])?;
        }
        opened_by_another(mode, &[("read", "its number")])?;
    }
    Ok(())
}

/// Opens that must succeed: of the process's own file, of a file that nobody has in a cache, and of other objects than files.
const ALONE: &str = r#"
import ctypes, fcntl, tempfile
c = ctypes.CDLL(None, use_errno=True)
c.fopen.restype = ctypes.c_void_p
c.fclose.argtypes = [ctypes.c_void_p]
fd = os.open("data", os.O_RDWR)
def opened_anew():
    global fd
    os.close(fd)
    fd = leased(os.open("data", os.O_RDWR), lambda fd, n: os.pwrite(fd, b"x", n))
opened_anew()
os.pwrite(fd, b"own", 5000)
again = os.open("data", os.O_RDONLY)
assert os.pread(again, 3, 5000) == b"own" and not fcntl.fcntl(again, fcntl.F_GETFL) & os.O_NONBLOCK
os.close(again)
opened_anew()
fcntl.lockf(fd, fcntl.LOCK_EX, 10)
os.pwrite(fd, b"too", 5000)
again = c.fopen(b"data", b"r")
assert again, ctypes.get_errno()
if os.fork() == 0:
    # A record lock is not inherited: it must be the parent's still.
    try: fcntl.lockf(os.open("data", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
    except BlockingIOError: os._exit(0)
    os._exit(1)
assert os.wait()[1] == 0, "the record lock is gone"
c.fclose(again)
new = os.open("new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
assert not fcntl.fcntl(new, fcntl.F_GETFL) & os.O_NONBLOCK
with tempfile.NamedTemporaryFile(dir=".") as made: made.write(b"made")
os.mkfifo("pipe")
if os.fork() == 0:
    time.sleep(.1)
    os.write(os.open("pipe", os.O_WRONLY), b"sent")
    os._exit(0)
assert os.read(os.open("pipe", os.O_RDONLY), 9) == b"sent", "the open has not waited for the other end"
try: os.open("none", os.O_RDONLY)
except FileNotFoundError: print("done")
"#;

#[test]
fn a_process_is_not_refused_what_it_has_itself() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("data"), patterned(1 << 20))?;
        succeeded(Command::new("sync").arg(dir.path().join("data")))?;
        let mode = format!("{mode} --when-shared refuse");
        let said = succeeded(under(&mode, dir.path(), &["python3", "-c", &python(ALONE)]).current_dir(dir.path()))?;
        assert_eq!(said, "done\n", "{mode}");
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
    refused(&mut with(&["--cache", "1M"]), "it may be 6 MiB to 16 TiB")?;
    refused(&mut with(&["--cache", "8M", "--engine", "kernel"]), "cannot be used with")?;
    refused(&mut with(&["--when-shared", "refuse"]), "--cache <CACHE>")
}
