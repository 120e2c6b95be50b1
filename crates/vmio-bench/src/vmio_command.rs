//! The command `vmio`, which serves the programs that are measured.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use clap::ValueEnum;
use vmio_measure::child;

/// The modes of `vmio run --mode`, by its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunMode {
    /// What calls promise without vmio
    #[default]
    Posix,
    /// Each call that changes a file or a folder is durable when it returns
    Sync,
    /// As sync, and each write is whole or not there after a crash
    Strict,
}

/// There is no `vmio` where cargo builds it.
#[derive(Debug, thiserror::Error)]
#[error("{} is missing: build it in the same way, `cargo build --release -p vmio-cli`", .0.display())]
pub struct NoVmio(PathBuf);

/// `vmio run`, of the `vmio` beside this program.
pub fn run() -> anyhow::Result<Command> {
    let itself = child::itself()?;
    let vmio = itself.parent().context("this program is in no folder")?.join("vmio");
    if !vmio.is_file() {
        return Err(NoVmio(vmio).into());
    }
    let mut command = Command::new(vmio);
    command.arg("run");
    Ok(command)
}
