//! The identity of a file, whatever its name.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, makedev, statx};
use zerocopy::byteorder::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The identity of a file, which a rename does not change. A file that takes its name has another one; so has a file that takes its inode
/// later, on file systems that know when files were created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// The number of its file system's device.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
    /// When it was created, on file systems that know.
    pub birth: Option<Birth>,
}

/// When a file was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Birth {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// The fields of a file's status that are asked for.
const MASK: StatxFlags =
    StatxFlags::TYPE.union(StatxFlags::INO).union(StatxFlags::BTIME).union(StatxFlags::UID).union(StatxFlags::NLINK);

impl FileIdentity {
    /// The identity of an open file.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::in_answer(&stat_of(file)?))
    }

    /// The identity of the regular file at a path; `None` if there is none.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, AtFlags::empty())
    }

    /// The same, where a symbolic link counts for itself.
    pub(crate) fn at_itself(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn look(path: &Path, flags: AtFlags) -> io::Result<Option<Self>> {
        let answer = match statx(CWD, path, flags | AtFlags::NO_AUTOMOUNT, MASK) {
            Ok(answer) => answer,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_regular = FileType::from_raw_mode(answer.stx_mode.into()) == FileType::RegularFile;
        Ok(is_regular.then(|| Self::in_answer(&answer)))
    }

    fn in_answer(answer: &Statx) -> Self {
        let knows_birth = StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::BTIME);
        let birth = Birth { seconds: answer.stx_btime.tv_sec, nanoseconds: answer.stx_btime.tv_nsec };
        FileIdentity {
            device: makedev(answer.stx_dev_major, answer.stx_dev_minor),
            inode: answer.stx_ino,
            birth: knows_birth.then_some(birth),
        }
    }
}

/// The kernel's answer about an open file.
pub(crate) fn stat_of(file: impl AsFd) -> io::Result<Statx> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH, MASK)?)
}

/// An identity, as logs store it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IdentityFields {
    device: U64,
    inode: U64,
    birth_seconds: I64,
    birth_nanoseconds: U32,
    knows_birth: U32,
}

const _: () = assert!(size_of::<IdentityFields>() == 32);

impl From<FileIdentity> for IdentityFields {
    fn from(identity: FileIdentity) -> Self {
        let birth = identity.birth.unwrap_or(Birth { seconds: 0, nanoseconds: 0 });
        IdentityFields {
            device: identity.device.into(),
            inode: identity.inode.into(),
            birth_seconds: birth.seconds.into(),
            birth_nanoseconds: birth.nanoseconds.into(),
            knows_birth: u32::from(identity.birth.is_some()).into(),
        }
    }
}

impl From<IdentityFields> for FileIdentity {
    fn from(fields: IdentityFields) -> Self {
        let birth = Birth { seconds: fields.birth_seconds.get(), nanoseconds: fields.birth_nanoseconds.get() };
        FileIdentity {
            device: fields.device.get(),
            inode: fields.inode.get(),
            birth: (fields.knows_birth != 0).then_some(birth),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_keeps_its_identity_under_another_name_and_shares_it_with_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "a").unwrap();
        let identity = FileIdentity::at(&path).unwrap().unwrap();
        assert_eq!(FileIdentity::of(fs::File::open(&path).unwrap()).unwrap(), identity);
        fs::rename(&path, &other).unwrap();
        assert_eq!(FileIdentity::at(&other).unwrap(), Some(identity));
        fs::write(&path, "a").unwrap();
        assert_ne!(FileIdentity::at(&path).unwrap(), Some(identity));
        assert_eq!(FileIdentity::from(IdentityFields::from(identity)), identity);
    }

    #[test]
    fn only_regular_files_have_one_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(FileIdentity::at(folder.path()).unwrap(), None);
        assert_eq!(FileIdentity::at(&folder.path().join("none")).unwrap(), None);
        assert_eq!(FileIdentity::at(&link).unwrap(), FileIdentity::at(&file).unwrap());
        assert_eq!(FileIdentity::at_itself(&link).unwrap(), None);
    }
}
