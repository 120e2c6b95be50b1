//! A regular file or a block device, whose reads and writes bypass the page cache (O_DIRECT).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backing::file_locks::FileLocks;
use crate::backing::{Access, Backing, FileUser, Identity};
use crate::sys::polled_rings::PolledRings;
use crate::sys::{PAGE_BYTES, positioned};
use crate::{Error, Result};

/// A file or block device behind a mapping.
///
/// Whole blocks go through O_DIRECT. The write of a last, partial block is buffered, with its exact length, since a direct write
/// would lengthen the file. On a file system without O_DIRECT, or with blocks larger than a page, all I/O is buffered, and a
/// warning says so. The bytes then take memory in the page cache as well.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// use vmio::Access;
/// use vmio::backing::{Backing, FileBacking};
///
/// drop(FileBacking::create(&path, 1 << 20)?);
/// let file = FileBacking::open(&path, Access::ReadOnly)?;
/// assert_eq!(file.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
pub struct FileBacking {
    direct: File,
    buffered: File,
    is_direct: bool,
    is_device: bool,
    block_bytes: u64,
    access: Access,
    len: AtomicU64,
    identity: Identity,
    locks: FileLocks,
    path: String,
    /// For direct I/O without system calls.
    polled: Option<Arc<PolledRings>>,
}

impl FileBacking {
    /// Opens an existing file or block device.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self> {
        Self::open_as(path.as_ref(), path.as_ref(), access)
    }

    /// Opens the file at one path, with another one as its name in messages.
    pub(super) fn open_as(path: &Path, name: &Path, access: Access) -> Result<Self> {
        Self::open_io(path, name, access).map_err(|source| Error::Open { path: name.display().to_string(), source })
    }

    /// Creates a sparse file of `len` zeros, or turns an existing file into one, and opens it for writing.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], and [`Error::InUse`] if another process maps the existing file.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        let path = path.as_ref();
        let failed = |source| Error::Open { path: path.display().to_string(), source };
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let locks = FileLocks::of_this_process().map_err(failed)?;
        // No data may go before it is clear that nobody has mapped the file.
        locks.lock(FileUser::CachedWriter, file.as_fd(), &path.display().to_string())?;
        let emptied = file.set_len(0).and_then(|()| file.set_len(len)).map_err(failed);
        let opened = emptied.and_then(|()| Self::open(path, Access::ReadWrite));
        // Without this, a child forked meanwhile would keep the lock.
        locks.unlock(file.as_fd()).map_err(failed)?;
        opened
    }

    fn open_io(path: &Path, name: &Path, access: Access) -> io::Result<Self> {
        // Opening a pipe would wait for its other end.
        if std::fs::metadata(path)?.file_type().is_fifo() {
            return Err(neither_file_nor_device());
        }
        let mut options = File::options();
        options.read(true).write(access == Access::ReadWrite);
        let buffered = options.open(path)?;
        let metadata = buffered.metadata()?;
        let kind = metadata.file_type();
        let is_device = kind.is_block_device();
        if !kind.is_file() && !is_device {
            return Err(neither_file_nor_device());
        }
        let (block_bytes, len, identity) = if is_device {
            let block_bytes = u64::from(rustix::fs::ioctl_blksszget(&buffered)?);
            let identity = Identity { device: 0, inode: metadata.rdev() };
            (block_bytes, device_len(&buffered)?, identity)
        } else {
            let identity = Identity { device: metadata.dev(), inode: metadata.ino() };
            (direct_alignment(&buffered)?, metadata.len(), identity)
        };
        // Through /proc: this is the same file, even if the path names another one by now.
        let same = format!("/proc/self/fd/{}", buffered.as_raw_fd());
        let direct = options.custom_flags(libc::O_DIRECT).open(same);
        let fits = (1..=PAGE_BYTES as u64).contains(&block_bytes);
        let (direct, is_direct) = match direct {
            Ok(direct) if fits => (direct, true),
            other => {
                let why = match other {
                    Ok(_) => {
                        format!("its blocks of {block_bytes} bytes are larger than a page, or it has no direct I/O")
                    }
                    Err(error) => error.to_string(),
                };
                tracing::warn!(path = %name.display(), why, "no direct I/O: reads and writes go through the page cache");
                (buffered.try_clone()?, false)
            }
        };
        let block_bytes = if fits { block_bytes } else { 1 };
        let len = AtomicU64::new(len);
        let path = name.display().to_string();
        let locks = FileLocks::of_this_process()?;
        let polled = None;
        Ok(FileBacking {
            direct,
            buffered,
            is_direct,
            is_device,
            block_bytes,
            access,
            len,
            identity,
            locks,
            path,
            polled,
        })
    }

    /// Has whole blocks read and written through these rings; with none, by system calls.
    pub(crate) fn through(self, polled: Option<Arc<PolledRings>>) -> Self {
        FileBacking { polled: polled.filter(|_| self.is_direct), ..self }
    }

    /// Reads up to the buffer's length, whole blocks unless the file ends.
    fn read_direct(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.polled {
            Some(rings) if rings.read(self.direct.as_fd(), buffer, offset) => Ok(buffer.len()),
            _ => positioned::read_at(&self.direct, buffer, offset),
        }
    }

    /// Writes whole blocks.
    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match &self.polled {
            Some(rings) if rings.write(self.direct.as_fd(), data, offset) => Ok(()),
            _ => positioned::write_all_at(&self.direct, data, offset),
        }
    }

    /// Returns whether the I/O of whole blocks bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns whether this is a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Returns the unit of direct I/O in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Refuses writes behind the present end: they would bring back bytes that somebody has truncated.
    fn check_not_truncated(&self, end: u64) -> io::Result<()> {
        if self.is_device || rustix::fs::fstat(&self.direct)?.st_size as u64 >= end {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

impl Backing for FileBacking {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            // A short direct read that ends inside a block is at the end of the file. If not, the unaligned rest is a buffered
            // read.
            let aligned = (done as u64).is_multiple_of(self.block_bytes);
            let from = offset + done as u64;
            let read = match aligned {
                true => self.read_direct(&mut buffer[done..], from),
                false => positioned::read_at(&self.buffered, &mut buffer[done..wanted], from),
            };
            match read? {
                0 => break,
                bytes => done += bytes,
            }
        }
        Ok(done.min(wanted))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = self.len();
        let end = offset + data.len() as u64;
        let data = &data[..(end.min(len).saturating_sub(offset)) as usize];
        self.check_not_truncated(offset + data.len() as u64)?;
        let direct = data.len() - data.len() % self.block_bytes as usize;
        let (direct, tail) = data.split_at(direct);
        self.write_direct(direct, offset)?;
        positioned::write_all_at(&self.buffered, tail, offset + direct.len() as u64)
    }

    fn flush(&self) -> io::Result<()> {
        // Past the C library, as reads and writes are.
        Ok(rustix::fs::fdatasync(&self.buffered)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_device {
            // The device may have become longer since the opening.
            if !(self.len()..=device_len(&self.buffered)?).contains(&len) {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "a block device has the length that it has"));
            }
        } else {
            change_len(&self.buffered, self.len(), len)?;
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Punches a hole into a file, or discards the range of a block device. Some devices and file systems cannot.
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.buffered, hole, range.start, range.end - range.start)?)
    }

    /// Allocates blocks that read as zeros until written. It does nothing on a file system that cannot allocate ahead.
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        if self.is_device { Ok(()) } else { allocate(&self.buffered, range) }
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn lock(&self, user: FileUser) -> Result<()> {
        self.locks.lock(user, self.buffered.as_fd(), &self.path)
    }

    fn unlock(&self) -> io::Result<()> {
        self.locks.unlock(self.buffered.as_fd())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.buffered.as_fd())
    }

    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        Some(self.direct.as_fd())
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}

