//! The program that is to run, and whether the loader will preload anything into it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use preloadable::{FRONT_BYTES, Program, Script, Unseen};

/// Linux follows so many scripts that are the interpreters of others.
const SCRIPTS_MAX: usize = 5;

/// The program does not run. Its status is the one that shells have for that, so that scripts can tell it from what the program returns.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct CannotRun {
    /// The exit status: [`NOT_FOUND`] or [`NOT_EXECUTABLE`].
    pub status: u8,
    why: String,
}

/// There is no such program.
const NOT_FOUND: u8 = 127;
/// It is there, and is not run.
const NOT_EXECUTABLE: u8 = 126;

impl CannotRun {
    /// After an attempt to execute it.
    pub fn after(error: &io::Error, program: &Path) -> Self {
        let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        CannotRun { status, why: format!("cannot run {}: {error}", program.display()) }
    }
}

/// The file of a program, looked for as the shell does.
pub fn find(name: &OsStr) -> Result<PathBuf, CannotRun> {
    which::which(name).map_err(|_| {
        let (status, why) = why_not(name);
        CannotRun { status, why: format!("cannot run {}: {why}", name.to_string_lossy()) }
    })
}

/// Why there is no such program.
fn why_not(name: &OsStr) -> (u8, &'static str) {
    if !name.as_bytes().contains(&b'/') {
        return (NOT_FOUND, "it is in no folder of PATH; what only a shell knows is run by: sh -c '...'");
    }
    match fs::metadata(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => (NOT_FOUND, "there is no such file"),
        Err(_) => (NOT_EXECUTABLE, "this user may not look at it"),
        Ok(metadata) if metadata.is_dir() => (NOT_EXECUTABLE, "it is a folder"),
        Ok(_) => (NOT_EXECUTABLE, "this user may not execute it (chmod +x allows that)"),
    }
}

/// Refuses a program that would run without vmio, and nobody would know. A program of Go that has a loader is told of, or refused if
/// the user wants none that vmio does not see.
pub fn check(program: &Path, strict_coverage: bool) -> Result<(), CannotRun> {
    check_each(program, strict_coverage).map_err(|error| match error.downcast() {
        Ok(cannot_run) => cannot_run,
        Err(error) => CannotRun { status: NOT_EXECUTABLE, why: format!("{error:#}") },
    })
}

/// The program, or the one that runs the script, and so on.
fn check_each(program: &Path, strict_coverage: bool) -> anyhow::Result<()> {
    let mut program = program.to_owned();
    let mut front = [0; FRONT_BYTES];
    for _ in 0..SCRIPTS_MAX {
        let unreadable = || format!("cannot read {}", program.display());
        let file = File::open(&program).with_context(unreadable)?;
        let interpreter = match Program::of(&file, &mut front).with_context(unreadable)? {
            Program::Seen => return Ok(()),
            Program::Unseen(why @ Unseen::Go { has_loader: true }) if !strict_coverage => {
                eprintln!("vmio run: {} runs without vmio: {why}", program.display());
                return Ok(());
            }
            Program::Unseen(Unseen::Static) => {
                bail!("{}: {}, so vmio cannot serve its files; link it dynamically", program.display(), Unseen::Static)
            }
            Program::Unseen(why) => bail!("{}: {why}, so vmio cannot serve its files", program.display()),
            Program::Unknown => bail!(
                "{} is no program for this machine (64-bit ELF); a script begins with #! and what is to run it",
                program.display()
            ),
            Program::Script(script) => interpreter(script)?,
        };
        if !interpreter.exists() {
            let why = format!("{} is to be run by {}, which is not there", program.display(), interpreter.display());
            return Err(CannotRun { status: NOT_FOUND, why }.into());
        }
        program = interpreter;
    }
    bail!("{}: too many scripts that run scripts", program.display())
}

/// The program that runs a script; where that is env, the one that env looks for.
fn interpreter(script: Script<'_>) -> Result<PathBuf, CannotRun> {
    let is_env = Path::new(script.interpreter).file_name() == Some(OsStr::new("env"));
    match script.argument {
        Some(name) if is_env && !name.as_bytes().starts_with(b"-") => find(name),
        _ => Ok(PathBuf::from(script.interpreter)),
    }
}
