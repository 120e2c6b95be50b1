//! What figures were taken on.

use std::{fs, thread};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vmio_report::machine;

/// A machine, without its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Result<Machine> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("asking for the kernel")?;
        Ok(Machine {
            processor: machine::processor().unwrap_or_else(|| "unknown".to_owned()),
            cores: thread::available_parallelism()?.get(),
            memory_gib: (machine::memory_bytes().unwrap_or_default() + (1 << 29)) >> 30,
            kernel: kernel.trim().split('-').next().unwrap_or_default().to_owned(),
        })
    }

    /// In words.
    pub fn describe(&self) -> String {
        let Machine { processor, cores, memory_gib, kernel } = self;
        format!("{processor}, {cores} cores, {memory_gib} GiB of memory, Linux {kernel}")
    }
}
