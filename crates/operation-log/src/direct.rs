//! Stores to a log without a system call, where its file is on persistent memory.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// A log's file on persistent memory, as the process has it mapped.
///
/// The caller of the log provides it, since the log itself maps nothing: see [`crate::LogOptions::directly`].
pub trait DirectFile: Send + Sync {
    /// Stores the buffers one behind the other, from a byte of the file on. If this returns true, they are durable. If it returns false, any part
    /// of them may be, and the log writes them by a system call.
    fn store(&self, offset: u64, buffers: &[IoSlice<'_>]) -> bool;

    /// Whether the file system needs no write to a block before stores to it are as cheap as later ones.
    fn needs_no_zeros(&self) -> bool {
        false
    }

    /// A duplicate of the log's descriptor that the mapping needs, if any. A forked child must close it: it shares the lock by which others know
    /// that the owner of the log is alive.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Maps a log's file, given its length in bytes; `None` if it is not on persistent memory.
pub type OpenDirectly = fn(BorrowedFd<'_>, u64) -> Option<Box<dyn DirectFile>>;
