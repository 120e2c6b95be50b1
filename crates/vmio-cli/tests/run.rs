//! `vmio run`: unmodified programs do the same with vmio as without.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::common::programs::{compiled, has, leave_out, mapped, plain, report, text};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

/// The engine with pages of its own to test: that of VMIO_TEST_ENGINE, which is `kernel` in a guest with the module.
fn engine() -> String {
    std::env::var("VMIO_TEST_ENGINE").unwrap_or_else(|_| "reader-thread".to_owned())
}

/// Whether this user may handle page faults of system calls.
fn may_run() -> Result<bool, Box<dyn Error>> {
    let output = under(Path::new("."), &["true"]).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    let is_denied = error.contains("may not handle page faults");
    assert!(output.status.success() || is_denied, "{error}");
    Ok(!is_denied)
}

/// All engines that this user has, or the named one, if there is one.
fn engines() -> Result<Vec<String>, Box<dyn Error>> {
    let mut engines = Vec::new();
    if may_run()? {
        engines.push(engine());
    } else {
        leave_out("this user may not handle page faults of system calls")?;
    }
    if std::env::var_os("VMIO_TEST_ENGINE").is_none() {
        engines.push("managed".to_owned());
    }
    Ok(engines)
}

/// The command that runs a program with the files of a folder mapped through pages of vmio's own.
fn under(folder: &Path, program: &[&str]) -> Command {
    mapped(&engine(), folder, program)
}

/// Runs a program plainly in one folder and under vmio in another: it must print the same, and leave the same files.
fn same_as_plain(
    engine: &str,
    dir: &Path,
    program: impl Fn(&Path) -> Vec<String>,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let dir = dir.join(engine);
    let (without, with) = (dir.join("without"), dir.join("with"));
    for folder in [&without, &with] {
        fs::create_dir_all(folder)?;
    }
    let words = program(&without);
    let expected = plain(&words.iter().map(String::as_str).collect::<Vec<_>>()).output()?;
    assert!(expected.status.success(), "{}", String::from_utf8_lossy(&expected.stderr));
    let words = program(&with);
    let output = mapped(engine, &with, &words.iter().map(String::as_str).collect::<Vec<_>>()).output()?;
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&expected.stdout));
    let mut names = 0;
    for entry in fs::read_dir(&without)? {
        let name = entry?.file_name();
        names += 1;
        // It contains the process's number.
        if name == "lock.mdb" {
            continue;
        }
        assert!(fs::read(without.join(&name))? == fs::read(with.join(&name))?, "{name:?} differs");
    }
    assert_eq!(fs::read_dir(&with)?.count(), names, "files that only one of the runs made");
    let report = report(&output)?;
    // The program has used the engine: for `ring0`, no memory of the mapping is there outside the machine.
    assert_eq!(report["engine"], engine, "{report}");
    Ok(report)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_child_maps_files_whatever_its_parent_was_mapping_at_the_fork() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("forks", dir.path(), &[])?;
    for engine in engines()? {
        let words =
            |folder: &Path| words(&[text(&program), text(&folder.join("data")), "map", test_depth::pick("150", "300")]);
        same_as_plain(&engine, dir.path(), words)?;
    }
    Ok(())
}

#[test]
fn eight_threads_store_to_a_file_four_times_the_cache() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("threads", dir.path(), &[])?;
    for engine in engines()? {
        let words = |folder: &Path| words(&[text(&program), text(&folder.join("data")), "32"]);
        let report = same_as_plain(&engine, dir.path(), words)?;
        assert_eq!((report["mappings"].as_u64(), report["files"].as_u64()), (Some(1), Some(1)), "{report}");
        // Two passes over a file that does not fit the cache.
        if engine == "managed" {
            assert!(report["evicted_pages"].as_u64() > Some(0), "{report}");
            assert_eq!(report["load_misses"], serde_json::Value::Null, "{report}");
        } else {
            assert!(report["load_misses"].as_u64() > Some(8192), "{report}");
            assert!(report["written_bytes"].as_u64() >= Some(64 << 20), "{report}");
        }
    }
    Ok(())
}

