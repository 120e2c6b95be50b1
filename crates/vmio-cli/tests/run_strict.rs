//! `vmio run --mode strict`: each write is durable and atomic when it returns, whichever process dies meanwhile.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::interruption::interrupted;
use crate::common::modes::by;
use crate::common::modes::{SQL, TOOLS, random_runs, same_as_plain, served, served_by_all, under};
use crate::common::programs::{as_nobody, compiled, for_everybody, has, leave_out, plain, text};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

const BLOCK: usize = 300_000;
const BLOCKS: usize = 4;

/// Writes block after block, each full of its number, and prints the number.
const WRITER: &str = r#"
import os, sys
path, block, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_RDWR)
for n in range(1, 1 << 30):
    data = (n % 65536).to_bytes(2, "little") * (block // 2)
    at = n % blocks * block
    if n % 3: done = os.pwrite(fd, data, at)
    else: done = os.pwritev(fd, [data[:1001], data[1001:]], at)
    assert done == block
    print(n, flush=True)
"#;

fn writer(folder: &Path, is_strict: bool) -> Command {
    let file = folder.join("data");
    let program = ["python3", "-c", WRITER, text(&file), "300000", "4"];
    if is_strict { under("strict", folder, &program) } else { plain(&program) }
}

/// Whether each block is whole, and holds the last write to it, or the write under way.
fn holds_what_was_written(file: &Path, last: u64) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    for block in 0..BLOCKS as u64 {
        let expected =
            (0..BLOCKS as u64).map(|back| last - back).find(|number| number % BLOCKS as u64 == block).unwrap_or(0);
        let at = block as usize * BLOCK;
        let found =
            bytes.get(at..at + BLOCK).ok_or_else(|| format!("block {block} is missing: {} bytes", bytes.len()))?;
        let number = u64::from(u16::from_le_bytes([found[0], found[1]]));
        if found.chunks(2).any(|pair| pair != &found[..2]) {
            return Err(format!("block {block} is torn"));
        }
        let may_be = [expected, expected + BLOCKS as u64];
        if number != may_be[0] && !(number == may_be[1] && number == last + 1) {
            return Err(format!("block {block} holds {number} and not {expected}; {last} was the last"));
        }
    }
    Ok(())
}

#[test]
fn a_write_is_whole_or_not_there_after_a_kill() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut replayed = 0;
    for round in 0..8 {
        let file = dir.path().join("data");
        fs::write(&file, vec![0; BLOCK * BLOCKS])?;
        let last = interrupted(writer(dir.path(), true), 10 + round, |writer| Ok(writer.kill()?))?;
        let said = succeeded(vmio().arg("recover").arg("--json").arg(dir.path()))?;
        let report: serde_json::Value = serde_json::from_str(&said)?;
        replayed += report["logs"].as_array().map_or(0, Vec::len);
        holds_what_was_written(&file, last)?;
        assert!(!dir.path().join(".vmio").exists());
    }
    assert!(replayed > 0, "no log was left");
    Ok(())
}

#[test]
fn what_a_write_has_brought_survives_the_power() -> TestResult {
    survives_the_power(FileSystem::Ext4)
}

#[test]
fn so_it_does_on_xfs() -> TestResult {
    if !has("mkfs.xfs") {
        return leave_out("mkfs.xfs (xfsprogs) is not installed");
    }
    survives_the_power(FileSystem::Xfs)
}

fn survives_the_power(kind: FileSystem) -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
    for round in 0..4 {
        // The first round runs without vmio, and must lose the last writes: otherwise the test shows nothing.
        let is_strict = round > 0;
        let file = disk.path().join("data");
        fs::write(&file, vec![0; BLOCK * BLOCKS])?;
        succeeded(Command::new("sync").arg("-f").arg(&file))?;
        let last = interrupted(writer(disk.path(), is_strict), 20 + 7 * round, |_| disk.cut_power())?;
        disk.start_again()?;
        if is_strict {
            succeeded(vmio().arg("recover").arg(disk.path()))?;
        }
        let found = holds_what_was_written(&file, last);
        assert_eq!(found.is_ok(), is_strict, "round {round}: {found:?}");
    }
    Ok(())
}

