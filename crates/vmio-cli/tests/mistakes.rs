//! Mistakes of beginners: the command changes nothing, fails, and names the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::{TestResult, patterned, refused, succeeded, vmio};

fn kv(command: &str, store: &Path) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).arg(store);
    run
}

/// The command with a file for its input.
fn fed(mut command: Command, dir: &Path, input: &[u8]) -> Result<Command, Box<dyn std::error::Error>> {
    let file = dir.join("input");
    fs::write(&file, input)?;
    command.stdin(fs::File::open(file)?);
    Ok(command)
}

/// The command after some lines of shell, which may limit its resources.
fn after(shell: &str, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{shell}; exec \"$@\""), "sh"]).arg(command.get_program()).args(command.get_args());
    limited
}

#[test]
fn a_store_is_not_created_over_what_somebody_has() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("thesis.doc");
    for length in [2, 5000, 40 << 20] {
        fs::write(&file, patterned(length))?;
        refused(kv("create", &file).args(["--size", "32M"]), "holds something else")?;
        assert!(fs::read(&file)? == patterned(length), "{length} bytes were changed");
    }
    // The place of the superblock of btrfs, with nothing before it.
    let mut late = vec![0; 40 << 20];
    late[64 << 10] = 1;
    fs::write(&file, &late)?;
    refused(kv("create", &file).args(["--size", "32M"]), "--overwrite destroys it")?;
    assert!(fs::read(&file)? == late, "it was changed");
    succeeded(kv("create", &file).args(["--size", "64M", "--overwrite"]))?;
    succeeded(kv("put", &file).args(["apple", "red"]))?;
    refused(kv("create", &file).args(["--size", "64M"]), "--overwrite destroys it")?;
    succeeded(kv("create", &file).args(["--size", "64M", "--overwrite"]))?;
    assert_eq!(succeeded(&mut kv("scan", &file))?, "");
    succeeded(&mut kv("check", &file))?;
    for length in [0, 5000, 40 << 20] {
        fs::write(&file, vec![0; length])?;
        succeeded(kv("create", &file).args(["--size", "64M"]))?;
        refused(kv("create", &file).args(["--size", "64M"]), "holds a store already")?;
    }
    Ok(())
}

#[test]
fn files_that_hold_no_store_are_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    refused(kv("get", &store).arg("a"), "`vmio kv create` makes one")?;
    for length in [0, 3, 5000] {
        fs::write(&store, vec![7; length])?;
        refused(kv("get", &store).arg("a"), "holds no store")?;
        refused(&mut kv("check", &store), "holds no store")?;
    }
    fs::remove_file(&store)?;
    refused(kv("create", &store).args(["--size", "1M"]), "a volume cannot have 1048576 bytes: it has 32 MiB to")?;
    assert!(!store.exists());
    succeeded(kv("create", &store).args(["--size", "64M"]))?;
    refused(kv("grow", &store).arg("40M"), "is 64 MiB long: it can become longer, not shorter")?;
    Ok(())
}

#[test]
fn values_and_lines_that_cannot_be_put_are_named() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &store).args(["--size", "128M"]))?;
    refused(
        kv("put", &store).arg("a").arg("--file").arg(dir.path()),
        &format!("cannot read {}", dir.path().display()),
    )?;
    refused(&mut fed(kv("load", &store), dir.path(), b"apple red\n")?, "a line is KEY, a tab, VALUE")?;
    let mut binary = kv("load", &store);
    binary.args(["--format", "binary"]);
    refused(&mut fed(binary, dir.path(), b"abc")?, "pair 1: the input ends within it")?;
    succeeded(kv("put", &store).args(["a", "b"]))?;
    let there = dir.path().join("absent/value");
    refused(
        kv("get", &store).arg("a").arg("--out").arg(&there),
        &format!("there is no folder {}", dir.path().join("absent").display()),
    )?;
    Ok(())
}

#[test]
fn sizes_that_cannot_be_are_told_with_those_that_can() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &store).args(["--size", "64M"]))?;
    refused(kv("create-segment", &store).args(["--size", "1M"]), "--size 1 MiB is too little: a segment needs")?;
    for memory in ["0", "31M", "17T"] {
        refused(kv("get", &store).args(["a", "--memory", memory]), "'--memory <MEMORY>': it may be 32 MiB to 16 TiB")?;
    }
    for command in ["cat", "sum"] {
        let mut run = vmio();
        run.args([command, "--cache", "1M"]).arg(&store);
        refused(&mut run, "'--cache <CACHE>': it may be 6 MiB to 16 TiB")?;
    }
    Ok(())
}

/// A limit on the length of files stands for a full disk, which would take root.
#[test]
fn a_store_on_a_full_disk_says_so() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &store).args(["--size", "256M"]))?;
    let pairs: Vec<u8> = (0..60).flat_map(|key| format!("{key}\t{}\n", "x".repeat(1 << 20)).into_bytes()).collect();
    let limited = after("trap '' XFSZ; ulimit -f 40960", &kv("load", &store));
    refused(&mut fed(limited, dir.path(), &pairs)?, "File too large")
}

