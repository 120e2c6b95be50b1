//! Where the bytes live.

mod batch;
mod dax;
mod file;
mod file_locks;
mod locking;
mod memory;
mod new_file;
mod null;
mod nvme;
mod shared;

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

pub use crate::file_user::{FileUser, Holder};

pub use batch::BatchReader;
pub use dax::DaxBacking;
pub use file::FileBacking;
pub(crate) use locking::Locking;
pub use memory::MemoryBacking;
pub use new_file::NewFile;
pub use null::NullBacking;
pub use nvme::{Commands, NvmeBacking, Submission};

/// What a mapping may do to its backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Identifies a file or device within the system, so that opening it twice gives one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The device number: of the file system that holds the file, or 0 for a device.
    pub device: u64,
    /// The inode number, or the device's own number.
    pub inode: u64,
}

/// Bytes by offset: reads and writes whole pages, flushes, tells its length.
///
/// `read_at`, `write_at` and `len` are called from the trap path, inside a signal handler of a thread that may hold
/// any lock of the program: they must be async-signal-safe. They must not allocate, lock, or touch mapped memory
/// (build errors with [`io::Error::from_raw_os_error`] or from an [`io::ErrorKind`], which do not allocate). Buffers
/// start at a multiple of the page size; offsets are multiples of it.
pub trait Backing: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether it holds no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be done to it.
    fn access(&self) -> Access;

    /// Fills the front of `buffer` from `offset`; returns how many bytes, fewer than asked for only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`. `data` ends at a page boundary or at [`Self::len`]. An error means that any
    /// part of it may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Returns once everything written before is durable.
    fn flush(&self) -> io::Result<()>;

    /// Changes the length. New bytes read as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Says that nobody needs what a range holds, so that its room may be given back. It reads as zeros or as before from now on, and
    /// after a power cut too, until it is written anew. The default does nothing.
    fn discard(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Gives a range room, so that no later write to it lacks any; what the range holds stays. The error is of the kind
    /// [`io::ErrorKind::StorageFull`] or [`io::ErrorKind::QuotaExceeded`] if there is none; a part may have got some then. The default,
    /// for what has its room from the start, does nothing.
    fn allocate(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// The identity of the file or device; `None` for a backing that only this object reaches.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Keeps off other processes whose pages and this one's would not stay the same; [`crate::Error::InUse`] if one of them
    /// was here first. In a forked child, which shares the open file, the lock would be its parent's: [`crate::Error::Forked`]. The default
    /// keeps off nobody.
    fn lock(&self, _user: FileUser) -> crate::Result<()> {
        Ok(())
    }

    /// Gives the lock up, also on behalf of forked children that share it. A child cannot give up its parent's.
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    /// The file or device itself, opened for [`Self::access`], if there is one that the kernel can map:
    /// [`crate::Engine::Managed`] needs it, and reads and writes through it alone.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The file or device by which the kernel itself can read whole pages at their offsets, and what [`Self::read_at`]
    /// would have read; best one open for direct I/O. [`crate::Mapping::fetch`] then reads it through io_uring, without it
    /// in background threads. A read that fails or comes short is tried again by [`Self::read_at`].
    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Says at which addresses the buffers lie that most reads will be made into, and then those that most writes will come from, so
    /// that they may be registered with the device, the first ones rather than the others; none from the moment on when that memory
    /// may become another's. Never called in the trap path. The default does nothing.
    fn prefer_buffers(&self, _addresses: &[Range<usize>]) {}

    /// What it is, for messages.
    fn describe(&self) -> String;
}
