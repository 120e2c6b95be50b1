//! The reasons why a process cannot have its heap.

use std::io;
use std::path::PathBuf;

/// The reason why a process cannot have its heap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The file exists already, or cannot be made.
    #[error(
        "{path}: {source} (the heap's file is made anew, in a folder that may be written to: name one that is not there)"
    )]
    Create {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("the heap's file cannot be mapped: {0}")]
    Map(#[source] io::Error),
    /// vmio cannot map the file, or has no such cache.
    #[error(transparent)]
    Vmio(#[from] vmio::Error),
    /// The heap is shorter than [`HEAP_BYTES_MIN`](crate::HEAP_BYTES_MIN), or the allocator does not take it.
    #[error("the heap is too small: 128 MiB are the least (--heap-size)")]
    TooSmall,
    /// The process has its heap already, and can have only one.
    #[error("this process has its heap already")]
    AlreadyThere,
}
