//! The engine that keeps a heap within its cache.

use std::str::FromStr;

/// The engine that keeps a heap within its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeapEngine {
    /// vmio: the kernel takes the faults, and a thread gives up pages before memory is short.
    #[default]
    Managed,
    /// Nobody: a plain shared mapping, for comparison. The cache's size is not used; a memory cgroup may limit it.
    Mmap,
}

impl HeapEngine {
    /// All there are.
    pub const ALL: [HeapEngine; 2] = [HeapEngine::Managed, HeapEngine::Mmap];

    /// As it is called in options.
    pub fn name(self) -> &'static str {
        match self {
            HeapEngine::Managed => "managed",
            HeapEngine::Mmap => "mmap",
        }
    }
}

/// No engine has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such engine of a heap")]
pub struct UnknownEngine;

impl FromStr for HeapEngine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        HeapEngine::ALL.into_iter().find(|engine| engine.name() == name).ok_or(UnknownEngine)
    }
}
