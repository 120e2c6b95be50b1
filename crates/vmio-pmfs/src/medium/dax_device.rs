//! Devices in mode devdax (`/dev/dax0.0`), by which Linux hands CXL memory and persistent memory to user space: memory without a file system.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::error::{Error, Result};

/// A device in mode devdax. It has no calls but mmap, not even one for its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DaxDevice {
    /// Its length, a multiple of the alignment.
    pub(super) bytes: u64,
    /// The unit of its mappings, and of its page tables: 4 KiB, 2 MiB or 1 GiB.
    pub(super) alignment: u64,
}

impl DaxDevice {
    /// The device behind a file; `None` if that is something else.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel does not describe the device.
    pub(super) fn of(file: &Metadata) -> Result<Option<DaxDevice>> {
        if !file.file_type().is_char_device() {
            return Ok(None);
        }
        let (major, minor) = (major(file.rdev()), minor(file.rdev()));
        DaxDevice::described(&PathBuf::from(format!("/sys/dev/char/{major}:{minor}")))
    }

    /// The device that a folder of sysfs describes.
    fn described(folder: &Path) -> Result<Option<DaxDevice>> {
        let is_dax = fs::read_link(folder.join("subsystem")).is_ok_and(|subsystem| subsystem.ends_with("dax"));
        if !is_dax {
            return Ok(None);
        }
        let (bytes, alignment) = (number(folder, "size")?, number(folder, "align")?);
        if !alignment.is_power_of_two() {
            let source = io::Error::new(io::ErrorKind::InvalidData, format!("its alignment is {alignment}"));
            return Err(Error::Io { action: "asking for the device's alignment", source });
        }
        Ok(Some(DaxDevice { bytes: bytes / alignment * alignment, alignment }))
    }
}

/// A number that a file of sysfs holds.
fn number(folder: &Path, name: &str) -> Result<u64> {
    let failed = |source| Error::Io { action: "asking for the device's length and alignment", source };
    let text = fs::read_to_string(folder.join(name)).map_err(failed)?;
    text.trim().parse().map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, format!("{name} is {text:?}"))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_kernel_describes_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let described = |size: &str, align: &str| {
            fs::write(folder.path().join("size"), size).unwrap();
            fs::write(folder.path().join("align"), align).unwrap();
            DaxDevice::described(folder.path())
        };
        assert_eq!(described("4194304\n", "4096\n").unwrap(), None, "of no subsystem");
        symlink("../../bus/dax", folder.path().join("subsystem")).unwrap();
        let device = |bytes, alignment| Some(DaxDevice { bytes, alignment });
        assert_eq!(described("4194304\n", "4096\n").unwrap(), device(4 << 20, 4096));
        assert_eq!(described("1075838976\n", "1073741824\n").unwrap(), device(1 << 30, 1 << 30));
        for (size, align) in [("", "4096"), ("4194304", "none"), ("4194304", "0")] {
            assert!(matches!(described(size, align), Err(Error::Io { .. })), "{size:?} {align:?}");
        }
    }

    #[test]
    fn other_character_devices_are_none() {
        assert_eq!(DaxDevice::of(&fs::metadata("/dev/null").unwrap()).unwrap(), None);
        assert_eq!(DaxDevice::of(&fs::metadata("/").unwrap()).unwrap(), None);
    }
}
