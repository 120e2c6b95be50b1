//! Which heap a process wants.

use std::path::{Path, PathBuf};

use crate::engine::HeapEngine;

/// How many times the cache a heap is by default: the file takes room only for what is stored to.
const CACHES: u64 = 16;
/// The allocator takes memory by so much.
pub(crate) const SEGMENT_BYTES: u64 = 32 << 20;
/// Less would hold nothing.
pub const HEAP_BYTES_MIN: u64 = 4 * SEGMENT_BYTES;

/// Which heap a process wants.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    pub(crate) file: PathBuf,
    pub(crate) heap_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) engine: HeapEngine,
}

impl HeapOptions {
    /// A heap in this file, which must not be there and loses its name at once, with so much of it in memory.
    pub fn new(file: impl Into<PathBuf>, cache_bytes: u64) -> Self {
        let heap_bytes = (CACHES * cache_bytes).max(HEAP_BYTES_MIN).next_multiple_of(SEGMENT_BYTES);
        Self { file: file.into(), heap_bytes, cache_bytes, engine: HeapEngine::default() }
    }

    /// How much can be allocated: 16 times the cache unless set. The file takes room only for what is stored to.
    pub fn heap_bytes(self, bytes: u64) -> Self {
        Self { heap_bytes: bytes.next_multiple_of(SEGMENT_BYTES), ..self }
    }

    /// How much it will be, in whole parts of what the allocator takes at a time.
    pub fn length(&self) -> u64 {
        self.heap_bytes
    }

    /// The engine that keeps the heap within its cache.
    pub fn engine(self, engine: HeapEngine) -> Self {
        Self { engine, ..self }
    }

    /// The folder that the file is made in.
    pub(crate) fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }
}
