//! The ways to reach a file's pages that are measured against each other.

pub mod mmap;
pub mod pointer;
pub mod pread;
pub mod vmio;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Our mapping with its own cache.
    Vmio,
    /// Our mapping by Linux `mmap`, its page cache kept within the budget by vmio and limited by a memory cgroup.
    VmioManaged,
    /// Linux `mmap`, its page cache limited by a memory cgroup.
    Mmap,
    /// `pread` and `pwrite` of whole pages past the page cache.
    Pread,
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vmio" => Ok(Self::Vmio),
            "vmio-managed" => Ok(Self::VmioManaged),
            "mmap" => Ok(Self::Mmap),
            "pread" => Ok(Self::Pread),
            _ => Err(format!("{text:?} is not an engine: write vmio, vmio-managed, mmap or pread")),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmio => "vmio",
            Self::VmioManaged => "vmio-managed",
            Self::Mmap => "mmap",
            Self::Pread => "pread",
        })
    }
}

/// An open file, shared by the threads of a run.
pub trait Engine: Sync {
    /// What one thread loads and stores through.
    type Access<'a>: Access
    where
        Self: 'a;

    /// Gives a thread its access.
    fn access(&self) -> anyhow::Result<Self::Access<'_>>;

    /// The counters of the cache, where there are any.
    fn stats(&self) -> Option<::vmio::Stats> {
        None
    }

    /// How much is cached now: warming up lasts while this grows.
    fn cached_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the file; everything stored is durable, or this fails.
    fn finish(self) -> anyhow::Result<()>;
}

/// Loads and stores of the words of a file. Offsets are multiples of the word size and inside.
pub trait Access {
    /// The word at byte offset `offset`.
    fn load(&mut self, offset: u64) -> anyhow::Result<u64>;

    /// Replaces the word at byte offset `offset`.
    fn store(&mut self, offset: u64, word: u64) -> anyhow::Result<()>;
}
