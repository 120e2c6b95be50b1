//! The programs that are run with vmio and without.
#![allow(dead_code, reason = "not every test file needs all of it")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{TestResult, succeeded};

/// Says why a test is left out; CI has all that the tests need.
pub fn leave_out(why: &str) -> TestResult {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("left out: {why}");
    Ok(())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Without vmio.
pub fn plain(program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    command
}

/// A C program of the folder beside this file.
pub fn compiled(name: &str, folder: &Path, options: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).with_extension("c");
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source).args(options);
    succeeded(&mut compiler)?;
    Ok(program)
}

/// For a command line.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
