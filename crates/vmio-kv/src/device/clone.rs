//! A clone of the volume's file, as it is at one moment.

use rustix::fs::{fstatfs, ioctl_ficlone};
use rustix::io::Errno;
use vmio::Engine;
use vmio::backing::{Backing, FileBacking};

use crate::device::Device;
use crate::error::{Error, FullPlace, Result};

/// The file systems that keep all writers of a file out while they clone it, and wait for direct writes that are on their way. So a clone has
/// each write that had returned, and with it all that were before.
const CLONING: [u32; 2] = [XFS, BTRFS];
const XFS: u32 = 0x5846_5342;
const BTRFS: u32 = 0x9123_683e;

/// Whether the volume's file was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClonedVolume {
    Complete,
    /// The file system does not clone this file, or not to there.
    Refused,
}

impl Device {
    /// Whether all writes to the volume go through a file system that may clone it.
    pub(crate) fn can_be_cloned(&self) -> bool {
        // The kernel module's writes need not take the file's locks.
        let of_kernel = self.cache.engine() == Engine::Kernel;
        let file = self.backing.file().filter(|_| !of_kernel);
        file.and_then(|file| fstatfs(file).ok()).is_some_and(|found| CLONING.contains(&(found.f_type as u32)))
    }

    /// Gives an empty file the contents that the volume's file has at one moment: what a power cut would leave at that moment, or more.
    pub(crate) fn clone_to(&self, target: &FileBacking) -> Result<ClonedVolume> {
        let (Some(from), Some(to)) = (self.backing.file(), target.file()) else { return Ok(ClonedVolume::Refused) };
        match ioctl_ficlone(to, from) {
            Ok(()) => Ok(ClonedVolume::Complete),
            Err(Errno::NOSPC | Errno::DQUOT) => {
                Err(Error::Full { volume: target.describe(), wanted: self.backing.len(), place: FullPlace::FileSystem })
            }
            Err(Errno::IO) => Err(self.failed("cloning", 0, Errno::IO.into())),
            // Another file system, a block device, a file system that was made without clones.
            Err(_) => Ok(ClonedVolume::Refused),
        }
    }
}
