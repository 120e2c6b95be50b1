//! The ways to reach a file's pages that the benchmark compares.

pub mod mmap;
pub mod pointer;
pub mod pread;
pub mod vmio;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::vmio::Variant;

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum EngineKind {
    /// Our mapping with its own cache.
    Vmio(Variant),
    /// Linux `mmap`, its page cache limited by a memory cgroup.
    Mmap,
    /// `pread` and `pwrite` of whole pages past the page cache.
    Pread,
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|engine| engine.to_string() == text).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(|engine| engine.to_string()).collect();
            format!("{text:?} is not an engine: there are {}", names.join(", "))
        })
    }
}

impl EngineKind {
    /// Every engine.
    pub fn all() -> impl Iterator<Item = Self> {
        Variant::ALL.into_iter().map(Self::Vmio).chain([Self::Mmap, Self::Pread])
    }

    /// Whether it is a cache of ours.
    pub fn is_vmio(self) -> bool {
        matches!(self, Self::Vmio(_))
    }
}

impl TryFrom<String> for EngineKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<EngineKind> for String {
    fn from(engine: EngineKind) -> Self {
        engine.to_string()
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmio(variant) => variant.name(),
            Self::Mmap => "mmap",
            Self::Pread => "pread",
        })
    }
}

/// An open file, shared by the threads of a run.
pub trait Engine: Sync {
    /// One thread's way to load and store.
    type Access<'a>: Access
    where
        Self: 'a;

    /// Gives a thread its access.
    fn access(&self) -> anyhow::Result<Self::Access<'_>>;

    /// The counters of the cache, if there are any.
    fn stats(&self) -> Option<::vmio::Stats> {
        None
    }

    /// The bytes that are cached now: warming up lasts while they grow.
    fn cached_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the file. Everything stored is then durable, or this fails.
    fn finish(self) -> anyhow::Result<()>;
}

/// Loads and stores of the words of a file. Offsets are multiples of the word size, inside the file.
pub trait Access {
    /// The word at byte offset `offset`.
    fn load(&mut self, offset: u64) -> anyhow::Result<u64>;

    /// Replaces the word at byte offset `offset`.
    fn store(&mut self, offset: u64, word: u64) -> anyhow::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_what_they_are_called() {
        let names: Vec<_> = EngineKind::all().map(|engine| engine.to_string()).collect();
        assert_eq!(
            names,
            [
                "vmio",
                "vmio-memfd",
                "vmio-reader-thread",
                "vmio-managed",
                "vmio-kernel",
                "vmio-ring0",
                "vmio-ring0-polled",
                "vmio-16k",
                "vmio-64k",
                "mmap",
                "pread"
            ]
        );
        for engine in EngineKind::all() {
            let json = serde_json::to_string(&engine).unwrap();
            assert_eq!(json, format!("\"{engine}\""));
            assert_eq!(serde_json::from_str::<EngineKind>(&json).unwrap(), engine);
        }
    }
}