fn neither_file_nor_device() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")
}

/// The alignment that the file system requires for direct I/O, or 0 if it has no direct I/O.
fn direct_alignment(file: &File) -> io::Result<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let answer = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(0x2000)); // STATX_DIOALIGN
    match answer {
        Ok(answer) if answer.stx_mask & 0x2000 != 0 => Ok(u64::from(answer.stx_dio_offset_align)),
        // Linux before 6.1 does not tell: the page size satisfies every file system there.
        _ => Ok(PAGE_BYTES as u64),
    }
}

/// Changes the length of a file, which was `before` as far as this process knows. A file that somebody else has already given this
/// length is left alone: others may append to it meanwhile.
pub(super) fn change_len(file: &File, before: u64, len: u64) -> io::Result<()> {
    let is_changed = file.metadata()?.len() == len || len > before && lengthen(file, len)?;
    if is_changed { Ok(()) } else { file.set_len(len) }
}

/// Makes a file longer, but never shorter: somebody else may have lengthened it further. False where the file system cannot do
/// this.
fn lengthen(file: &File, len: u64) -> io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), len - 1, 1) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Allocates space for a range of a file, if the file system can do that ahead of writes.
pub(super) fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, range.start, range.end - range.start) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            done => return Ok(done?),
        }
    }
}

fn device_len(device: &File) -> io::Result<u64> {
    use std::io::Seek;
    let mut device = device;
    device.seek(io::SeekFrom::End(0))
}
