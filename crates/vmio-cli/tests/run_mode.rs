//! `vmio run --mode`: unmodified programs do the same with vmio as without, with fewer system calls.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::modes::{self, SQL, TOOLS, random_runs, served, served_by_all};
use crate::common::programs::{compiled, has, leave_out, text};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

fn under(folder: &Path, program: &[&str]) -> Command {
    modes::under("posix", folder, program)
}

fn same_as_plain(dir: &Path, program: &[&str]) -> Result<Output, Box<dyn Error>> {
    modes::same_as_plain("posix", dir, program)
}

#[test]
fn random_calls_return_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("random_calls", dir.path(), &[])?;
    let outputs = random_runs("posix", &program, 400, test_depth::seeds(4, 16), modes::same_as_plain)?;
    let (reads, writes) = (served_by_all(&outputs, "reads_served"), served_by_all(&outputs, "writes_served"));
    // At least that for each seed; if not, the test has tested nothing.
    let seeds = outputs.len() as u64;
    assert!(reads > 10 * seeds && writes > seeds, "{reads} reads, {writes} writes, {seeds} seeds");
    Ok(())
}

#[test]
fn threads_see_whole_blocks_while_others_change_the_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("readers", dir.path(), &[])?;
    let mut reads = 0;
    for helper in ["yes", "no", "yes"] {
        let output = under(dir.path(), &[text(&program), text(&dir.path().join("data")), helper]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), said.as_ref()), (Some(0), "done\n"), "{:?}", output.status);
        reads += served(&output, "reads_served");
    }
    assert!(reads > 0, "the file was never leased");
    Ok(())
}

