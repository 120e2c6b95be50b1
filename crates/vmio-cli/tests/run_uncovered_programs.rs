//! `vmio run` of programs that start others which run without vmio: static programs, and Go programs.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::programs::{as_nobody, compiled, for_everybody, leave_out, text};
use crate::common::{TestResult, succeeded, vmio};
use rustix::fs::{XattrFlags, setxattr};

const CALLS: [&str; 14] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execle",
    "execlp",
    "fexecve",
    "execveat",
    "syscall",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "vfork",
];
/// The exit status of the started programs.
const STATUS: i32 = 7;

/// A program in C, linked with these arguments.
fn linked(folder: &Path, name: &str, arguments: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let (source, program) = (folder.join("status.c"), folder.join(name));
    fs::write(&source, format!("int main(void) {{ return {STATUS}; }}"))?;
    succeeded(Command::new("cc").arg("-o").arg(&program).arg(&source).args(arguments))?;
    Ok(program)
}

/// The calls that the program `bare` makes with an environment without vmio.
const BARE_CALLS: [&str; 7] = ["execve", "execv", "execvpe", "execle", "fexecve", "execveat", "posix_spawn"];

#[test]
fn a_program_whose_environment_lacks_vmio_is_told_of_or_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (bare, program) = (compiled("bare", dir.path(), &[])?, linked(dir.path(), "dynamic", &[])?);
    for call in BARE_CALLS {
        let words = [text(&bare), call, text(&program)];
        let output = run("--cache 8M --stats --json", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(STATUS), "{call}: {said}");
        assert_eq!(said.matches("runs without vmio: its environment does not have").count(), 1, "{call}: {said}");
        if call == "posix_spawn" {
            let process = format!("\"process\":{},", String::from_utf8_lossy(&output.stdout).trim());
            assert!(said.contains(&process), "{said}");
        }
        let output = run("--mode posix --strict-coverage", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = if call == "execle" { 126 } else { libc::EACCES };
        assert_eq!(output.status.code(), Some(expected), "{call}: {said}");
        assert!(said.contains("dynamic is refused (--strict-coverage): its environment"), "{call}: {said}");
    }
    Ok(())
}

#[test]
fn a_program_is_found_as_the_call_finds_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (bare, uncovered) = (compiled("bare", dir.path(), &[])?, linked(dir.path(), "uncovered", &["-static"])?);
    for (call, expected) in [
        ("path", "uncovered runs without vmio: it is a static program"),
        ("folder", "uncovered runs without vmio: it is a static program"),
        ("unset", "bin/true runs without vmio: its environment"),
    ] {
        let output = run("--cache 8M", dir.path(), &[text(&bare), call, text(&uncovered)])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(if call == "unset" { 0 } else { STATUS }), "{call}: {said}");
        assert_eq!(said.matches(expected).count(), 1, "{call}: {said}");
    }
    Ok(())
}

#[test]
fn rights_that_the_kernel_gives_a_file_keep_vmio_out_and_those_of_a_script_do_not() -> TestResult {
    let dir = tempfile::tempdir()?;
    let vmio = for_everybody(dir.path())?;
    let program = linked(dir.path(), "capable", &[])?;
    let script = dir.path().join("script");
    fs::write(&script, "#!/bin/sh\nexit 3\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o4755))?;
    // Revision 2, in force at once: CAP_NET_RAW.
    let mut capabilities = [0_u8; 20];
    capabilities[..8].copy_from_slice(&[1, 0, 0, 2, 0, 32, 0, 0]);
    if setxattr(&program, "security.capability", &capabilities, XattrFlags::empty()).is_err() {
        return leave_out("this user may give programs no capabilities");
    }
    let work = dir.path().join("work");
    fs::create_dir(&work)?;
    let line = format!("{}; {}", text(&program), text(&script));
    let mut command = Command::new(vmio);
    command.args(["run", "--cache", "8M", "--engine", "managed", "--under"]).arg(&work).args(["--", "sh", "-c", &line]);
    let output = as_nobody(&mut command, &work).current_dir(&work).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("capable runs without vmio: it is a program with capabilities").count(), 1, "{said}");
    assert!(!said.contains("script runs"), "{said}");
    Ok(())
}

