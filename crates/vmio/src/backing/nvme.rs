//! An NVMe namespace, by commands that bypass the block layer: the driver passes them through to the device.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::backing::file_locks::FileLocks;
use crate::backing::{Access, Backing, FileUser, Identity};
use crate::sys::PAGE_BYTES;
pub use crate::sys::nvme::Commands;
use crate::sys::nvme::{self, CommandRings, Geometry, Memory};
use crate::{Error, Result};

/// How commands are submitted to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// By io_uring, without interrupts: a waiting thread polls the device's queue. The driver needs poll queues (`nvme.poll_queues`
    /// on the kernel's command line).
    Polled,
    /// By io_uring, with an interrupt at the end of a command.
    Interrupting,
    /// By ioctl, one command at a time, where the kernel is older than Linux 6.1 or io_uring is disabled.
    Ioctl,
}

/// An NVMe namespace behind a mapping (Aquila's SPDK path, thesis §5.2.2), by its character device: `/dev/ng0n1`.
///
/// A mapping claims the namespace: nobody can mount it meanwhile. Mapping a namespace with a mounted file system or any other
/// exclusive user is an error. Reads and writes are whole logical blocks of 4096 bytes at most.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> vmio::Result<()> {
/// use vmio::backing::NvmeBacking;
/// use vmio::{Access, Cache, Mapping, MappingOptions};
///
/// let cache = Cache::builder().capacity(1 << 30).build()?;
/// let namespace = NvmeBacking::open("/dev/ng0n1", Access::ReadWrite)?;
/// let map = Mapping::open(&cache, namespace, MappingOptions::new())?;
/// # Ok(())
/// # }
/// ```
pub struct NvmeBacking {
    device: File,
    /// The block device of the same namespace, for locks and claims.
    block_device: File,
    block_path: PathBuf,
    claim: Mutex<Option<File>>,
    /// `None` for [`Submission::Ioctl`].
    rings: Option<CommandRings>,
    submission: Submission,
    geometry: Geometry,
    access: Access,
    identity: Identity,
    locks: FileLocks,
    path: String,
}

impl NvmeBacking {
    /// Opens a namespace by its character device.
    ///
    /// Reads need rights to the device. Before Linux 6.2, writes need CAP_SYS_ADMIN as well.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self> {
        let path = path.as_ref();
        Self::open_by(path, access, &[Submission::Polled, Submission::Interrupting])
            .map_err(|source| Error::Open { path: path.display().to_string(), source })
    }

    /// Opens a namespace as [`Self::open`] does, with one kind of submission, for comparisons.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn open_with(path: impl AsRef<Path>, access: Access, submission: Submission) -> Result<Self> {
        let path = path.as_ref();
        Self::open_by(path, access, &[submission])
            .and_then(|backing| match backing.submission == submission {
                true => Ok(backing),
                false => {
                    Err(io::Error::new(io::ErrorKind::Unsupported, format!("{submission:?} commands do not work")))
                }
            })
            .map_err(|source| Error::Open { path: path.display().to_string(), source })
    }

    fn open_by(path: &Path, access: Access, ways: &[Submission]) -> io::Result<Self> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut options = File::options();
        options.read(true).write(access == Access::ReadWrite);
        let device = options.open(path)?;
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("ng"));
        let (Some(name), true) = (name, device.metadata()?.file_type().is_char_device()) else {
            return Err(wrong("not the character device of an NVMe namespace, such as /dev/ng0n1".into()));
        };
        let block_path = path.with_file_name(format!("nvme{name}"));
        let block_device = options.open(&block_path)?;
        let geometry = Geometry::of(device.as_fd())?;
        if geometry.metadata_bytes > 0 || !(512..=PAGE_BYTES as u64).contains(&geometry.block_bytes) {
            let Geometry { block_bytes, metadata_bytes, .. } = geometry;
            let what = format!("its blocks have {block_bytes} bytes and {metadata_bytes} of metadata");
            return Err(wrong(format!("{what}: format it with 512 or 4096 and none (nvme format --lbaf)")));
        }
        let identity = Identity { device: 0, inode: block_device.metadata()?.rdev() };
        let (rings, submission) = open_rings(device.as_fd(), &geometry, ways);
        Ok(NvmeBacking {
            device,
            block_device,
            block_path,
            claim: Mutex::default(),
            rings,
            submission,
            geometry,
            access,
            identity,
            locks: FileLocks::of_this_process()?,
            path: path.display().to_string(),
        })
    }

    /// Returns how commands are submitted to the device.
    pub fn submission(&self) -> Submission {
        self.submission
    }

    /// Returns the number of commands that the rings have completed, by the memory that held their bytes.
    pub fn commands(&self) -> Commands {
        self.rings.as_ref().map(CommandRings::done).unwrap_or_default()
    }

    /// Returns the length of a logical block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes
    }

    /// Drops the block device's page cache, so that its users read the device again.
    fn forget_cached(&self) {
        if let Err(error) = rustix::fs::fadvise(&self.block_device, 0, None, rustix::fs::Advice::DontNeed) {
            tracing::warn!(device = %self.block_path.display(), %error, "its page cache may be old");
        }
    }

    fn transfer(&self, offset: u64, memory: Memory<'_>) -> io::Result<()> {
        match &self.rings {
            Some(rings) => rings.transfer(self.device.as_fd(), &self.geometry, offset, &memory),
            None => nvme::transfer(self.device.as_fd(), &self.geometry, offset, &memory),
        }
    }
}

