//! `vmio run --mode` with `--cache`: files that become longer while they are in a cache of the process's own.

use std::fs;
use std::process::Command;

use crate::common::modes::{python, served, under};
use crate::common::programs::{has, leave_out, text};
use crate::common::{TestResult, patterned, succeeded, vmio};

const MODES: [&str; 3] = ["posix --cache 8M", "sync --cache 8M", "strict --cache 8M"];

/// Writes at random around the end of a file, and keeps a model of it. In between, others look at the length, read the bytes, which takes
/// the lease away, or append. They are processes with vmio and without, children with the same descriptor, and programs that inherit it.
const PROGRAM: &str = r#"
import os, random, subprocess, sys, time
OTHER = '''
import os, sys
for line in sys.stdin:
    what, *words = line.split()
    if what == "length": print(os.stat("data").st_size, flush=True)
    elif what == "append":
        with open("data", "ab") as file: file.write(bytes.fromhex(words[0]))
        print("done", flush=True)
    else: print(open("data", "rb").read().hex(), flush=True)
'''
random.seed(int(sys.argv[1]))
def other(environment):
    return subprocess.Popen(["python3", "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
others = [other(None), other({name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})]
def ask(*words):
    one = random.choice(others)
    print(*words, file=one.stdin, flush=True)
    return one.stdout.readline().strip()
fd, times_leased = -1, 0
with open("data", "rb") as file: model = bytearray(file.read())
def write(at, data):
    assert os.pwrite(fd, data, at) == len(data)
    model.extend(bytes(max(at + len(data) - len(model), 0)))
    model[at:at + len(data)] = data
def leased():
    global fd, times_leased
    if fd >= 0: os.close(fd)
    fd = os.open("data", os.O_RDWR)
    for n in range(2000):
        if "LEASE  ACTIVE" in open("/proc/self/fdinfo/%d" % fd).read():
            times_leased += 1
            return
        write(n, b"w")
        time.sleep(.001)
def compare(at, count): assert os.pread(fd, count, at) == model[at:at + count], (at, count, len(model))
leased()
for n in range(int(sys.argv[2])):
    size = random.choice((random.randrange(1, 300), 4096 - len(model) % 4096, 4096, random.randrange(1, 20000)))
    data, near = random.randbytes(size), max(len(model) - random.randrange(12000), 0)
    kind = random.randrange(24)
    if kind < 8:
        assert os.lseek(fd, 0, os.SEEK_END) == len(model)
        assert os.write(fd, data) == size
        model.extend(data)
        assert os.lseek(fd, 0, os.SEEK_CUR) == len(model)
    elif kind < 12: write(near, data)
    elif kind < 18: compare(near, 20000)
    elif kind == 18: os.fsync(fd)
    elif kind == 19: assert os.fstat(fd).st_size == os.stat("data").st_size == int(ask("length")) == len(model)
    elif random.randrange(4): assert int(ask("length")) == len(model)
    else:
        if kind == 20:
            assert bytes.fromhex(ask("read")) == model
        elif kind == 21:
            assert ask("append", data[:500].hex()) == "done"
            model.extend(data[:500])
        elif kind == 22:
            child = os.fork()
            if child == 0:
                compare(near, 20000)
                os.lseek(fd, 0, os.SEEK_END)
                os._exit(os.write(fd, data) != size)
            assert os.waitpid(child, 0)[1] == 0
            model.extend(data)
        else:
            os.lseek(fd, 0, os.SEEK_END)
            subprocess.run(["sh", "-c", "printf handed >&%d" % fd], pass_fds=[fd], check=True)
            model.extend(b"handed")
        compare(near, 40000)
        leased()
assert bytes.fromhex(ask("read")) == model
print(times_leased)
"#;

#[test]
fn what_is_appended_is_there_for_all_at_once() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for (mode, steps) in MODES.into_iter().zip(["600", "200", "200"]) {
        for seed in test_depth::seeds(1, 6) {
            let dir = tempfile::tempdir()?;
            fs::write(dir.path().join("data"), patterned(70_001))?;
            let mut command = under(mode, dir.path(), &["python3", "-c", PROGRAM, &seed.to_string(), steps]);
            let output = command.current_dir(dir.path()).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode}, seed {seed}: {said}");
            let times_leased: u64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
            // If not, the test has tested nothing.
            assert!(
                times_leased > 3 && served(&output, "reads_served") > 10,
                "{mode}, seed {seed}: {times_leased} leases"
            );
        }
    }
    Ok(())
}