#[test]
fn calls_about_mapped_memory_do_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("calls", dir.path(), &[])?;
    for engine in engines()? {
        let report = same_as_plain(&engine, dir.path(), |folder| words(&[text(&program), text(folder)]))?;
        assert!(report["mappings"].as_u64() >= Some(5), "{report}");
        if engine != "managed" {
            assert!(report["calls_served"].as_u64() >= Some(12), "{report}");
            assert_eq!(report["not_served"].as_u64(), Some(1), "the private mapping: {report}");
        }
    }
    Ok(())
}

#[test]
fn rarer_calls_about_mapped_memory_do_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("corners", dir.path(), &[])?;
    for engine in engines()? {
        let report = same_as_plain(&engine, dir.path(), |folder| words(&[text(&program), text(folder)]))?;
        assert!(report["mappings"].as_u64() >= Some(6), "{report}");
        if engine != "managed" {
            assert_eq!(report["not_served"].as_u64(), Some(4), "too many open, and at a fixed address: {report}");
        }
    }
    Ok(())
}

const PYTHON: &str = r#"
import hashlib, mmap, os, random, subprocess, sys
path, size = sys.argv[1] + "/data", 24 << 20
with open(path, "w+b") as file:
    file.truncate(size)
    with mmap.mmap(file.fileno(), size) as map:
        numbers = random.Random(7)
        for n in range(3000):
            at = numbers.randrange(size - 8)
            map[at:at + 8] = n.to_bytes(8, "little")
        map.flush()
        map.resize(size + 4096)
        map[-5:] = b"tail!"
        file.seek(size + 4091)
        print(map.find((2999).to_bytes(8, "little")) >= 0, map.size(), file.read())
        before = hashlib.sha256(map).hexdigest()
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map:
    print(before == hashlib.sha256(map).hexdigest(), before)
    sys.stdout.flush()
    os.write(1, map[-5:] + b"\n")
print(subprocess.run(["sha256sum", path], capture_output=True, text=True).stdout.split()[0] == before)
# What was stored is in the files, however the program ends.
file = open(sys.argv[1] + "/end", "w+b")
file.truncate(8192)
map = mmap.mmap(file.fileno(), 8192)
map[4096:4100] = b"last"
sys.stdout.flush()
if sys.argv[2] == "exec":
    os.execvp("cat", ["cat", sys.argv[1] + "/end"])
os._exit(0)
"#;

#[test]
fn python_maps_resizes_and_ends() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    for (engine, end) in engines()?.iter().flat_map(|engine| [(engine, "exec"), (engine, "_exit")]) {
        let dir = tempfile::tempdir()?;
        let words = |folder: &Path| words(&["python3", "-c", PYTHON, text(folder), end]);
        let report = same_as_plain(engine, dir.path(), words)?;
        assert_eq!(report["mappings"].as_u64(), Some(3), "{report}");
    }
    Ok(())
}

const NUMPY: &str = r#"
import numpy, sys
path = sys.argv[1] + "/array"
array = numpy.memmap(path, dtype="float64", mode="w+", shape=(3000, 1000))
array[:] = numpy.arange(3000000).reshape(3000, 1000)
array[::3] *= 2
array.flush()
again = numpy.memmap(path, dtype="float64", mode="r", shape=(3000, 1000))
copy = numpy.memmap(path, dtype="float64", mode="c", shape=(3000, 1000))
copy[0, 0] = 5
print(again.sum(), again[2999, 999], array[0, 0], copy[0, 0])
"#;

