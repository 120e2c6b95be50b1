//! A file in persistent memory, by loads and stores that bypass the page cache and the block layer (DAX).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backing::file::change_len;
use crate::backing::file_locks::FileLocks;
use crate::backing::{Access, Backing, FileUser, Identity};
use crate::sys::fork::Generation;
use crate::sys::growing_map::GrowingMap;
use crate::sys::guest_mode;
use crate::{Error, Result};

/// A file on persistent memory (Aquila's direct way to NVM, thesis §5.2.2): a read or write is a copy between the device and memory
/// that bypasses the processor's caches.
///
/// The file system must map the device itself and make its own metadata durable before a store can happen (MAP_SYNC): ext4 or xfs
/// with `-o dax=always`. Behind [`crate::Mapping::open`] the pages are cached in DRAM like any other device's. With
/// [`crate::Mapping::open_direct`] the program's loads and stores go to the device.
///
/// A copy that the device refuses (a bad cell, no space for a hole) is an error. The kernel reports it by SIGBUS, for which vmio
/// installs a handler. Where SIGBUS is blocked, the signal ends the process. It does so too in the trap path, where a thread that
/// misses reads, and may help to write: allocate a file (fallocate) before stores to it.
///
/// The file is mapped from the start, with room to the next multiple of 1 GiB. As it grows beyond, further address space is mapped, as
/// much as there is already. Growth fails where the process may have no more, and where that would end behind the largest file that the
/// file system may have: on ext4 a file that began below 1 GiB grows to 8 TiB.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> vmio::Result<()> {
/// use vmio::backing::DaxBacking;
/// use vmio::{Access, Mapping, MappingOptions};
///
/// let file = DaxBacking::open("/mnt/pmem/data", Access::ReadWrite)?;
/// let map = Mapping::open_direct(file, MappingOptions::new())?;
/// map.write_at(0, b"durable when this returns")?;
/// # Ok(())
/// # }
/// ```
pub struct DaxBacking {
    file: File,
    map: GrowingMap,
    access: Access,
    len: AtomicU64,
    /// Changes of the length, and how many of them are durable. One counts from the start: what others have changed before, by
    /// system calls.
    resizes: AtomicU64,
    durable_resizes: AtomicU64,
    identity: Identity,
    generation: Generation,
    locks: FileLocks,
    path: String,
}

impl DaxBacking {
    /// Opens a file on persistent memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotDax`] for a file on anything else, and [`Error::Open`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self> {
        Self::open_as(path.as_ref(), path.as_ref(), access)
    }

    /// Opens the file at one path, with another one as its name in messages.
    pub(super) fn open_as(path: &Path, name: &Path, access: Access) -> Result<Self> {
        let failed = |source| Error::Open { path: name.display().to_string(), source };
        // Opening a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let file = File::options().read(true).write(access == Access::ReadWrite).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no longer a regular file")));
        }
        let map = GrowingMap::new(file.as_fd(), metadata.len(), access == Access::ReadWrite);
        let map = map.map_err(|source| match source.raw_os_error() {
            // EINVAL comes from Linux before 4.15, which has no MAP_SYNC.
            Some(libc::EOPNOTSUPP | libc::EINVAL) => Error::NotDax { path: name.display().to_string(), source },
            _ => failed(source),
        })?;
        Ok(DaxBacking {
            file,
            map,
            access,
            len: AtomicU64::new(metadata.len()),
            resizes: AtomicU64::new(1),
            durable_resizes: AtomicU64::new(0),
            identity: Identity { device: metadata.dev(), inode: metadata.ino() },
            generation: Generation::of_this_process().map_err(failed)?,
            locks: FileLocks::of_this_process().map_err(failed)?,
            path: name.display().to_string(),
        })
    }

    /// Returns the instructions that copy and write back, for messages, such as `AVX-512, clwb`.
    pub fn instructions(&self) -> String {
        self.map.to_string()
    }

    pub(crate) fn open_file(&self) -> &File {
        &self.file
    }

    /// The file's present length, which others may have changed.
    pub(crate) fn file_len(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_size as u64)
    }

    /// Changes the length of the file, even beyond this backing's own map. The new length is durable after a flush of the file.
    pub(crate) fn change_file_len(&self, len: u64) -> io::Result<()> {
        change_len(&self.file, self.len(), len)?;
        // Whoever sees the new length and writes there flushes it, too.
        self.resizes.fetch_add(1, Ordering::Release);
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Refuses bytes behind the present end, if somebody has shortened the file. In the trap path, a SIGBUS of the copy could not
    /// become an error. Also, bytes between the two ends would come back if the file grew again.
    ///
    /// At ring 0 the question would leave the machine, and a SIGBUS of the copy becomes an error there.
    fn check_not_shortened(&self, end: u64) -> io::Result<()> {
        if guest_mode::is_at_ring_0() {
            return Ok(());
        }
        match self.file_len()? >= end {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// A forked child does not have the map.
    fn check_not_forked(&self) -> io::Result<()> {
        if self.generation.is_current() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    /// The number of these bytes before the end.
    fn part(&self, offset: u64, bytes: usize) -> usize {
        self.len().saturating_sub(offset).min(bytes as u64) as usize
    }
}

/// The file, open for [`Backing::access`].
impl AsFd for DaxBacking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Backing for DaxBacking {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.check_not_forked()?;
        let bytes = self.part(offset, buffer.len());
        if bytes > 0 {
            self.check_not_shortened(offset + bytes as u64)?;
            self.map.load(offset, &mut buffer[..bytes])?;
        }
        Ok(bytes)
    }

    /// The bytes are durable when this returns: only the thread whose stores bypassed its caches can wait for them.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_not_forked()?;
        if self.access == Access::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let bytes = self.part(offset, data.len());
        if bytes > 0 {
            self.check_not_shortened(offset + bytes as u64)?;
            self.map.store(offset, &data[..bytes])?;
        }
        Ok(())
    }

    /// Makes changes of the length durable, and at the first time what others changed before this was opened; each time what is behind a medium
    /// of vmio-pmfs in an ordinary file. [`Self::write_at`] has done so for
    /// what it wrote.
    fn flush(&self) -> io::Result<()> {
        let resizes = self.resizes.load(Ordering::Acquire);
        if !self.map.is_synchronous() || self.durable_resizes.load(Ordering::Acquire) < resizes {
            // Past the C library, as all calls of a sync are.
            rustix::fs::fdatasync(&self.file)?;
            self.durable_resizes.fetch_max(resizes, Ordering::Release);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_not_forked()?;
        // Nobody may read behind the old end before that is mapped.
        self.map.grow(self.file.as_fd(), len)?;
        self.change_file_len(len)
    }

    /// Punches a hole. A later store to it fails where the file system has no space left.
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, hole, range.start, range.end - range.start)?)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        super::file::allocate(&self.file, range)
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn lock(&self, user: FileUser) -> Result<()> {
        self.locks.lock(user, self.file.as_fd(), &self.path)
    }

    fn unlock(&self) -> io::Result<()> {
        self.locks.unlock(self.file.as_fd())
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}
