//! A command that is run to be looked at.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, bail};

/// Starts it.
pub fn start(program: &OsString, arguments: &[OsString]) -> anyhow::Result<Child> {
    let child = Command::new(program).args(arguments).spawn();
    child.with_context(|| format!("cannot run {}", Path::new(program).display()))
}

/// What it could not do, we have not done either.
pub fn succeeded(program: &OsString, status: ExitStatus) -> anyhow::Result<()> {
    let program = Path::new(program).display();
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => bail!("{program} ended with status {code}"),
        (None, signal) => bail!("{program} was ended by signal {}", signal.unwrap_or_default()),
    }
}
