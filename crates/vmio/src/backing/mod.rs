//! Backings, which mappings map: files, block devices, NVMe namespaces, persistent memory, or a program's own.

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

/// The kinds of access that a mapping has to its backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only: read-only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// The identity of a file or device within the system. A process maps backings with the same identity as one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The device number: of the file system that holds the file, or 0 for a device.
    pub device: u64,
    /// The inode number, or the device's own number.
    pub inode: u64,
}

/// The storage behind a mapping: bytes by offset, which the mapping reads and writes by whole pages.
///
/// vmio calls `read_at`, `write_at` and `len` in the trap path, inside a signal handler of a thread that may hold any lock of the
/// program. They must therefore be async-signal-safe, and not allocate, lock, or touch mapped memory; nor may they be cancellation points, as
/// the C library's pread(2) is, in programs that cancel threads. Build errors with
/// [`io::Error::from_raw_os_error`] or from an [`io::ErrorKind`], which do not allocate. The addresses of buffers and all offsets
/// are multiples of the page size.
///
/// # Examples
///
/// ```
/// use std::io;
/// use vmio::Access;
/// use vmio::backing::Backing;
///
/// /// A page for each number, filled with it.
/// struct Numbers;
///
/// impl Backing for Numbers {
///     fn len(&self) -> u64 {
///         256 * 4096
///     }
///     fn access(&self) -> Access {
///         Access::ReadOnly
///     }
///     fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
///         (offset / 4096..).zip(buffer.chunks_mut(4096)).for_each(|(page, bytes)| bytes.fill(page as u8));
///         Ok(buffer.len())
///     }
///     fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
///         Err(io::Error::from_raw_os_error(30)) // EROFS
///     }
///     fn flush(&self) -> io::Result<()> {
///         Ok(())
///     }
///     fn set_len(&self, _len: u64) -> io::Result<()> {
///         Err(io::Error::from_raw_os_error(30))
///     }
///     fn describe(&self) -> String {
///         "numbers".to_owned()
///     }
/// }
///
/// # fn main() -> vmio::Result<()> {
/// let cache = vmio::Cache::builder().capacity(16 << 20).build()?;
/// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
/// let map = vmio::Mapping::open(&cache, Numbers, vmio::MappingOptions::new())?;
/// let mut byte = [0];
/// map.read_at(7 * 4096, &mut byte)?;
/// assert_eq!(byte, [7]);
/// # Ok(())
/// # }
/// ```
pub trait Backing: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the backing has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the backing is read-only or read-write.
    fn access(&self) -> Access;

    /// Fills the front of `buffer` from `offset`, and returns the number of bytes, which is less than the buffer's length only at
    /// the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`. `data` ends at a page boundary or at [`Self::len`].
    ///
    /// # Errors
    ///
    /// After an error any part of `data` may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all earlier writes durable.
    fn flush(&self) -> io::Result<()>;

    /// Changes the length. New bytes read as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Discards the contents of a range, so that its space may be given back.
    ///
    /// Until the next write the range reads as zeros or as before, even after a power cut.
    ///
    /// # Default
    ///
    /// Does nothing.
    fn discard(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Allocates space for a range and keeps its contents, so that no later write to it lacks space.
    ///
    /// # Default
    ///
    /// Does nothing, for backings that have their space from the start.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::StorageFull`] or [`io::ErrorKind::QuotaExceeded`] if there is no space. A part of the range may have space
    /// then.
    fn allocate(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Returns the identity of the file or device, or `None` for a backing that only this object reaches.
    ///
    /// # Default
    ///
    /// `None`.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Locks out other processes whose pages would differ from those of this process.
    ///
    /// # Default
    ///
    /// Locks out nobody.
    ///
    /// # Errors
    ///
    /// [`crate::Error::InUse`] if such a process maps the backing. [`crate::Error::Forked`] in a forked child, which shares the
    /// open file: the lock would be its parent's.
    fn lock(&self, _user: FileUser) -> crate::Result<()> {
        Ok(())
    }

    /// Releases the lock, also for forked children that share it. A child cannot release its parent's lock.
    ///
    /// # Default
    ///
    /// Does nothing.
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the file or device itself, opened for [`Self::access`], if the kernel can map it.
    ///
    /// [`crate::Engine::Managed`] needs this file, and reads and writes only through it.
    ///
    /// # Default
    ///
    /// `None`.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the file or device from which the kernel can read whole pages at their offsets, best one open for direct I/O.
    ///
    /// Its contents are those that [`Self::read_at`] reads. [`crate::Mapping::fetch`] reads it through io_uring; without such a
    /// file it reads in background threads. [`Self::read_at`] repeats a read that fails or comes short.
    ///
    /// # Default
    ///
    /// `None`.
    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Names the addresses of buffers, for registration with the device.
    ///
    /// The first ones are preferred: first the buffers of most reads, then those of most writes. A call without addresses announces
    /// that other uses of that memory may follow. vmio never calls this in the trap path.
    ///
    /// # Default
    ///
    /// Does nothing.
    fn prefer_buffers(&self, _addresses: &[Range<usize>]) {}

    /// Returns a description of the backing for messages, such as its path.
    fn describe(&self) -> String;
}
