//! `vmio run` of programs that start others which run without vmio: static ones, and those of Go.

mod common;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::programs::{compiled, text};
use common::{TestResult, succeeded, vmio};

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
/// What the programs end with that are started.
const STATUS: i32 = 7;

/// A program in C, linked with these arguments.
fn linked(folder: &Path, name: &str, arguments: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let (source, program) = (folder.join("status.c"), folder.join(name));
    fs::write(&source, format!("int main(void) {{ return {STATUS}; }}"))?;
    succeeded(Command::new("cc").arg("-o").arg(&program).arg(&source).args(arguments))?;
    Ok(program)
}

/// What Go's linker writes into its programs, whether the C library is linked or not.
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
    let unseen = linked(dir.path(), "unseen", &["-static"])?;
    for call in CALLS {
        let words = [text(&becomes), call, text(&unseen)];
        let output = run("--cache 8M", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(STATUS), "{call}: {said}");
        assert_eq!(said.matches("unseen runs without vmio: it is a static program").count(), 1, "{call}: {said}");

        let output = run("--mode strict --strict-coverage", dir.path(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        // execl and its kin cannot fail: the process ends as a shell does that cannot run a program, and as `system` says.
        let expected = if ["execl", "execle", "execlp", "system"].contains(&call) { 126 } else { libc::EACCES };
        assert_eq!(output.status.code(), Some(expected), "{call}: {said}");
        assert!(said.contains("unseen is refused (--strict-coverage): it is a static program"), "{call}: {said}");
    }
    Ok(())
}

#[test]
fn a_shell_tells_of_each_program_once_and_statistics_list_each_process() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (unseen, go) = (linked(dir.path(), "unseen", &["-static"])?, of_go(dir.path())?);
    fs::write(dir.path().join("script"), format!("#!{}\n", text(&unseen)))?;
    succeeded(Command::new("chmod").arg("+x").arg(dir.path().join("script")))?;
    let line = format!("for n in 1 2 3; do {} ; ./script; {}; done; exit 0", text(&unseen), text(&go));
    for options in ["--cache 8M", "--mode posix", "--cache 8M --stats --json"] {
        let output = run(options, dir.path(), &["sh", "-c", &line])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {said}");
        let lines = |what: &str| said.lines().filter(|line| line.contains(what)).count();
        // The script is told of by its program.
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
