//! The engine that keeps a heap within its cache.

use std::str::FromStr;

/// The engine that keeps a heap within its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeapEngine {
    /// vmio: the kernel takes the faults, and a thread gives up pages before memory is short.
    #[default]
    Managed,
    /// None: a plain shared mapping, for comparison. It ignores the cache's size; a memory cgroup may limit it.
    Mmap,
}

impl HeapEngine {
    /// All engines.
    pub const ALL: [HeapEngine; 2] = [HeapEngine::Managed, HeapEngine::Mmap];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            HeapEngine::Managed => "managed",
            HeapEngine::Mmap => "mmap",
        }
    }
}

/// The error of a name that no engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such engine of a heap")]
pub struct UnknownEngine;

impl FromStr for HeapEngine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        HeapEngine::ALL.into_iter().find(|engine| engine.name() == name).ok_or(UnknownEngine)
    }
}
