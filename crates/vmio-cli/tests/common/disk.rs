//! A file system whose power can be cut.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeeded;

/// The kernel's request to stop a file system at once, and to lose the data that is in memory.
const CUT_POWER: &str =
    "import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

/// The file systems whose power can be cut.
#[derive(Clone, Copy, Debug)]
pub enum FileSystem {
    Ext4,
    Xfs,
}

/// A file system in a file, mounted until it drops.
pub struct Disk {
    image: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// Makes one in a file of a folder; none if this user may not mount one.
    pub fn new(folder: &Path, kind: FileSystem) -> Result<Option<Self>, Box<dyn Error>> {
        let disk = Disk { image: folder.join("image"), mounted: folder.join("disk") };
        // The least that XFS takes, and a little.
        File::create(&disk.image)?.set_len(320 << 20)?;
        std::fs::create_dir(&disk.mounted)?;
        let (make, options) = match kind {
            FileSystem::Ext4 => ("mkfs.ext4", ["-q", "-F"]),
            FileSystem::Xfs => ("mkfs.xfs", ["-q", "-f"]),
        };
        succeeded(Command::new(make).args(options).arg(&disk.image))?;
        match disk.mount() {
            Ok(()) => Ok(Some(disk)),
            Err(error) => {
                test_depth::skipped(format_args!("no file system can be mounted: {error}"));
                Ok(None)
            }
        }
    }

    /// The folder where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mounted
    }

    /// The device that it is on.
    pub fn device(&self) -> Result<PathBuf, Box<dyn Error>> {
        let source =
            succeeded(Command::new("findmnt").args(["--noheadings", "--output", "SOURCE"]).arg(&self.mounted))?;
        Ok(source.trim().into())
    }

    /// Cuts the power: from here on no write reaches it.
    pub fn cut_power(&self) -> Result<(), Box<dyn Error>> {
        succeeded(Command::new("python3").args(["-c", CUT_POWER]).arg(&self.mounted)).map(drop)
    }

    /// Mounts it again, as after the return of the power. No process may have it open.
    pub fn start_again(&self) -> Result<(), Box<dyn Error>> {
        succeeded(Command::new("umount").arg(&self.mounted))?;
        self.mount()
    }

    fn mount(&self) -> Result<(), Box<dyn Error>> {
        succeeded(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mounted)).map(drop)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Any process that still has it open is about to end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.mounted).output();
    }
}