#[test]
fn what_the_c_library_and_other_programs_write_follows_what_was_written() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("printing", dir.path(), &[])?;
    let output = same_as_plain(dir.path(), &[text(&program), "data"])?;
    assert!(served(&output, "files") >= 1, "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn sqlite_keeps_its_database_with_each_journal() -> TestResult {
    if !has("sqlite3") {
        return leave_out("sqlite3 is not installed");
    }
    for mode in ["delete", "wal", "truncate"] {
        let dir = tempfile::tempdir()?;
        let script = format!("PRAGMA journal_mode = {mode};{SQL}");
        let output = same_as_plain(dir.path(), &["sqlite3", "database", &script])?;
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("ok\n"), "{mode}");
        assert!(
            mode == "wal" || served(&output, "reads_served") > 100,
            "{mode}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[test]
fn tar_sort_dd_and_git_do_what_they_do_without() -> TestResult {
    if !has("git") {
        return leave_out("git is not installed");
    }
    let dir = tempfile::tempdir()?;
    same_as_plain(dir.path(), &["sh", "-c", TOOLS])?;
    Ok(())
}

#[test]
fn python_reads_and_overwrites_in_place() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let script = r#"
import random, subprocess
random.seed(5)
with open("data", "w+b", buffering=0) as file:
    file.write(bytes(range(256)) * 8192)
    for round in range(3000):
        file.seek(random.randrange(2_000_000))
        if random.randrange(2): file.write(random.randbytes(random.randrange(5000)))
        else: print(hash(file.read(random.randrange(5000))) and file.tell())
        if round == 100 and "LD_PRELOAD" in os.environ: leased(file.fileno())
        if round == 1500: subprocess.run(["sh", "-c", "echo more >> data"])
    print(os.fstat(file.fileno()).st_size)
"#;
    let output = same_as_plain(dir.path(), &["python3", "-c", &modes::python(script)])?;
    assert!(served(&output, "reads_served") > 100, "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// On one core the lease manager runs only when the program waits: by then, the calls that make a file worth a lease are over.
#[test]
fn a_file_that_is_used_at_once_is_served_later() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), patterned(1 << 20))?;
    let script = r#"
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
fd = os.open("data", os.O_RDONLY)
for at in range(20): os.pread(fd, 512, at)
time.sleep(.5)
for at in range(1000): os.pread(fd, 512, at)
# Without another call.
looked_for(fd, lambda: is_leased(fd))
for at in range(1000): os.pread(fd, 512, at)
"#;
    let output = under(dir.path(), &["python3", "-c", &modes::python(script)]).current_dir(dir.path()).output()?;
    assert!(served(&output, "reads_served") > 900, "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// vmio serves a file of the program's own, also one that another process wants later. It does not serve a file that is open for writing
/// only, has a set-user-ID bit, or is open elsewhere.
#[test]
fn verbose_says_which_files_are_served_and_why_others_are_not() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let (dir, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
    // The program reads what vmio says, so as to go on when all is said.
    let script = r#"
import subprocess
def use(name, flags, call):
    fd = os.open(name, flags)
    def is_told():
        call(fd)
        return "/" + name + " is " in open(sys.argv[1]).read()
    return looked_for(fd, is_told)
for name in ["served", "log", "rights", "elsewhere", "wanted"]: open(name, "wb").write(bytes(100000))
os.chmod("rights", 0o4755)
use("served", os.O_RDWR, lambda fd: os.pread(fd, 100, 0))
use("log", os.O_WRONLY, lambda fd: os.pwrite(fd, b"x", 0))
use("rights", os.O_RDONLY, lambda fd: os.pread(fd, 100, 0))
other = os.open("elsewhere", os.O_RDWR)
use("elsewhere", os.O_RDWR, lambda fd: os.pread(fd, 100, 0))
use("wanted", os.O_RDWR, lambda fd: os.pread(fd, 100, 0))
subprocess.run(["sh", "-c", "echo more >> wanted"])
"#;
    let said = elsewhere.path().join("said");
    let program = ["python3", "-c", &modes::python(script), text(&said)];
    let mut command = modes::under("posix --verbose", dir.path(), &program);
    succeeded(command.current_dir(dir.path()).stderr(fs::File::create(&said)?))?;
    let said = fs::read_to_string(&said)?;
    for (name, what) in [
        ("served", "is read and written without system calls"),
        ("log", "is not served: it is open for writing only"),
        ("rights", "is not served: it has a set-user-ID or set-group-ID bit, which every write must clear"),
        ("elsewhere", "is not served: it is also open elsewhere"),
        ("wanted", "is read and written without system calls"),
    ] {
        let line = format!("vmio run: {} {what}\n", dir.path().canonicalize()?.join(name).display());
        assert!(said.contains(&line), "{line}is not in\n{said}");
    }
    Ok(())
}

#[test]
fn what_is_elsewhere_is_left_alone() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    let dir = tempfile::tempdir()?;
    let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
    for folder in [&inside, &outside] {
        fs::create_dir(folder)?;
        fs::write(folder.join("data"), patterned(1 << 20))?;
    }
    let script = r#"
fd = os.open(sys.argv[1], os.O_RDONLY)
if sys.argv[2] == "served": leased(fd)
for at in range(2000): os.pread(fd, 512, at); at % 100 or time.sleep(.001)
"#;
    let copy =
        |from: PathBuf, how| under(&inside, &["python3", "-c", &modes::python(script), text(&from), how]).output();
    assert_eq!(served(&copy(outside.join("data"), "not served")?, "reads_served"), 0);
    assert!(served(&copy(inside.join("data"), "served")?, "reads_served") > 1000);
    // Another process has it open for writing.
    let _writer = fs::File::options().append(true).open(inside.join("data"))?;
    assert_eq!(served(&copy(inside.join("data"), "not served")?, "reads_served"), 0);
    Ok(())
}

#[test]
fn what_cannot_be_is_refused() -> TestResult {
    refused(vmio().args(["run", "--under", ".", "--", "true"]), "--cache")?;
    refused(vmio().args(["run", "--mode", "lax", "--under", ".", "--", "true"]), "possible values: posix")?;
    assert!(succeeded(vmio().args(["run", "--help"]))?.contains("--mode"));
    Ok(())
}