#[test]
fn numpy_maps_arrays() -> TestResult {
    let has_numpy = |python: &&str| {
        let output = Command::new(python).args(["-c", "import numpy"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_numpy) else {
        return leave_out("numpy is not installed");
    };
    let dir = tempfile::tempdir()?;
    for engine in engines()? {
        let report = same_as_plain(&engine, dir.path(), |folder| words(&[python, "-c", NUMPY, text(folder)]))?;
        // With the managed engine Linux has the second mapping: both would be the same page.
        assert!(report["mappings"].as_u64() >= Some(if engine == "managed" { 1 } else { 2 }), "{report}");
    }
    Ok(())
}

const SQL: &str = "\
PRAGMA mmap_size = 268435456; PRAGMA cache_size = -200;
CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
    INSERT INTO t SELECT i, hex(i * i) || printf('%0200d', i) FROM n;
CREATE INDEX x ON t(text);
UPDATE t SET text = text || 'y' WHERE id % 7 = 0;
DELETE FROM t WHERE id % 11 = 0;
PRAGMA journal_mode = WAL;
INSERT INTO t(text) SELECT text FROM t LIMIT 5000;
SELECT count(*), sum(length(text)), max(text) FROM t;
PRAGMA wal_checkpoint(TRUNCATE);
VACUUM;
PRAGMA journal_mode = DELETE;
PRAGMA integrity_check;";

#[test]
fn sqlite_maps_its_database() -> TestResult {
    if !has("sqlite3") {
        return leave_out("sqlite3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    for engine in engines()? {
        // Each system call takes emulated guest mode long.
        let sql = SQL.replace("ROWS", if engine == "ring0" { "8000" } else { "40000" });
        let program = |folder: &Path| words(&["sqlite3", text(&folder.join("db")), &sql]);
        let report = same_as_plain(&engine, dir.path(), program)?;
        assert!(report["mappings"].as_u64() > Some(0), "{report}");
        assert!(engine == "managed" || report["calls_served"].as_u64() > Some(1000), "{report}");
    }
    Ok(())
}

#[test]
fn lmdb_maps_its_database_for_loads_or_for_stores() -> TestResult {
    let header = Command::new("sh").args(["-c", "echo '#include <lmdb.h>' | cc -E -o /dev/null -"]).output();
    if !header.is_ok_and(|output| output.status.success()) {
        return leave_out("lmdb.h is not installed");
    }
    for (engine, mode) in engines()?.iter().flat_map(|engine| [(engine, "write"), (engine, "writemap")]) {
        let dir = tempfile::tempdir()?;
        let program = compiled("lmdb", dir.path(), &["-llmdb"])?;
        let report = same_as_plain(engine, dir.path(), |folder| words(&[text(&program), text(folder), mode]))?;
        assert_eq!(report["mappings"].as_u64(), Some(2), "{report}");
        if engine != "managed" {
            assert_eq!(report["calls_served"].as_u64() > Some(100), mode == "write", "{report}");
        }
    }
    Ok(())
}

const GIT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME=. GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.c
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git init -q repository && cd repository
for n in 1 2 3 4 5; do seq $n $((n * 20000)) >numbers; git add numbers; git commit -q -m "commit $n"; done
git gc -q && git fsck --no-progress && git clone -q --no-local . ../clone && cd ../clone && git log --stat && git status
"#;

#[test]
fn git_maps_its_packs() -> TestResult {
    if !has("git") {
        return leave_out("git is not installed");
    }
    let without = tempfile::tempdir()?;
    let expected = succeeded(plain(&["sh", "-ec", GIT]).current_dir(without.path()))?;
    assert!(expected.contains("commit 5"), "{expected}");
    for engine in engines()? {
        let with = tempfile::tempdir()?;
        let output = mapped(&engine, with.path(), &["sh", "-ec", GIT]).current_dir(with.path()).output()?;
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        let report = report(&output)?;
        assert!(report["mappings"].as_u64() > Some(0), "{report}");
    }
    Ok(())
}

#[test]
fn programs_that_map_nothing_are_left_alone() -> TestResult {
    if !may_run()? {
        return leave_out("this user may not handle page faults of system calls");
    }
    let dir = tempfile::tempdir()?;
    let lines = patterned(1 << 20).chunks(61).map(|chunk| format!("{chunk:x?}\n")).collect::<String>();
    let file = dir.path().join("lines");
    fs::write(&file, lines)?;
    for program in [&["grep", "-c", "a7", text(&file)][..], &["sort", "-u", text(&file)], &["sha256sum", text(&file)]] {
        let output = under(dir.path(), program).output()?;
        assert_eq!(output.stdout, plain(program).output()?.stdout, "{program:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no mapping, no report");
    }
    // The program's exit status and its children's arrive unchanged.
    let status = under(dir.path(), &["sh", "-c", "cat lines > copy; exit 7"]).current_dir(dir.path()).status()?;
    assert_eq!(status.code(), Some(7));
    assert!(fs::read(dir.path().join("copy"))? == fs::read(&file)?);
    Ok(())
}

#[test]
fn a_second_process_is_told_that_the_file_is_in_use() -> TestResult {
    if !may_run()? || !has("python3") {
        return leave_out("python3 is not installed, or page faults of system calls may not be handled");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let child = "import mmap; file = open('data', 'r+b'); mmap.mmap(file.fileno(), 0)";
    let parent = format!(
        "import mmap, subprocess, sys\nfile = open('data', 'r+b')\nmap = mmap.mmap(file.fileno(), 0)\n\
         print(subprocess.run([sys.executable, '-c', \"{child}\"], stderr=subprocess.PIPE, text=True).stderr)"
    );
    let said = succeeded(under(dir.path(), &["python3", "-c", &parent]).current_dir(dir.path()))?;
    assert!(said.contains("BlockingIOError: [Errno 11]"), "{said}");
    Ok(())
}

const LOCKED: &str = r#"
import fcntl, mmap, subprocess, sys
TRY = "import fcntl\ntry:\n    fcntl.lockf(open('data', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n    print('free')\nexcept BlockingIOError:\n    print('locked')"
CHILD = f"""
import ctypes, fcntl, mmap, subprocess, sys
def look():
    print(subprocess.run([sys.executable, '-c', {TRY!r}], stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)
# The lock is listed at the descriptor that it was taken by, and at none before.
first, file = open('data', 'rb'), open('data', 'r+b')
fcntl.lockf(file, fcntl.LOCK_EX, 1)
look()
# mmap.mmap would close a descriptor of its own.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ssize_t
mapped = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
print(mapped, ctypes.get_errno(), flush=True)
look()
file.close()
look()
"""
file = open("data", "r+b")
map = mmap.mmap(file.fileno(), 0)
print(subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True).stdout, end="")
"#;

/// Closing any descriptor of a file ends the process's record locks on it. vmio has opened the file in vain, and keeps the locks.
#[test]
fn a_refused_mapping_leaves_record_locks() -> TestResult {
    if !may_run()? || !has("python3") {
        return leave_out("python3 is not installed, or page faults of system calls may not be handled");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let said = succeeded(under(dir.path(), &["python3", "-c", LOCKED]).current_dir(dir.path()))?;
    assert_eq!(said, "locked\n-1 11\nlocked\nfree\n");
    Ok(())
}

const LOCKED_AND_MAPPED: &str = r#"
import ctypes, fcntl, mmap, subprocess, sys
TRY = "import fcntl\ntry:\n    fcntl.lockf(open('data', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n    print('free')\nexcept BlockingIOError:\n    print('locked')"
def look():
    print(subprocess.run([sys.executable, '-c', TRY], stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)
file = open('data', 'r+b')
fcntl.lockf(file, fcntl.LOCK_EX, 1)
look()
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ssize_t
print(libc.mmap(None, ctypes.c_size_t(4 << 20), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0)) > 0, flush=True)
look()
"#;

/// A large file, whose device vmio examines when the program maps it. Guests cannot write to the target folder.
#[test]
fn a_mapping_leaves_record_locks() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir())?;
    for engine in engines()? {
        fs::write(dir.path().join("data"), patterned(4 << 20))?;
        File::open(dir.path().join("data"))?.sync_all()?;
        let mut command = vmio();
        command.args(["run", "--engine", &engine, "--cache", "64M", "--under", text(dir.path()), "--"]);
        let said = succeeded(command.args(["python3", "-c", LOCKED_AND_MAPPED]).current_dir(dir.path()))?;
        assert_eq!(said, "locked\nTrue\nlocked\n", "{engine}");
    }
    Ok(())
}

const LOADS_FIRST: &str = r#"
import mmap
reader, writer = open("data", "rb"), open("data", "r+b")
loads = mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ)
try:
    mmap.mmap(writer.fileno(), 0)[0] = 1
except BlockingIOError:
    print("refused")
loads.close()
mmap.mmap(writer.fileno(), 0)[0] = 7
print(open("data", "rb").read(1))
"#;

#[test]
fn a_file_mapped_for_loads_is_refused_for_stores_beside() -> TestResult {
    if !may_run()? || !has("python3") {
        return leave_out("python3 is not installed, or page faults of system calls may not be handled");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let said = succeeded(under(dir.path(), &["python3", "-c", LOADS_FIRST]).current_dir(dir.path()))?;
    assert_eq!(said, "refused\nb'\\x07'\n");
    Ok(())
}

const FORK: &str = r#"
import mmap, os, subprocess, threading
file = open("data", "w+b")
file.truncate(1 << 20)
map = mmap.mmap(file.fileno(), 1 << 20)
map[0:6] = b"parent"
def child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def maps_anew():
    other = open("other", "w+b")
    other.truncate(1 << 20)
    mmap.mmap(other.fileno(), 1 << 20)[0:5] = b"child"
    try:
        mmap.mmap(file.fileno(), 1 << 20)
    except BlockingIOError:
        return 3
    return 4
def touches():
    return map[0]
print(child(maps_anew), open("other", "rb").read(5), child(touches), map[0:6])
def work(n):
    for round in range(10):
        assert subprocess.run(["true"]).returncode == 0
        map[n * 4096:n * 4096 + 1] = bytes([round])
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print([map[n * 4096] for n in range(4)])
"#;

#[test]
fn children_begin_anew_and_parents_go_on() -> TestResult {
    if !may_run()? || !has("python3") {
        return leave_out("python3 is not installed, or page faults of system calls may not be handled");
    }
    let dir = tempfile::tempdir()?;
    let said = succeeded(under(dir.path(), &["python3", "-c", FORK]).current_dir(dir.path()))?;
    // The child does not have its parent's mapping: SIGSEGV.
    assert_eq!(said, "3 b'child' -11 b'parent'\n[9, 9, 9, 9]\n");
    Ok(())
}

#[test]
fn verbose_names_served_mappings_and_those_that_are_not() -> TestResult {
    if !may_run()? {
        return leave_out("this user may not handle page faults of system calls");
    }
    let dir = tempfile::tempdir()?;
    let program = compiled("calls", dir.path(), &[])?;
    let folder = dir.path().join("data");
    fs::create_dir(&folder)?;
    let (mut command, engine) = (vmio(), engine());
    command
        .args(["run", "--engine", &engine, "--cache", "8M", "--verbose", "--stats", "--under"])
        .arg(&folder)
        .arg("--");
    let output = command.arg(&program).arg(&folder).output()?;
    let said = String::from_utf8(output.stderr)?;
    let several = folder.canonicalize()?.join("several");
    assert!(
        said.contains(&format!("vmio run: {}: bytes 0..262144 are mapped for loads and stores", several.display())),
        "{said}"
    );
    assert!(said.contains("not served: it is private and writable"), "{said}");
    assert!(
        said.contains(&format!(", {engine}: "))
            && said.contains("mappings of 6 files served, 1 not served or refused")
            && said.contains(" misses ("),
        "{said}"
    );
    Ok(())
}

#[test]
fn what_cannot_be_preloaded_is_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("nothing.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let program = dir.path().join("static");
    succeeded(Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source))?;
    refused(&mut under(dir.path(), &[text(&program)]), "is a static program")?;
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", program.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    refused(&mut under(dir.path(), &[text(&script)]), "is a static program")?;

    let setuid = dir.path().join("setuid");
    fs::copy("/bin/true", &setuid)?;
    if chown(&setuid, Some(65534), None).is_err() {
        return leave_out("only root can make a program another user's");
    }
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755))?;
    refused(&mut under(dir.path(), &[text(&setuid)]), "is a setuid program")
}

#[test]
fn mistakes_are_explained() -> TestResult {
    let dir = tempfile::tempdir()?;
    refused(&mut under(dir.path(), &["no-such-program"]), "cannot run no-such-program")?;
    refused(&mut under(&dir.path().join("missing"), &["true"]), "cannot open the folder")?;
    refused(vmio().args(["run", "--cache", "8M", "--", "true"]), "--under")?;
    refused(vmio().args(["run", "--cache", "8M", "--json", "--under", ".", "--", "true"]), "--stats")?;
    refused(vmio().args(["run", "--cache", "1M", "--under", ".", "--", "true"]), "it may be 6 MiB")?;
    refused(
        vmio().args(["run", "--engine", "sigbus", "--cache", "8M", "--under", ".", "--", "true"]),
        "reader-thread",
    )?;
    if !Path::new("/dev/vmio").exists() {
        let run = ["run", "--engine", "kernel", "--cache", "8M", "--under", ".", "--", "true"];
        refused(vmio().args(run), "/dev/vmio")?;
    }
    Ok(())
}
