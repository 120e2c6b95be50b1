//! A command that `vmio record` or `vmio trace` runs.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, bail};

/// Starts the command.
pub fn start(program: &OsString, arguments: &[OsString]) -> anyhow::Result<Child> {
    let child = Command::new(program).args(arguments).spawn();
    child.with_context(|| format!("cannot run {}", Path::new(program).display()))
}

/// Fails if the command has failed.
pub fn succeeded(program: &OsString, status: ExitStatus) -> anyhow::Result<()> {
    let program = Path::new(program).display();
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => bail!("{program} ended with status {code}"),
        (None, signal) => bail!("{program} was ended by signal {}", signal.unwrap_or_default()),
    }
}