/// Appends records to one file, and prints their numbers.
const APPENDER: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for n in range(int(sys.argv[3])):
    record = f"{sys.argv[2]} {n} ".encode().ljust(199, b".") + b"\n"
    assert os.write(fd, record) == 200
    print(n, flush=True)
"#;

#[test]
fn records_of_several_processes_are_all_there_though_one_is_killed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("records");
    fs::write(&file, "")?;
    let command = |name: &str, records: &str| {
        let mut command = under("strict", dir.path(), &["python3", "-c", APPENDER, text(&file), name, records]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    // This open file keeps the appenders from a lease until the kill, however fast they are.
    let open = fs::File::open(&file)?;
    let others = ["a", "b"].map(|name| command(name, "150").spawn());
    let killed = interrupted(command("killed", "100000"), 60, |writer| Ok(writer.kill()?))?;
    drop(open);
    let mut expected = vec![("killed", killed)];
    let mut shared = 0;
    for (name, other) in ["a", "b"].into_iter().zip(others) {
        let output = other?.wait_with_output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        shared += served(&output, "shared_writes");
        expected.push((name, 149));
    }
    assert!(shared > 0, "nothing was written in turn");
    succeeded(vmio().arg("recover").arg(dir.path()))?;
    let found = fs::read_to_string(&file)?;
    let mut counts = std::collections::HashMap::new();
    for line in found.lines() {
        let mut words = line.split(' ');
        let (name, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().parse::<u64>());
        assert!(line.len() == 199 && number.is_ok(), "torn: {line:?}");
        let count = counts.entry(name).or_insert(0);
        assert_eq!(number?, *count, "of {name}");
        *count += 1;
    }
    for (name, last) in expected {
        let count = counts[name];
        // The killed process may not have printed its last record.
        assert!(
            count == last + 1 || name == "killed" && count == last + 2,
            "{name}: {count} records, {last} was the last"
        );
    }
    Ok(())
}

/// Dies with its writes in its log. The second program has the file open meanwhile, and cuts it.
const DIES: &str = r#"
import os, signal
fd = os.open("out", os.O_RDWR)
for n in range(20): os.pwrite(fd, b"old" * 1000, n * 3000)
os.kill(os.getpid(), signal.SIGKILL)
"#;
const CUTS: &str = r#"
import os, subprocess, sys
fd = os.open("out", os.O_RDWR)
subprocess.run([sys.executable, "dies.py"])
os.ftruncate(fd, 0)
os.pwrite(fd, b"hello", 0)
"#;

#[test]
fn what_a_dead_process_has_logged_comes_not_back_over_newer_contents() -> TestResult {
    for renewed in [
        "python3 dies.py; printf hello > out",
        "python3 dies.py; python3 -c 'open(\"out\", \"w\").write(\"hello\")'",
        "python3 dies.py; truncate -s 0 out; printf hello >> out",
        "python3 dies.py; sed -n '1s/.*/hello/p' other | tr -d '\\n' | sort -o out; truncate -s 5 out",
        "python3 cuts.py",
    ] {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("dies.py"), DIES)?;
        fs::write(dir.path().join("cuts.py"), CUTS)?;
        fs::write(dir.path().join("out"), vec![1; 4096])?;
        fs::write(dir.path().join("other"), "one\ntwo\n")?;
        let script = format!("{renewed}; printf other >> other; cat out > read");
        let mut command = under("strict", dir.path(), &["sh", "-c", &script]);
        succeeded(command.current_dir(dir.path()))?;
        assert_eq!(fs::read_to_string(dir.path().join("read"))?, "hello", "{renewed}");
        succeeded(vmio().arg("recover").arg(dir.path()))?;
        assert_eq!(fs::read_to_string(dir.path().join("out"))?, "hello", "{renewed}, and later");
    }
    Ok(())
}

