//! Debuggers, tracers and core dumps of programs in the virtual machine of their process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::common::programs::{compiled, has, leave_out};
use crate::common::ring0::{chooses_level, has_been_inside, under};
use crate::common::{TestResult, succeeded};

/// Said by the program at its end.
const END: &str = "all rounds are made\n";
/// As a user would have to: threads that touch mapped memory outside enter by this signal.
const PASS: &str = "handle SIGSEGV nostop noprint pass";

/// It comes while the thread is in KVM_RUN, stops the program in its own code, and stores to its memory.
#[test]
fn a_debugger_comes_and_goes() -> TestResult {
    if !has("gdb") {
        return leave_out("gdb is not installed");
    }
    let dir = tempfile::tempdir()?;
    let program = compiled("debugged", dir.path(), &["-g"])?;
    let mut command = under(dir.path(), "8M");
    command.arg(&program).arg(dir.path().join("data")).arg("-1").stdout(Stdio::piped()).stderr(Stdio::null());
    if !chooses_level(&mut command, dir.path())? {
        return Ok(());
    }
    let mut debugged = command.spawn()?;
    let mut said = BufReader::new(debugged.stdout.take().ok_or("it is piped")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    assert_eq!(line, "begun\n");
    assert!(has_been_inside(debugged.id())?);
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &debugged.id().to_string(), "-ex", PASS]);
    let script = ["break go_round", "continue", "backtrace 2", "set variable wanted = rounds + 2", "delete", "detach"];
    for step in script {
        gdb.args(["-ex", step]);
    }
    let output = gdb.output()?;
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if failed.contains("Operation not permitted") {
        debugged.kill()?;
        debugged.wait()?;
        return leave_out("this user may not debug other processes");
    }
    assert!(told.contains("#0  go_round") && told.contains("in main"), "{told}\n{failed}");
    let mut rest = String::new();
    said.read_to_string(&mut rest)?;
    assert!(debugged.wait()?.success());
    assert_eq!(rest, END);
    Ok(())
}

#[test]
fn a_tracer_sees_calls_and_changes_nothing() -> TestResult {
    if !has("strace") {
        return leave_out("strace is not installed");
    }
    let dir = tempfile::tempdir()?;
    let (program, trace) = (compiled("debugged", dir.path(), &[])?, dir.path().join("trace"));
    let mut run = under(dir.path(), "8M");
    run.arg(&program).arg(dir.path().join("data")).arg("2");
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&trace).arg(run.get_program()).args(run.get_args());
    if !chooses_level(&mut command, dir.path())? {
        return Ok(());
    }
    assert_eq!(succeeded(&mut command)?, format!("begun\n{END}"));
    let trace = fs::read_to_string(trace)?;
    assert!(trace.contains("KVM_RUN") && trace.contains(r#"write(1, "begun\n", 6)"#), "{trace}");
    Ok(())
}

/// The kernel would give memory to each page of a shared mapping, to dump it: the pool of frames is as large as the host's memory.
#[test]
fn a_core_dump_has_the_program_and_not_the_pool() -> TestResult {
    const MOST_MIBYTES: u64 = 128;
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    if pattern.contains(['/', '|', '%']) {
        test_depth::skipped("core dumps go elsewhere here");
        return Ok(());
    }
    for (end, signal) in [("abort", libc::SIGABRT), ("segv", libc::SIGSEGV)] {
        let dir = tempfile::tempdir()?;
        let program = compiled("debugged", dir.path(), &["-g"])?;
        let mut run = under(dir.path(), "8M");
        run.arg(&program).arg(dir.path().join("data")).args(["2", end]);
        let mut command = Command::new("bash");
        // In KiB. Without a limit a dump with the pool would take the host's memory.
        command.args(["-c", &format!("ulimit -c {} && exec \"$@\"", MOST_MIBYTES << 10), "bash"]);
        command.arg(run.get_program()).args(run.get_args()).current_dir(dir.path()).stderr(Stdio::null());
        if !chooses_level(&mut command, dir.path())? {
            return Ok(());
        }
        let status = command.stdout(Stdio::null()).status()?;
        if !status.core_dumped() && status.signal() == Some(signal) {
            return leave_out("this user may have no core dump");
        }
        assert!(status.core_dumped() && status.signal() == Some(signal), "{status}");
        let names = fs::read_dir(dir.path())?.flatten();
        let core = names.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("/core"));
        let core = core.ok_or("there is no core dump")?;
        // Of blocks of 512 bytes: it has holes where memory was reserved and never touched.
        let mibytes = fs::metadata(&core)?.blocks() / 2048;
        assert!(mibytes < MOST_MIBYTES / 2, "the core dump has {mibytes} MiB");
        if has("gdb") {
            let mut gdb = Command::new("gdb");
            gdb.args(["-nx", "-batch", "-ex", "backtrace", "-ex", "print rounds"]).arg(&program).arg(&core);
            let told = succeeded(&mut gdb)?;
            assert!(told.contains("main (") && told.contains("$1 = 2"), "{told}");
        }
    }
    Ok(())
}
