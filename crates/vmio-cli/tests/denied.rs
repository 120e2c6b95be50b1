//! The command where userfaultfd is denied, as in most containers.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::process::{Command, Output};
use std::thread;

use crate::common::{TestResult, patterned, vmio};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Runs a command whose calls of userfaultfd and process_madvise fail with EPERM.
fn run_denied(mut command: Command) -> Result<Output, Box<dyn Error>> {
    let rules: BTreeMap<_, _> =
        [libc::SYS_userfaultfd, libc::SYS_process_madvise].iter().map(|call| (*call, Vec::new())).collect();
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, std::env::consts::ARCH.try_into()?)?;
    let program = BpfProgram::try_from(filter)?;
    // A filter belongs to the thread that installs it and to the processes that this thread starts.
    let output = thread::spawn(move || -> Result<Output, String> {
        seccompiler::apply_filter(&program).map_err(|error| error.to_string())?;
        command.output().map_err(|error| error.to_string())
    });
    Ok(output.join().map_err(|_| "the thread has panicked")??)
}

#[test]
fn doctor_says_which_engine_is_used_and_why() -> TestResult {
    let mut command = vmio();
    command.arg("doctor");
    let output = run_denied(command)?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Will be used: the managed engine"), "{text}");
    assert!(text.contains("seccomp"), "{text}");
    let mut command = vmio();
    command.args(["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&run_denied(command)?.stdout)?;
    assert_eq!((&report["engine"], &report["usable"]), (&"managed".into(), &true.into()));
    Ok(())
}

#[test]
fn files_are_read_and_written_all_the_same() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::write(&source, patterned((9 << 20) + 77))?;
    let mut command = vmio();
    command.args(["cp", "--cache", "8M"]).args([&source, &copy]);
    let output = run_denied(command)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("seccomp"), "the fallback is not told: {said}");
    assert!(fs::read(&copy)? == patterned((9 << 20) + 77), "the copy differs");
    Ok(())
}