#[test]
fn random_calls_return_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("random_calls", dir.path(), &[])?;
    let mut seeds = test_depth::seeds(2, 6);
    let mut outputs = random_runs("strict", &program, 150, seeds.clone(), same_as_plain)?;
    let counts = |outputs: &[Output]| ["writes_logged", "shared_writes"].map(|count| served_by_all(outputs, count));
    let is_enough = |[logged, shared]: [u64; 2]| test_depth::seeds_are_chosen() || shared > 0 && logged > shared;
    // Which writes are shared depends on when files are leased: more seeds until some were.
    while !is_enough(counts(&outputs)) && seeds.end < 12 {
        seeds = seeds.end..seeds.end + 1;
        outputs.extend(random_runs("strict", &program, 150, seeds.clone(), same_as_plain)?);
    }
    let [logged, shared] = counts(&outputs);
    assert!(is_enough([logged, shared]), "{logged} writes, {shared} of them shared");
    Ok(())
}

#[test]
fn programs_do_what_they_do_without() -> TestResult {
    if !has("sqlite3") || !has("git") {
        return leave_out("sqlite3 or git is not installed");
    }
    for mode in ["delete", "wal", "truncate"] {
        let dir = tempfile::tempdir()?;
        let output = same_as_plain(
            "strict",
            dir.path(),
            &["sqlite3", "database", &format!("PRAGMA journal_mode = {mode};{SQL}")],
        )?;
        assert!(served(&output, "writes_logged") > 100, "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let dir = tempfile::tempdir()?;
    same_as_plain("strict", dir.path(), &["sh", "-c", TOOLS])?;
    Ok(())
}

/// Tries to close and replace the descriptors of its log, and writes on, as does a child.
const DESCRIPTORS: &str = r#"
import os, sys
fd = os.open("data", os.O_RDWR | os.O_CREAT)
os.write(fd, b"first ")
own = [int(n) for n in os.listdir("/proc/self/fd") if ".vmio" in (os.path.realpath(f"/proc/self/fd/{n}"))]
assert own, "no log is open"
for n in own:
    for call in (lambda: os.close(n), lambda: os.dup2(fd, n)):
        try: call()
        except OSError: pass
        else: sys.exit(f"descriptor {n} of vmio's was given up")
os.closerange(max(own[0] - 5, fd + 1), own[0] + 5)
os.write(fd, b"second")
child = os.fork()
if child == 0:
    os.write(fd, b" third")
    os._exit(0)
os.waitpid(child, 0)
os.write(fd, b" fourth")
print(os.pread(fd, 100, 0))
"#;

#[test]
fn the_logs_descriptors_are_no_programs_and_a_child_has_its_own_log() -> TestResult {
    let dir = tempfile::tempdir()?;
    let output = under("strict", dir.path(), &["python3", "-c", DESCRIPTORS]).current_dir(dir.path()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "b'first second third fourth'\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !dir.path().join(".vmio").exists());
    Ok(())
}

#[test]
fn a_folder_where_no_log_can_be_is_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join(".vmio"), "in the way")?;
    refused(vmio().args(["run", "--mode", "strict", "--under"]).arg(dir.path()).args(["--", "true"]), "operation log")?;
    fs::remove_file(dir.path().join(".vmio"))?;
    let mut command = vmio();
    command.args(["run", "--mode", "strict", "--log-size", "1K", "--under"]).arg(dir.path()).args(["--", "true"]);
    refused(&mut command, "64 KiB")
}

/// Runs a program as a user without rights, in a folder of that user's.
fn run_as_nobody(program: &[&str], folder: &Path) -> Result<Output, Box<dyn Error>> {
    let bin = tempfile::tempdir()?;
    let mut limited = Command::new("timeout");
    limited.args(["-s", "KILL", "60"]).arg(for_everybody(bin.path())?);
    let mut command = by(limited, "strict", folder, program);
    Ok(as_nobody(&mut command, folder).current_dir(folder).output()?)
}

/// Has no further thread at first, and then as many as it likes.
const WITHOUT_THREADS: &str = r#"
import errno, os, resource, sys, tempfile
outside = tempfile.TemporaryFile()
before = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
fd = os.open("data", os.O_RDWR | os.O_CREAT)
try: os.write(fd, b"lost")
except OSError as error: assert error.errno == errno.EAGAIN, error
else: sys.exit("it was written without a log")
assert os.write(outside.fileno(), b"elsewhere") == 9
resource.setrlimit(resource.RLIMIT_NPROC, before)
assert os.write(fd, b"logged") == 6 and os.fstat(fd).st_size == 6
"#;

#[test]
fn a_write_without_a_thread_to_log_it_fails() -> TestResult {
    let dir = tempfile::tempdir()?;
    let output = run_as_nobody(&["python3", "-c", WITHOUT_THREADS], dir.path())?;
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!((fs::read(dir.path().join("data"))?, served(&output, "writes_logged")), (b"logged".to_vec(), 1));
    Ok(())
}

/// Its bytes are in its cache and its log when the kernel stops taking them.
const NOT_TAKEN: &str = r#"
import errno, os, resource, sys
fd = os.open("data", os.O_RDWR)
assert os.pwrite(fd, b"kept" * 1024, 800 << 10) == 4096
resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, resource.RLIM_INFINITY))
os.close(fd)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
fd = os.open("data", os.O_RDWR)
try: os.pwrite(fd, b"more", 0)
except OSError as error: assert error.errno == errno.EIO, error
else: sys.exit("what is in the log would come over what was written now")
"#;