/// Opens rings for the first of these kinds of submission that works.
fn open_rings(device: BorrowedFd<'_>, geometry: &Geometry, ways: &[Submission]) -> (Option<CommandRings>, Submission) {
    for &way in ways.iter().filter(|&&way| way != Submission::Ioctl) {
        match CommandRings::new(device, geometry, way == Submission::Polled) {
            Ok(rings) => return (Some(rings), way),
            Err(error) => tracing::debug!(?way, %error, "commands do not get to the NVMe device this way"),
        }
    }
    (None, Submission::Ioctl)
}

impl Backing for NvmeBacking {
    fn len(&self) -> u64 {
        self.geometry.bytes
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (whole, rest) = buffer[..wanted].split_at_mut(wanted - wanted % self.geometry.block_bytes as usize);
        if !whole.is_empty() {
            self.transfer(offset, Memory::Into(whole))?;
        }
        if !rest.is_empty() {
            let mut block = [0_u8; PAGE_BYTES];
            let block = &mut block[..self.geometry.block_bytes as usize];
            self.transfer(offset + whole.len() as u64, Memory::Into(block))?;
            rest.copy_from_slice(&block[..rest.len()]);
        }
        Ok(wanted)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = (self.len().saturating_sub(offset)).min(data.len() as u64) as usize;
        if self.access == Access::ReadOnly || !len.is_multiple_of(self.geometry.block_bytes as usize) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if len == 0 {
            return Ok(());
        }
        self.transfer(offset, Memory::From(&data[..len]))
    }

    fn flush(&self) -> io::Result<()> {
        nvme::flush(self.device.as_fd(), &self.geometry)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "an NVMe namespace has the length that it has"))
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn lock(&self, user: FileUser) -> Result<()> {
        self.locks.lock(user, self.block_device.as_fd(), &self.path)?;
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if claim.is_some() {
            return Ok(());
        }
        let claimed = File::options().read(true).custom_flags(libc::O_EXCL).open(&self.block_path);
        let claimed = claimed.map_err(|source| {
            let _ = self.locks.unlock(self.block_device.as_fd());
            let source = match source.raw_os_error() {
                Some(libc::EBUSY) => {
                    let why = "is mounted, or another has it for itself: unmount it, or take a namespace of its own";
                    io::Error::new(io::ErrorKind::ResourceBusy, format!("{} {why}", self.block_path.display()))
                }
                _ => source,
            };
            Error::Open { path: self.path.clone(), source }
        })?;
        // Earlier writes through the block device's page cache must be visible here, and must not land over later writes.
        let written =
            self.block_device.sync_data().map_err(Error::system("writing back the block device's page cache"));
        written.inspect_err(|_| drop(self.locks.unlock(self.block_device.as_fd())))?;
        self.forget_cached();
        *claim = Some(claimed);
        Ok(())
    }

    fn unlock(&self) -> io::Result<()> {
        // In a forked child, another thread of the parent may have held the lock of the claim when it was copied.
        self.locks.check_not_forked().map_err(io::Error::other)?;
        self.forget_cached();
        self.claim.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.locks.unlock(self.block_device.as_fd())
    }

    fn prefer_buffers(&self, addresses: &[Range<usize>]) {
        if let Some(rings) = &self.rings {
            rings.register_buffers(addresses);
        }
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}
