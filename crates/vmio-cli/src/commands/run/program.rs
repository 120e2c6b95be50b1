//! The program to run, and whether the loader will preload libraries into it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use preloadable::{FRONT_BYTES, Program, Script, Uncovered};

/// Linux follows at most this number of scripts that interpret each other.
const SCRIPTS_MAX: usize = 5;

/// The program does not run. The status is that of shells, so that scripts can tell it from a status of the program.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct CannotRun {
    /// The exit status: [`NOT_FOUND`] or [`NOT_EXECUTABLE`].
    pub status: u8,
    why: String,
}

/// There is no such program.
const NOT_FOUND: u8 = 127;
/// The program exists, but cannot run.
const NOT_EXECUTABLE: u8 = 126;

impl CannotRun {
    /// The error after an attempt to execute the program.
    pub fn after(error: &io::Error, program: &Path) -> Self {
        let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        CannotRun { status, why: format!("cannot run {}: {error}", program.display()) }
    }
}

/// The file of a program, found in PATH as a shell does.
pub fn find(name: &OsStr) -> Result<PathBuf, CannotRun> {
    which::which(name).map_err(|_| {
        let (status, why) = why_not(name);
        CannotRun { status, why: format!("cannot run {}: {why}", name.to_string_lossy()) }
    })
}

/// The status and reason for a program that was not found.
fn why_not(name: &OsStr) -> (u8, &'static str) {
    if !name.as_bytes().contains(&b'/') {
        return (NOT_FOUND, "it is in no folder of PATH; for a shell command, run: sh -c '...'");
    }
    match fs::metadata(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => (NOT_FOUND, "there is no such file"),
        Err(_) => (NOT_EXECUTABLE, "this user may not access it"),
        Ok(metadata) if metadata.is_dir() => (NOT_EXECUTABLE, "it is a folder"),
        Ok(_) => (NOT_EXECUTABLE, "this user may not execute it (chmod +x makes it executable)"),
    }
}

/// Refuses a program that would run without vmio unnoticed. A Go program with a loader gets only a message, unless `strict_coverage` is
/// set.
pub fn check(program: &Path, strict_coverage: bool) -> Result<(), CannotRun> {
    check_each(program, strict_coverage).map_err(|error| match error.downcast() {
        Ok(cannot_run) => cannot_run,
        Err(error) => CannotRun { status: NOT_EXECUTABLE, why: format!("{error:#}") },
    })
}

/// Checks the program or, if it is a script, its interpreter, and so on.
fn check_each(program: &Path, strict_coverage: bool) -> anyhow::Result<()> {
    let mut program = program.to_owned();
    let mut front = [0; FRONT_BYTES];
    for _ in 0..SCRIPTS_MAX {
        let unreadable = || format!("cannot read {}", program.display());
        let file = File::open(&program).with_context(unreadable)?;
        let interpreter = match Program::of(&file, &mut front).with_context(unreadable)? {
            Program::Covered => return Ok(()),
            Program::Uncovered(why @ Uncovered::Go { has_loader: true }) if !strict_coverage => {
                eprintln!("vmio run: {} runs without vmio: {why}", program.display());
                return Ok(());
            }
            Program::Uncovered(Uncovered::Static) => {
                bail!(
                    "{}: {}, so vmio cannot serve its files; link it dynamically",
                    program.display(),
                    Uncovered::Static
                )
            }
            Program::Uncovered(why) => bail!("{}: {why}, so vmio cannot serve its files", program.display()),
            Program::Unknown => bail!(
                "{} is not a program for this machine (64-bit ELF), nor a script that begins with #! and its interpreter",
                program.display()
            ),
            Program::Script(script) => interpreter(script)?,
        };
        if !interpreter.exists() {
            let why = format!("{} is a script for {}, which does not exist", program.display(), interpreter.display());
            return Err(CannotRun { status: NOT_FOUND, why }.into());
        }
        program = interpreter;
    }
    bail!("{}: scripts interpret each other more than 5 times: name a program", program.display())
}

/// The interpreter of a script; if that is env, the program that env looks for.
fn interpreter(script: Script<'_>) -> Result<PathBuf, CannotRun> {
    let is_env = Path::new(script.interpreter).file_name() == Some(OsStr::new("env"));
    match script.argument {
        Some(name) if is_env && !name.as_bytes().starts_with(b"-") => find(name),
        _ => Ok(PathBuf::from(script.interpreter)),
    }
}
