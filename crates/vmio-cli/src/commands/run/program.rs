//! The program that is to run, and whether the loader will preload anything into it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// Set-user-ID and set-group-ID.
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
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

/// Refuses a program that would run without vmio, and nobody would know.
pub fn check(program: &Path) -> Result<(), CannotRun> {
    check_each(program).map_err(|error| match error.downcast() {
        Ok(cannot_run) => cannot_run,
        Err(error) => CannotRun { status: NOT_EXECUTABLE, why: format!("{error:#}") },
    })
}

/// The program, or the one that runs the script, and so on.
fn check_each(program: &Path) -> anyhow::Result<()> {
    let mut program = program.to_owned();
    for _ in 0..SCRIPTS_MAX {
        check_privileges(&program)?;
        match interpreter(&program)? {
            Some(interpreter) if interpreter.exists() => program = interpreter,
            Some(interpreter) => {
                let (program, interpreter) = (program.display(), interpreter.display());
                let why = format!("{program} is to be run by {interpreter}, which is not there");
                return Err(CannotRun { status: NOT_FOUND, why }.into());
            }
            None => return check_loader(&program),
        }
    }
    bail!("{}: too many scripts that run scripts", program.display())
}

fn check_privileges(program: &Path) -> anyhow::Result<()> {
    let metadata = fs::metadata(program).with_context(|| format!("cannot look at {}", program.display()))?;
    let mode = metadata.permissions().mode();
    let user = mode & SETUID != 0 && metadata.uid() != rustix::process::getuid().as_raw();
    let group = mode & SETGID != 0 && metadata.gid() != rustix::process::getgid().as_raw();
    if user || group {
        bail!(
            "{} is a set{}id program: the loader preloads nothing into it, so vmio cannot serve its files",
            program.display(),
            if user { "u" } else { "g" }
        );
    }
    Ok(())
}

/// The program that runs a script.
fn interpreter(program: &Path) -> anyhow::Result<Option<PathBuf>> {
    let file = File::open(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut line = Vec::new();
    let read = BufReader::new(file).take(256).read_until(b'\n', &mut line);
    read.with_context(|| format!("cannot read {}", program.display()))?;
    let Some(rest) = line.strip_prefix(b"#!") else { return Ok(None) };
    let words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let words = words.map(OsStr::from_bytes).collect::<Vec<_>>();
    match words[..] {
        // The program that env looks for.
        [env, name, ..]
            if Path::new(env).file_name() == Some(OsStr::new("env")) && !name.as_bytes().starts_with(b"-") =>
        {
            Ok(Some(find(name)?))
        }
        [interpreter, ..] => Ok(Some(PathBuf::from(interpreter))),
        [] => Ok(None),
    }
}

/// A program that names no loader is static.
fn check_loader(program: &Path) -> anyhow::Result<()> {
    let file = File::open(program).with_context(|| format!("cannot read {}", program.display()))?;
    let data = ReadCache::new(file);
    let unknown = || {
        let program = program.display();
        format!("{program} is no program for this machine (64-bit ELF); a script begins with #! and what is to run it")
    };
    let header = elf::FileHeader64::<Endianness>::parse(&data).ok().with_context(unknown)?;
    let endian = header.endian().ok().with_context(unknown)?;
    let parts = header.program_headers(endian, &data).ok().with_context(unknown)?;
    if parts.iter().any(|part| part.p_type(endian) == elf::PT_INTERP) {
        return Ok(());
    }
    bail!(
        "{} is a static program: no loader preloads anything into it, so vmio cannot serve its files; link it dynamically",
        program.display()
    )
}