#[test]
fn what_the_kernel_does_not_take_of_a_cache_stays_in_the_log() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data");
    let mut expected = patterned(1 << 20);
    fs::write(&file, &expected)?;
    succeeded(Command::new("sync").arg(&file))?;
    let mut command = under("strict --cache 8M", dir.path(), &["python3", "-c", NOT_TAKEN]);
    let output = command.current_dir(dir.path()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("its log keeps the writes: run vmio recover"), "{said}");
    assert!(fs::read(&file)? == expected, "the test shows nothing");
    succeeded(vmio().arg("recover").arg(dir.path()))?;
    expected[800 << 10..][..4096].copy_from_slice("kept".repeat(1024).as_bytes());
    assert!(fs::read(&file)? == expected, "a write that was acknowledged is lost");
    Ok(())
}

/// Its file is open twice, and fdatasync fails from some point on. It dies with its log.
const NOT_FLUSHED: &str = r#"
import ctypes, errno, os, signal, struct, sys
fdatasync, seccomp = map(int, sys.argv[1:])
fds = [os.open("data", os.O_RDWR) for _ in range(2)]
os.pwrite(fds[0], b"first", 0)
# Loads the number of the system call; EIO if it is that one.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, fdatasync), (0x06, 0, 0, 0x50000 | errno.EIO), (0x06, 0, 0, 0x7fff0000)]
steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
c = ctypes.CDLL(None)
assert c.prctl(38, 1, 0, 0, 0) == 0
# In all threads.
assert c.syscall(seccomp, 1, 1, struct.pack("HxxxxxxQ", 4, ctypes.addressof(steps))) == 0
try: os.pwrite(fds[0], b"never", 0)
except OSError as error: assert error.errno == errno.EIO, error
else: sys.exit("a write that was not flushed is told durable")
print("died", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn a_write_that_failed_among_others_is_not_replayed_over_theirs() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data");
    fs::write(&file, "-----")?;
    let [fdatasync, seccomp] = [libc::SYS_fdatasync, libc::SYS_seccomp].map(|number| number.to_string());
    let mut command = under("strict", dir.path(), &["python3", "-c", NOT_FLUSHED, &fdatasync, &seccomp]);
    let output = command.current_dir(dir.path()).output()?;
    assert_eq!(output.stdout, b"died\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join(".vmio").exists(), "no log was left");
    // Other processes may write after the failed call.
    fs::write(&file, "newer")?;
    succeeded(vmio().arg("recover").arg(dir.path()))?;
    assert_eq!(fs::read(&file)?, b"newer");
    Ok(())
}

/// Checks that the bytes of a file are there after the power was cut, which happens when the program prints a number.
fn is_there_after_the_power(
    prepare: impl FnOnce(&Path) -> TestResult,
    program: &[&str],
    file: &str,
    expected: &[u8],
) -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    prepare(disk.path())?;
    let mut command = under("strict", disk.path(), program);
    command.current_dir(disk.path());
    interrupted(command, 1, |_| disk.cut_power())?;
    disk.start_again()?;
    succeeded(vmio().arg("recover").arg(disk.path()))?;
    let found = fs::read(disk.path().join(file)).unwrap_or_default();
    assert!(found == expected, "{} bytes of {}: {:?}", found.len(), expected.len(), found.get(..20));
    Ok(())
}

