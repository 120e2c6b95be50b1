//! Why a process cannot have its heap.

use std::io;
use std::path::PathBuf;

/// Why a process cannot have its heap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The file is there already, or cannot be made.
    #[error(
        "{path}: {source} (the heap's file is made anew, in a folder that may be written to: name one that is not there)"
    )]
    Create {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("the heap's file cannot be mapped: {0}")]
    Map(#[source] io::Error),
    /// vmio cannot map the file, or has no such cache.
    #[error(transparent)]
    Vmio(#[from] vmio::Error),
    /// It would hold nothing.
    #[error("the heap is too small: 128 MiB are the least (--heap-size)")]
    TooSmall,
    /// A process has one heap.
    #[error("this process has its heap already")]
    AlreadyThere,
}