#[test]
fn files_are_named_once_and_what_is_wrong_with_them() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    fs::write(&file, patterned(5000))?;
    let mut sum = vmio();
    sum.arg("sum").arg(&file);
    let output = after("ulimit -n 4", &sum).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(!output.status.success() && error.matches("cannot open").count() == 1, "{error}");

    let full = fs::OpenOptions::new().write(true).open("/dev/full")?;
    refused(vmio().arg("cat").arg(&file).stdout(Stdio::from(full)), "standard output")?;
    refused(vmio().arg("cp").arg(&file).arg(dir.path().join("absent/copy")), "there is no folder")?;
    let recording = dir.path().join("absent.vmio");
    let output = vmio().arg("report").arg(&recording).arg("--out").arg(dir.path().join("page.html")).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(!output.status.success() && error.matches("cannot").count() == 1 && error.contains("No such"), "{error}");
    Ok(())
}

#[test]
fn a_cache_larger_than_memory_is_warned_of() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    fs::write(&file, patterned(5000))?;
    let said = |size: &str| -> Result<(bool, String), Box<dyn std::error::Error>> {
        let output = vmio().args(["sum", "--cache", size]).arg(&file).output()?;
        Ok((output.status.success(), String::from_utf8(output.stderr)?))
    };
    let warning = "more than this machine's memory";
    assert!(matches!(said("64M")?, (true, error) if !error.contains(warning)));
    let (is_ok, error) = said("8T")?;
    assert!(is_ok && error.contains(warning), "{error}");
    let output = vmio().args(["run", "--cache", "8T", "--under"]).arg(dir.path()).args(["--", "true"]).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(error.contains(warning), "{error}");
    Ok(())
}

/// In a container the machine's memory says nothing: the cgroup's limit counts.
#[test]
fn a_cache_larger_than_its_cgroup_is_warned_of() -> TestResult {
    let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    let (mount, limit) = if v1.exists() { (v1, "memory.limit_in_bytes") } else { (v2, "memory.max") };
    let group = mount.join(format!("vmio-mistakes-{}", std::process::id()));
    if fs::create_dir(&group).and_then(|()| fs::write(group.join(limit), "200000000")).is_err() {
        let _ = fs::remove_dir(&group);
        test_depth::skipped("this user may not make a memory cgroup");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    fs::write(&file, patterned(5000))?;
    let within = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > $0/cgroup.procs; exec \"$@\""]).arg(&group);
        command.arg(vmio().get_program()).args(arguments).arg(&file).output()
    };
    let (more, auto, share) =
        (within(&["sum", "--cache", "1G"]), within(&["sum", "--cache", "auto"]), within(&["sum", "--cache", "40%"]));
    // The kernel may take a moment to forget the processes.
    for _ in 0..100 {
        if fs::remove_dir(&group).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let error = String::from_utf8(more?.stderr)?;
    assert!(error.contains("memory cgroup leaves, 1") && error.contains("--cache auto"), "{error}");
    for output in [auto?, share?] {
        let error = String::from_utf8(output.stderr)?;
        assert!(output.status.success() && error.is_empty(), "{error}");
    }
    Ok(())
}

#[test]
fn what_is_no_program_is_told_from_what_is_not_there() -> TestResult {
    let dir = tempfile::tempdir()?;
    let script = dir.path().join("script");
    let run = |program: &Path| {
        let mut run = vmio();
        run.args(["run", "--cache", "64M", "--under"]).arg(dir.path()).arg("--").arg(program);
        run
    };
    // Checks the message and the exit status, which is that of shells.
    let refused_by = |program: &Path, message: &str, status: i32| -> TestResult {
        refused(&mut run(program), message)?;
        assert_eq!(run(program).output()?.status.code(), Some(status), "{message}");
        Ok(())
    };
    refused_by(Path::new("no-such-program"), "it is in no folder of PATH", 127)?;
    refused_by(&dir.path().join("absent"), "there is no such file", 127)?;
    refused_by(dir.path(), "it is a folder", 126)?;
    fs::write(&script, "echo hello\n")?;
    refused_by(&script, "chmod +x", 126)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    refused_by(&script, "a script that begins with #!", 126)?;
    fs::write(&script, "#!/absent/interpreter\n")?;
    refused_by(&script, &format!("{} is a script for /absent/interpreter", script.display()), 127)?;
    let colon = dir.path().join("a:b");
    fs::create_dir(&colon)?;
    let mut run = vmio();
    refused(run.args(["run", "--cache", "64M", "--under"]).arg(&colon).args(["--", "true"]), "a:b")
}

#[test]
fn a_process_is_a_number_and_a_recording_of_nothing_says_so() -> TestResult {
    for command in ["stat", "top"] {
        refused(vmio().args([command, "my-database"]), "`pgrep my-database` prints")?;
    }
    let dir = tempfile::tempdir()?;
    let output = vmio().args(["record", "--out"]).arg(dir.path().join("page.html")).args(["--", "true"]).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && error.contains("no cache"), "{error}");
    Ok(())
}

#[test]
fn a_trace_of_a_process_without_a_cache_says_that_it_waits() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut process = Command::new("sleep").arg("1").spawn()?;
    let mut trace = vmio();
    trace.arg("trace").arg("--out").arg(dir.path().join("trace")).args(["--pid", &process.id().to_string()]);
    refused(&mut trace, "waiting for one")?;
    process.wait()?;
    Ok(())
}

/// On a device in a file: a name may be a mistake.
#[test]
fn a_store_is_not_created_over_a_file_system_on_a_device() -> TestResult {
    let dir = tempfile::tempdir()?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    let device = disk.device()?;
    refused(kv("create", &device).args(["--size", "64M"]), "--overwrite destroys it")?;
    fs::write(disk.path().join("there"), "still")?;
    Ok(())
}
