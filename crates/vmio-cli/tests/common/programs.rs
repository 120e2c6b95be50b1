//! The programs to run with vmio and without.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{TestResult, succeeded, vmio};

/// Says why a test is left out; CI has everything that the tests need.
pub fn leave_out(why: &str) -> TestResult {
    test_depth::skipped_outside_ci(why);
    Ok(())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// The command that runs a program without vmio.
pub fn plain(program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    command
}

/// The path of a C program's source, in the folder beside this file.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).with_extension("c")
}

/// Compiles such a program, with options for the compiler, or further sources.
pub fn compiled(name: &str, folder: &Path, options: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(source(name))
        .args(options);
    succeeded(&mut compiler)?;
    Ok(program)
}

/// A path for a command line.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Much less than the programs map.
const CACHE: &str = "8M";

/// The command that runs a program with the files of a folder mapped through vmio.
pub fn mapped(engine: &str, folder: &Path, program: &[&str]) -> Command {
    let mut command = vmio();
    command.args(["run", "--engine", engine, "--cache", CACHE, "--stats", "--json", "--under"]);
    command.arg(folder).arg("--").args(program);
    command
}

/// The final report of the process that mapped the most.
pub fn report(output: &Output) -> Result<serde_json::Value, Box<dyn Error>> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let reports = errors.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    Ok(reports.max_by_key(|report| report["mappings"].as_u64()).ok_or_else(|| format!("no report: {errors}"))?)
}

/// Copies the command, with its library, to a folder that every user may read: the checkout may lie where others may not.
pub fn for_everybody(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let command = Path::new(env!("CARGO_BIN_EXE_vmio"));
    let library = command.with_file_name("deps").join("libvmio_posix.so");
    for file in [command, &library] {
        fs::copy(file, folder.join(file.file_name().ok_or("no name")?))?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    Ok(folder.join("vmio"))
}

/// A user without any right.
pub const NOBODY: u32 = 65534;

/// Makes a command run as that user, and gives that user a folder, if this one may do so.
pub fn as_nobody<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    if chown(folder, Some(NOBODY), Some(NOBODY)).is_ok() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
