//! `vmio run --mode sync`, and the same promise in strict mode: the changes of a call are durable when it returns.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::common::disk::{Disk, FileSystem};
use crate::common::modes::{SQL, TOOLS, random_runs, same_as_plain, served, served_by_all, under};
use crate::common::programs::{compiled, has, leave_out, plain, text};
use crate::common::{TestResult, succeeded};

/// Changes that programs make to files, one step after another. No step flushes anything.
const STEPS: &[&str] = &[
    "mkdir folder",
    "echo first > folder/new",
    "seq 20000 > numbers",
    "echo more >> folder/new",
    "mv folder/new moved",
    "ln numbers linked; ln -s moved symbolic",
    "python3 -c 'import os; os.pwrite(os.open(\"numbers\", os.O_RDWR), b\"overwritten\", 50000)'",
    "truncate -s 30000 numbers",
    "chmod 600 moved; touch -d @1000 moved",
    "rm linked",
    "cp numbers copied; sed -i s/1/one/ copied",
    "mkfifo folder/pipe; mkdir -p a/b/c; rmdir a/b/c",
    "dd if=copied of=copied bs=1000 skip=3 seek=10 count=20 conv=notrunc status=none",
    "tar cf archive.tar --mtime=@0 copied moved; mkdir unpacked; tar xf archive.tar -C unpacked",
    "awk 'BEGIN { print \"by a stream\" > \"printed\" }'",
    "mv -T unpacked folder/unpacked; rm -r a",
];

/// The state of a folder: names, kinds, modes, lengths, targets, and bytes.
fn state_of(folder: &Path) -> Result<String, Box<dyn Error>> {
    let script = "find . -mindepth 1 ! -path './.vmio*' \\( -type d -printf '%p %y %m\\n' -o -printf '%p %y %m %s %n %l\\n' \\) | sort; \
                  find . -type f ! -path './.vmio*' -exec cksum {} + | sort -k3; stat -c %Y moved 2>&1 | grep -x 1000 || true";
    succeeded(plain(&["sh", "-c", script]).current_dir(folder))
}

/// Runs the first steps in a folder, by a shell with the mode or without vmio, and calls `then` before the shell ends.
fn run(mode: Option<&str>, folder: &Path, steps: usize, then: impl FnOnce() -> TestResult) -> TestResult {
    let script = format!("set -e; umask 022; {}; echo done; exec sleep 1000", STEPS[..steps].join("; "));
    let mut command = match mode {
        Some(mode) => under(mode, folder, &["sh", "-c", &script]),
        None => plain(&["sh", "-c", &script]),
    };
    let mut shell = command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(shell.stdout.take().ok_or("it is piped")?).read_line(&mut said)?;
    let outcome = then();
    let _ = shell.kill();
    let output = shell.wait_with_output()?;
    assert_eq!(said, "done\n", "{}", String::from_utf8_lossy(&output.stderr));
    outcome
}

fn survives_the_power(mode: &str, kind: FileSystem) -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
    // From all steps down, so that these are among them.
    for steps in (1..=STEPS.len()).rev().step_by(test_depth::step(2, 1) as usize) {
        let (expected, folder) = (dir.path().join(steps.to_string()), disk.path().join(steps.to_string()));
        fs::create_dir(&expected)?;
        run(None, &expected, steps, || Ok(()))?;
        fs::create_dir(&folder)?;
        succeeded(plain(&["sync", "-f"]).arg(&folder))?;
        run(Some(mode), &folder, steps, || disk.cut_power())?;
        disk.start_again()?;
        if mode == "strict" {
            succeeded(crate::common::vmio().arg("recover").arg(&folder))?;
        }
        assert_eq!(state_of(&folder)?, state_of(&expected)?, "after {:?}", STEPS[steps - 1]);
    }
    // Without vmio the last step must be lost: otherwise the test has shown nothing. On a slow machine the kernel may have written all by
    // itself before the power fails.
    let whole = state_of(&dir.path().join(STEPS.len().to_string()))?;
    for attempt in 0..5 {
        let folder = disk.path().join(format!("plain {attempt}"));
        fs::create_dir(&folder)?;
        run(None, &folder, STEPS.len(), || disk.cut_power())?;
        disk.start_again()?;
        if !folder.exists() || state_of(&folder)? != whole {
            return Ok(());
        }
    }
    Err("without vmio nothing is lost, either".into())
}

#[test]
fn what_a_call_has_changed_survives_the_power() -> TestResult {
    survives_the_power("sync", FileSystem::Ext4)
}

#[test]
fn so_it_does_on_xfs() -> TestResult {
    if !has("mkfs.xfs") {
        return leave_out("mkfs.xfs (xfsprogs) is not installed");
    }
    survives_the_power("sync", FileSystem::Xfs)?;
    survives_the_power("strict", FileSystem::Xfs)
}

#[test]
fn so_it_does_in_strict_mode() -> TestResult {
    survives_the_power("strict", FileSystem::Ext4)
}

#[test]
fn random_calls_return_what_they_do_without() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("random_calls", dir.path(), &[])?;
    let outputs = random_runs("sync", &program, 200, test_depth::seeds(2, 8), same_as_plain)?;
    let reads = served_by_all(&outputs, "reads_served");
    assert!(reads > 10 * outputs.len() as u64, "{reads} reads of {} seeds", outputs.len());
    Ok(())
}

#[test]
fn programs_do_what_they_do_without() -> TestResult {
    if !has("sqlite3") || !has("git") {
        return leave_out("sqlite3 or git is not installed");
    }
    let dir = tempfile::tempdir()?;
    let output = same_as_plain("sync", dir.path(), &["sqlite3", "database", SQL])?;
    assert!(served(&output, "metadata_flushes") > 0, "{}", String::from_utf8_lossy(&output.stderr));
    let dir = tempfile::tempdir()?;
    same_as_plain("sync", dir.path(), &["sh", "-c", TOOLS])?;
    Ok(())
}

/// The program sees the flags that it asked for, and a file elsewhere gets no O_DSYNC.
const FLAGS: &str = r#"
import fcntl, os, sys
def flags(fd): return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC
inside = os.open("inside", os.O_RDWR | os.O_CREAT)
asked = os.open("inside", os.O_RDWR | os.O_DSYNC)
outside = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(outside, b"end")
def real(fd): return int(open(f"/proc/self/fdinfo/{fd}").read().split("flags:")[1].split()[0], 8) & os.O_DSYNC
print([bool(flags(fd)) for fd in (inside, os.dup(inside), asked, outside)], [bool(real(fd)) for fd in (inside, asked, outside)])
try: os.open(".", os.O_WRONLY | os.O_CREAT)
except IsADirectoryError: print("a folder")
try: os.open("inside", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
except FileExistsError: print("it exists")
try: os.mkdir("missing/folder")
except FileNotFoundError: print("nothing there")
"#;

#[test]
fn a_program_sees_the_flags_that_it_asked_for() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (inside, outside) = (dir.path().join("folder"), dir.path().join("outside"));
    fs::create_dir(&inside)?;
    fs::write(&outside, "the ")?;
    let output = under("sync", &inside, &["python3", "-c", FLAGS, text(&outside)]).current_dir(&inside).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "[False, False, True, False] [True, True, False]\na folder\nit exists\nnothing there\n";
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(&outside)?, "the end");
    Ok(())
}