/// The child writes by its parent's descriptor, and dies.
const CHILD: &str = r#"
import os, signal
fd = os.open("data", os.O_RDWR | os.O_CREAT)
os.write(fd, b"parent ")
child = os.fork()
if child == 0:
    os.write(fd, b"child")
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(1, flush=True)
signal.pause()
"#;

/// Otherwise the child would hold the lock of its parent's log, and nobody would replay the log as long as the child lives.
#[test]
fn a_child_that_is_forked_while_a_log_is_made_has_nothing_of_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("log_forks", dir.path(), &["-pthread"])?;
    let folder = dir.path().join("files");
    fs::create_dir(&folder)?;
    for round in 0..20 {
        let file = folder.join(format!("data{round}"));
        succeeded(&mut under("strict", &folder, &[text(&program), text(&file)]))?;
        assert_eq!(fs::read(&file)?, b"logged");
    }
    Ok(())
}

#[test]
fn what_a_forked_child_writes_survives_the_power() -> TestResult {
    is_there_after_the_power(|_| Ok(()), &["python3", "-c", CHILD], "data", b"parent child")
}

/// Writes to an inherited file, without ever opening one.
const HEIR: &str = r#"
import os, signal
os.write(3, b"inherited")
print(1, flush=True)
signal.pause()
"#;

#[test]
fn what_is_written_to_an_inherited_file_survives_the_power() -> TestResult {
    let script = format!("exec python3 -c '{HEIR}' 3> data");
    is_there_after_the_power(|_| Ok(()), &["sh", "-c", &script], "data", b"inherited")
}

#[test]
fn a_child_that_has_its_parents_memory_leaves_it_the_thread() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("vforked", dir.path(), &[])?;
    let under_it = dir.path().join("under");
    // First the parent has no file under the folder before, and then it has one.
    for inherited in [dir.path().join("inherited"), under_it.join("inherited")] {
        fs::create_dir_all(&under_it)?;
        let [own, later] = ["own", "later"].map(|name| under_it.join(name));
        let limited = ["timeout", "-s", "KILL", "30", text(&program), text(&inherited), text(&own), text(&later)];
        succeeded(&mut under("strict", &under_it, &limited))?;
        let expected = [(inherited, "child parent"), (own, "child"), (later, "parent")];
        for (file, content) in expected {
            assert_eq!(fs::read_to_string(&file)?, content, "{}", file.display());
        }
        fs::remove_dir_all(&under_it)?;
    }
    Ok(())
}

