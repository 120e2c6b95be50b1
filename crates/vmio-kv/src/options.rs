//! How a store is opened.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::region::Limits;

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// When the log is next written and flushed: at the latest when the store is closed. What is in this process's memory
    /// by then, some megabytes, is lost if it is killed; unlike a log in the page cache, which only a power cut takes.
    None,
    /// At the latest after this time.
    Periodic(Duration),
    /// When the call returns. Writers that wait at the same time share a flush.
    Sync,
}

/// How a store is opened: see the methods.
#[derive(Clone, Debug)]
pub struct Options {
    memory_bytes: u64,
    memory_level_bytes: Option<u64>,
    growth_factor: u64,
    durability: Durability,
    max_volume_bytes: u64,
    max_space_amplification: f64,
}

/// The least memory that a store works in.
const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// The log's chunks in memory.
const TAIL_BYTES: u64 = 8 << 20;

impl Options {
    /// 256 MiB of memory, levels ten times as large as the one above, writes durable when they return.
    pub fn new() -> Self {
        Options {
            memory_bytes: 256 << 20,
            memory_level_bytes: None,
            growth_factor: 10,
            durability: Durability::Sync,
            max_volume_bytes: 1 << 30,
            max_space_amplification: 1.5,
        }
    }

    /// The memory that the store may take, in bytes: 32 MiB at least. 8 MiB are for the end of the log, an eighth for
    /// the level in memory, twice; the cache of nodes and records has the rest, and what the levels do not take at the moment. At present
    /// each further region has its own level in memory: what all of them take above a quarter comes on top.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Bytes of a region's level in memory, from which on it is spilled; an eighth of the memory unless this says otherwise, which
    /// is the most.
    pub fn memory_level_bytes(mut self, bytes: u64) -> Self {
        self.memory_level_bytes = Some(bytes);
        self
    }

    /// How many times more entries each level has than the one above: 2 to 100.
    pub fn growth_factor(mut self, factor: u64) -> Self {
        self.growth_factor = factor;
        self
    }

    /// When writes are durable, unless a write says otherwise.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long the file of a volume that is created may become. It is sparse: what is not used takes no room.
    pub fn max_volume_bytes(mut self, bytes: u64) -> Self {
        self.max_volume_bytes = bytes;
        self
    }

    /// How many times as large as what is live in it the log may become before garbage is collected: 1.1 to 100. The chunks that are
    /// written to (some megabytes), and 8 MiB beside, are not counted; what a chunk could not be filled with counts as live.
    pub fn max_space_amplification(mut self, factor: f64) -> Self {
        self.max_space_amplification = factor;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |option, value, why| Err(Error::Option { option, value, why });
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return wrong("memory_bytes", self.memory_bytes, "a store works in 32 MiB at least");
        }
        if !(2..=100).contains(&self.growth_factor) {
            return wrong("growth_factor", self.growth_factor, "it is 2 to 100");
        }
        if !(1.1..=100.0).contains(&self.max_space_amplification) {
            let percent = (self.max_space_amplification * 100.0) as u64;
            return wrong("max_space_amplification, in hundredths,", percent, "it is 1.1 to 100");
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        let most = self.memory_bytes / 8;
        let memory_level_bytes = self.memory_level_bytes.unwrap_or(most).min(most);
        Limits { memory_level_bytes, growth_factor: self.growth_factor }
    }

    /// What the cache has at least: beside two full levels in memory.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes_beside(u64::MAX)
    }

    /// What it has where levels in memory take so much.
    pub(crate) fn cache_bytes_beside(&self, level_bytes: u64) -> u64 {
        self.memory_bytes - level_bytes.min(self.memory_bytes / 4) - TAIL_BYTES
    }

    /// By how much levels in memory have to change before the cache does.
    pub(crate) fn memory_step_bytes(&self) -> u64 {
        self.memory_bytes / 64
    }

    pub(crate) fn space_amplification(&self) -> f64 {
        self.max_space_amplification
    }

    pub(crate) fn default_durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn volume_bytes(&self) -> u64 {
        self.max_volume_bytes
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
