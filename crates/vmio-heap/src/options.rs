//! The options of a process's heap.

use std::path::{Path, PathBuf};

use crate::engine::HeapEngine;

/// The default size of a heap, in caches: the file takes space only for pages with stores.
const CACHES: u64 = 16;
/// The allocator takes memory in pieces of this size.
pub(crate) const SEGMENT_BYTES: u64 = 32 << 20;
/// The least size of a heap: in less, the allocator has no room for blocks.
pub const HEAP_BYTES_MIN: u64 = 4 * SEGMENT_BYTES;

/// The options of a process's heap.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    pub(crate) file: PathBuf,
    pub(crate) heap_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) engine: HeapEngine,
}

impl HeapOptions {
    /// A heap in this file, which must not exist and loses its name at once. At most `cache_bytes` of it are in memory.
    pub fn new(file: impl Into<PathBuf>, cache_bytes: u64) -> Self {
        let heap_bytes = (CACHES * cache_bytes).max(HEAP_BYTES_MIN).next_multiple_of(SEGMENT_BYTES);
        Self { file: file.into(), heap_bytes, cache_bytes, engine: HeapEngine::default() }
    }

    /// The most that can be allocated. The file takes space only for pages with stores.
    ///
    /// # Default
    ///
    /// 16 times the cache, but at least [`HEAP_BYTES_MIN`].
    pub fn heap_bytes(self, bytes: u64) -> Self {
        Self { heap_bytes: bytes.next_multiple_of(SEGMENT_BYTES), ..self }
    }

    /// The length of the heap: a multiple of the allocator's pieces.
    pub fn length(&self) -> u64 {
        self.heap_bytes
    }

    /// The engine that keeps the heap within its cache.
    pub fn engine(self, engine: HeapEngine) -> Self {
        Self { engine, ..self }
    }

    /// The folder of the file.
    pub(crate) fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }
}