/// Writes next to nothing to a file that others have written, and syncs the file.
const SYNCS: &str = r#"
import os, signal
fd = os.open("data", os.O_RDWR)
os.pwrite(fd, b"!", 0)
os.fsync(fd)
print(1, flush=True)
signal.pause()
"#;

#[test]
fn a_sync_brings_what_others_have_written_before() -> TestResult {
    let mut expected = patterned(100_000);
    let before = expected.clone();
    expected[0] = b'!';
    let prepare = move |folder: &Path| Ok(fs::write(folder.join("data"), before)?);
    is_there_after_the_power(prepare, &["python3", "-c", SYNCS], "data", &expected)
}

/// The file gets its name after a fork has retired its log.
const NAMED_LATER: &str = r#"
import os, signal
fd = os.open(".", os.O_RDWR | os.O_TMPFILE)
os.write(fd, b"nameless" * 1000)
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
# With a folder it is linkat, which can follow.
os.link(f"/proc/self/fd/{fd}", "data", src_dir_fd=0, follow_symlinks=True)
print(1, flush=True)
signal.pause()
"#;

#[test]
fn a_file_that_gets_its_name_later_has_its_bytes() -> TestResult {
    let expected = b"nameless".repeat(1000);
    is_there_after_the_power(|_| Ok(()), &["python3", "-c", NAMED_LATER], "data", &expected)
}

/// Makes a file as git makes its objects: nobody may open it for writing later.
const READ_ONLY: &str = r#"
import os, signal
fd = os.open("data", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
os.write(fd, b"written")
print("1", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn a_log_of_a_read_only_file_is_replayed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data");
    let output = run_as_nobody(&["python3", "-c", READ_ONLY], dir.path())?;
    assert_eq!(output.stdout, b"1\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join(".vmio").exists(), "no log was left");
    // As if the power had gone.
    fs::write(&file, "")?;
    let output = run_as_nobody(&["cat", "data"], dir.path())?;
    assert_eq!(output.stdout, b"written", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o7777, 0o444);
    assert!(!dir.path().join(".vmio").exists());
    Ok(())
}

/// Waits for signals that it sends itself with a value.
const SIGNALS: &str = r#"
import ctypes, os, signal, sys
c = ctypes.CDLL(None)
c.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
fd = os.open("data", os.O_RDWR | os.O_CREAT)
os.write(fd, b"a")
# The last is SIGSTKFLT.
every = [signal.SIGIO, signal.SIGRTMAX, signal.SIGRTMIN, 16]
signal.pthread_sigmask(signal.SIG_BLOCK, every)
for number in every * 50:
    assert c.sigqueue(os.getpid(), number, 7) == 0
    got = signal.sigtimedwait([number], 5)
    if got is None: sys.exit(f"signal {number} is lost")
    assert got.si_signo == number and got.si_pid == os.getpid() and got.si_code == -1, got
    os.write(fd, b"b")
"#;

#[test]
fn signals_of_the_programs_are_its_own() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut command = under("strict", dir.path(), &["timeout", "-s", "KILL", "60", "python3", "-c", SIGNALS]);
    succeeded(command.current_dir(dir.path()))?;
    assert_eq!(fs::metadata(dir.path().join("data"))?.len(), 201);
    Ok(())
}

/// Another process opens the file and writes to it, while no signal can be queued for this process.
const NO_SIGNALS: &str = r#"
import os, resource, subprocess
resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
fd = os.open("data", os.O_RDWR | os.O_CREAT)
for n in range(20): os.write(fd, b"a")
subprocess.run(["sh", "-c", "printf b >> data"], check=True)
assert os.pread(fd, 100, 0) == b"a" * 20 + b"b"
"#;

#[test]
fn where_no_signal_can_be_queued_nobody_waits_for_ever() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut command = under("strict", dir.path(), &["timeout", "-s", "KILL", "30", "python3", "-c", NO_SIGNALS]);
    succeeded(command.current_dir(dir.path()))?;
    Ok(())
}
