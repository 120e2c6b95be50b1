//! The messages of `vmio run` go to the standard error output that the program began with, and to no other file that has its number later.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::programs::{compiled, plain, text};
use crate::common::{TestResult, succeeded, vmio};

const HOWS: [&str; 4] = ["--cache 8M --engine managed", "--cache 8M", "--mode posix", "--mode strict --cache 8M"];

/// Runs the program by `sh`, with a redirection, and checks that its database has no foreign bytes.
fn run(how: &str, folder: &Path, words: &[&str], redirection: &str) -> Result<Output, Box<dyn Error>> {
    let work = folder.join("work");
    fs::create_dir(&work)?;
    let mut command = vmio();
    command.arg("run").args(how.split(' ')).args(["--verbose", "--stats", "--json", "--under"]).arg(&work).arg("--");
    let line = format!("exec \"$@\" {redirection}");
    let output = command.args(["sh", "-c", &line, "sh"]).args(words).current_dir(&work).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{how}, {words:?}: {said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 bytes\n", "{how}, {words:?}");
    assert_eq!(fs::metadata(work.join("database"))?.len(), 0, "{how}, {words:?}: when it ended");
    fs::remove_dir_all(&work)?;
    Ok(output)
}

#[test]
fn nothing_is_said_to_what_has_the_number_of_the_standard_error_output() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("said", dir.path(), &[])?;
    let (source, uncovered) = (dir.path().join("nothing.c"), dir.path().join("uncovered"));
    fs::write(&source, "int main(void) { return 0; }")?;
    succeeded(plain(&["cc", "-static", "-o"]).args([&uncovered, &source]))?;
    for how in HOWS {
        run(how, dir.path(), &[text(&program), "before"], "")?;
        run(how, dir.path(), &[text(&program), "closed"], "2>&-")?;
        run(how, dir.path(), &[text(&program), "starts", text(&uncovered)], "")?;
    }
    Ok(())
}

#[test]
fn a_process_that_has_used_files_says_what_it_has_to_say_all_the_same() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("said", dir.path(), &[])?;
    for how in HOWS {
        let output = run(how, dir.path(), &[text(&program), "after"], "")?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("\"process\":").count(), 1, "{how}: {said}");
    }
    Ok(())
}

/// A program whose variables the library does not understand would lack what its user was promised.
#[test]
fn a_program_with_a_wrong_variable_does_not_start() -> TestResult {
    let dir = tempfile::tempdir()?;
    let mut command = vmio();
    command.args(["run", "--mode", "strict", "--under"]).arg(dir.path());
    let output = command.args(["--", "env", "VMIO_RUN_MODE=lax", "echo", "started"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(126), &b""[..]), "{said}");
    assert_eq!(said, "vmio run: the program does not start: VMIO_RUN_MODE has no such value as lax\n");
    Ok(())
}