/// A program with the note of Go's linker, which it has whether or not the C library is linked.
fn of_go(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let note = folder.join("note.s");
    let text = "\t.section .note.GNU-stack,\"\",@progbits\n\t.section .note.go.buildid,\"a\",@note\n\t.long 4, 4, 4\n\t.asciz \"Go\"\n\t.byte 0\n\t.ascii \"abcd\"\n";
    fs::write(&note, text)?;
    linked(folder, "of-go", &[note.to_str().ok_or("a path is not UTF-8")?])
}

fn run(options: &str, folder: &Path, words: &[&str]) -> Result<Output, Box<dyn Error>> {
    let mut command = vmio();
    command.arg("run").args(options.split(' ')).arg("--under").arg(folder).arg("--").args(words);
    Ok(command.current_dir(folder).output()?)
}

#[test]
fn each_call_tells_of_a_program_that_is_not_seen_or_refuses_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    let becomes = compiled("becomes", dir.path(), &[])?;
    let uncovered = linked(dir.path(), "uncovered", &["-static"])?;
    for call in CALLS {
        let words = [text(&becomes), call, text(&uncovered)];
        let output = run("--cache 8M", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(STATUS), "{call}: {said}");
        assert_eq!(said.matches("uncovered runs without vmio: it is a static program").count(), 1, "{call}: {said}");

        let output = run("--mode strict --strict-coverage", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        // execl and related calls cannot fail: the process ends like a shell that cannot run a program, and as `system` does.
        let expected = if ["execl", "execle", "execlp", "system"].contains(&call) { 126 } else { libc::EACCES };
        assert_eq!(output.status.code(), Some(expected), "{call}: {said}");
        assert!(said.contains("uncovered is refused (--strict-coverage): it is a static program"), "{call}: {said}");
    }
    Ok(())
}

#[test]
fn a_shell_tells_of_each_program_once_and_statistics_list_each_process() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (uncovered, go) = (linked(dir.path(), "uncovered", &["-static"])?, of_go(dir.path())?);
    fs::write(dir.path().join("script"), format!("#!{}\n", text(&uncovered)))?;
    succeeded(Command::new("chmod").arg("+x").arg(dir.path().join("script")))?;
    let line = format!("for n in 1 2 3; do {} ; ./script; {}; done; exit 0", text(&uncovered), text(&go));
    for options in ["--cache 8M", "--mode posix", "--cache 8M --stats --json"] {
        let output = run(options, dir.path(), &["sh", "-c", &line])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {said}");
        let lines = |what: &str| said.lines().filter(|line| line.contains(what)).count();
        // The message for the script names its interpreter.
        assert_eq!(lines("runs without vmio: it is a static program"), 1, "{options}: {said}");
        assert_eq!(lines("of-go runs without vmio: it is a Go program"), 1, "{options}: {said}");
        let listed = if options.contains("--json") { 9 } else { 0 };
        let not_served = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        assert_eq!(not_served.filter(|report| report["served"] == false).count(), listed, "{options}: {said}");
    }
    Ok(())
}

#[test]
fn a_program_of_go_is_told_of_or_refused_at_the_start() -> TestResult {
    let dir = tempfile::tempdir()?;
    let go = of_go(dir.path())?;
    for (options, status, expected) in [
        ("--cache 8M", STATUS, "runs without vmio: it is a Go program"),
        ("--cache 8M --strict-coverage", 126, "it is a Go program"),
    ] {
        let output = run(options, dir.path(), &[text(&go)])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{options}: {said}");
        assert!(said.contains(expected), "{options}: {said}");
    }
    Ok(())
}
