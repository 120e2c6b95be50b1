//! What figures were taken on.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

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
        let processors = fs::read_to_string("/proc/cpuinfo").context("asking for the processor")?;
        let memory = fs::read_to_string("/proc/meminfo").context("asking for the memory")?;
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib: u64 =
            value(&memory, "MemTotal").and_then(|said| said.split(' ').next()?.parse().ok()).unwrap_or_default();
        Ok(Machine {
            processor: value(&processors, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .split('-')
                .next()
                .unwrap_or_default()
                .to_owned(),
        })
    }

    /// In words.
    pub fn describe(&self) -> String {
        let Machine { processor, cores, memory_gib, kernel } = self;
        format!("{processor}, {cores} cores, {memory_gib} GiB of memory, Linux {kernel}")
    }
}

/// Today, as 2026-12-31.
pub fn today() -> Result<String> {
    let said = Command::new("date").arg("+%F").output().context("running date")?;
    Ok(String::from_utf8(said.stdout)?.trim().to_owned())
}