/// Two threads append and overwrite at the end of a file, while a third reads the bytes that they have announced.
const THREADS: &str = r#"
import threading
fd = leased(os.open("data", os.O_RDWR), lambda fd, n: os.pwrite(fd, b"w", n))
base = os.fstat(fd).st_size
# Two numbers a slot, of which a thread each writes the one and the other: again and again, with several slots in a page.
SLOT, SLOTS, ROUNDS = 1000, 400, 3
written = [[0] * SLOTS, [0] * SLOTS]
failures = []
def checked(work):
    def run(*arguments):
        try: work(*arguments)
        except BaseException as failure: failures.append(failure)
    return run
@checked
def write(who):
    for slot in range(SLOTS):
        for number in range(1, ROUNDS + 1):
            at = base + slot * SLOT + who * SLOT // 2
            # What the other one has not reached must not become a hole.
            while os.fstat(fd).st_size < at: time.sleep(0)
            assert os.pwrite(fd, bytes([number]) * (SLOT // 2), at) == SLOT // 2
            written[who][slot] = number
@checked
def read():
    while threading.active_count() > 2 and not failures:
        for who in range(2):
            for slot in range(SLOTS):
                least = written[who][slot]
                if not least: break
                found = os.pread(fd, SLOT // 2, base + slot * SLOT + who * SLOT // 2)
                assert len(found) == SLOT // 2 and min(found) >= least, (who, slot, least, found[:8])
threads = [threading.Thread(target=write, args=(who,)) for who in range(2)] + [threading.Thread(target=read)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
assert os.pread(fd, SLOT * SLOTS, base) == bytes([ROUNDS]) * (SLOT * SLOTS)
os.close(fd)
assert open("data", "rb").read()[base:] == bytes([ROUNDS]) * (SLOT * SLOTS)
"#;

#[test]
fn threads_that_append_and_read_see_what_was_written() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for mode in [MODES[0], MODES[2]] {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("data"), patterned(70_001))?;
        let output = under(mode, dir.path(), &["python3", "-c", &python(THREADS)]).current_dir(dir.path()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode}: {said}");
        assert!(served(&output, "reads_served") > 100, "{mode}: {said}");
    }
    Ok(())
}

#[test]
fn a_program_that_is_killed_has_appended_what_it_has_appended() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let script = r#"
import signal
fd = leased(os.open("data", os.O_RDWR), lambda fd, n: os.pwrite(fd, b"w", n))
os.lseek(fd, 0, os.SEEK_END)
for n in range(300): assert os.write(fd, bytes([n % 251]) * 1000) == 1000
os.kill(os.getpid(), signal.SIGKILL)
"#;
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("data");
        fs::write(&file, patterned(70_001))?;
        succeeded(Command::new("sync").arg(&file))?;
        let output = under(mode, dir.path(), &["python3", "-c", &python(script)]).current_dir(dir.path()).output()?;
        assert!(!output.status.success(), "{mode}");
        succeeded(vmio().arg("recover").arg(text(dir.path())))?;
        let found = fs::read(&file)?;
        let expected: Vec<u8> = (0..300_u32).flat_map(|n| [(n % 251) as u8; 1000]).collect();
        assert!(found[70_001..] == expected, "{mode}: {} bytes, or others", found.len());
    }
    Ok(())
}
