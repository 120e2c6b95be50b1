//! Why a call failed.

use std::io;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a structure on the medium is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The checksum is not that of the bytes.
    #[error("its checksum is {stored:#010x}, and that of its bytes {computed:#010x}")]
    Checksum {
        /// The checksum on the medium.
        stored: u32,
        /// That of the bytes.
        computed: u32,
    },
    /// A field has a value that no writer gives it.
    #[error("its {field} is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// Blocks are missing that must be there.
    #[error("its blocks from {first} on are missing, {count} of them")]
    MissingBlocks {
        /// The first one.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A directory is somewhere in itself.
    #[error("inode {ino} is in itself, by way of the directories in it")]
    Cycle {
        /// The directory.
        ino: u64,
    },
    /// A block has two owners.
    #[error("block {block} belongs to something else, too")]
    TwoOwners {
        /// The block.
        block: u64,
    },
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on the medium failed.
    #[error("{action} failed")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process, or another part of this one, uses the medium.
    #[error("it is in use: a file system on it is mounted, or being made or checked")]
    InUse,
    /// Processes that leased extents of an earlier mount still have them mapped.
    #[error(
        "processes that used an earlier mount still have parts of it mapped: end them, or continue those that are stopped"
    )]
    StillMapped,
    /// A folder, a pipe or the like is no medium.
    #[error("it is neither a file, nor a block device, nor a device in mode devdax")]
    NoMedium,
    /// The medium begins with something else.
    #[error("there is no file system of vmio-pmfs on it: it begins with the bytes {found:02x?}")]
    NoFileSystem {
        /// The first bytes.
        found: [u8; 8],
    },
    /// The medium has a file system, which making one would destroy.
    #[error("there is a file system of vmio-pmfs on it already")]
    HasFileSystem,
    /// The medium holds other data, which making a file system would destroy.
    #[error("it holds something else: the bytes {found:02x?} at byte {at}")]
    HasOtherContent {
        /// Where these are.
        at: u64,
        /// Some bytes of it.
        found: [u8; 8],
    },
    /// A newer program has made the file system.
    #[error("its format has version {found}, and this program knows version {known}: use a newer program")]
    NewerVersion {
        /// The version on the medium.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The file system uses features that this program does not know.
    #[error("it uses features that this program does not know (bits {features:#x}): use a newer program")]
    UnknownFeatures {
        /// The unknown bits.
        features: u64,
    },
    /// No file system is laid out like this.
    #[error("a file system cannot have {found} {field}")]
    Layout {
        /// The number that is wrong.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The medium is too small for a file system.
    #[error("it has {bytes} bytes, and a file system with these options needs {least}")]
    TooSmall {
        /// Its length.
        bytes: u64,
        /// The least length.
        least: u64,
    },
    /// The medium is longer than a file system can be.
    #[error("it has {bytes} bytes, and a file system has {most} at most")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The greatest length.
        most: u64,
    },
    /// The medium is shorter than the file system on it.
    #[error("it has {bytes} bytes, and the file system on it {wanted}: it was cut off")]
    CutOff {
        /// Its length.
        bytes: u64,
        /// The length of the file system.
        wanted: u64,
    },
    /// The medium holds other bytes than those that were written.
    #[error("{structure} at byte {at} is damaged: {damage}")]
    Damaged {
        /// The structure.
        structure: &'static str,
        /// The byte at which it begins.
        at: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// There is no such file or folder any more.
    #[error("there is no inode {ino}")]
    NoInode {
        /// The number that was asked for.
        ino: u64,
    },
    /// The directory has no entry of this name.
    #[error("there is no {name:?} in directory {directory}")]
    NoEntry {
        /// The directory.
        directory: u64,
        /// The name.
        name: String,
    },
    /// The directory has an entry of this name already.
    #[error("there is a {name:?} in directory {directory} already")]
    EntryExists {
        /// The directory.
        directory: u64,
        /// The name.
        name: String,
    },
    /// The call needs a directory.
    #[error("inode {ino} is no directory")]
    NotADirectory {
        /// The inode.
        ino: u64,
    },
    /// The call is not for directories.
    #[error("inode {ino} is a directory")]
    IsADirectory {
        /// The inode.
        ino: u64,
    },
    /// The call is for another kind of inode.
    #[error("inode {ino} is of another kind than the call is for")]
    WrongKind {
        /// The inode.
        ino: u64,
    },
    /// The directory has entries.
    #[error("directory {ino} is not empty")]
    NotEmpty {
        /// The directory.
        ino: u64,
    },
    /// A directory would become part of itself.
    #[error("directory {ino} would be moved into itself")]
    IntoItself {
        /// The directory.
        ino: u64,
    },
    /// The name is empty, `.` or `..`, or has a slash or a zero byte.
    #[error("{name:?} cannot be a name")]
    BadName {
        /// The name.
        name: String,
    },
    /// A name or a symbolic link's target is too long.
    #[error("a name or target of {bytes} bytes is too long: {most} is the most")]
    NameTooLong {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        most: usize,
    },
    /// The file has as many names as it can have.
    #[error("inode {ino} has as many links as it can have")]
    TooManyLinks {
        /// The inode.
        ino: u64,
    },
    /// The file would become longer than a file can be.
    #[error("byte {end} is behind the greatest length of a file")]
    FileTooLarge {
        /// The end that was asked for.
        end: u64,
    },
    /// Processes have blocks of the file mapped that the call would take away.
    #[error("blocks of inode {ino} are leased from block {from_block} on")]
    Leased {
        /// The inode.
        ino: u64,
        /// The first block that the call would take away, or one before it.
        from_block: u32,
    },
    /// All blocks are in use.
    #[error("no space is left: {wanted} blocks are wanted")]
    NoSpace {
        /// How many blocks were asked for.
        wanted: u64,
    },
    /// All inodes are in use.
    #[error("no inode is left")]
    NoInodes,
    /// The inode has no such extended attribute.
    #[error("inode {ino} has no extended attribute {name:?}")]
    NoXattr {
        /// The inode.
        ino: u64,
        /// The attribute's name.
        name: String,
    },
    /// The inode has this extended attribute already.
    #[error("inode {ino} has an extended attribute {name:?} already")]
    XattrExists {
        /// The inode.
        ino: u64,
        /// The attribute's name.
        name: String,
    },
    /// No extended attribute can have this name, or the one of this name cannot have this value.
    #[error("the extended attribute {name:?} cannot have these {bytes} bytes as its value")]
    BadXattr {
        /// The attribute's name.
        name: String,
        /// Length of its value.
        bytes: usize,
    },
    /// An inode's extended attributes would need more than a block.
    #[error("the extended attributes of inode {ino} would need more than a block")]
    XattrsTooLarge {
        /// The inode.
        ino: u64,
    },
    /// The file system does not offer this.
    #[error("{what} is not supported")]
    Unsupported {
        /// The thing that was asked for.
        what: &'static str,
    },
    /// A change is larger than the journal.
    #[error("the change needs {entries} entries of the journal, and {most} is the most")]
    ChangeTooLarge {
        /// The entries that it needs.
        entries: u64,
        /// The most.
        most: u64,
    },
}

impl Error {
    /// The number by which system calls say this.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::InUse | Error::StillMapped | Error::Leased { .. } => libc::EBUSY,
            Error::NoInode { .. } => libc::ESTALE,
            Error::NoEntry { .. } => libc::ENOENT,
            Error::EntryExists { .. } | Error::HasFileSystem | Error::HasOtherContent { .. } => libc::EEXIST,
            Error::NotADirectory { .. } => libc::ENOTDIR,
            Error::IsADirectory { .. } => libc::EISDIR,
            Error::NotEmpty { .. } => libc::ENOTEMPTY,
            Error::IntoItself { .. }
            | Error::BadName { .. }
            | Error::BadXattr { .. }
            | Error::WrongKind { .. }
            | Error::Layout { .. } => libc::EINVAL,
            Error::NameTooLong { .. } => libc::ENAMETOOLONG,
            Error::TooManyLinks { .. } => libc::EMLINK,
            Error::FileTooLarge { .. } | Error::ChangeTooLarge { .. } => libc::EFBIG,
            Error::NoSpace { .. } | Error::NoInodes | Error::XattrsTooLarge { .. } => libc::ENOSPC,
            Error::NoXattr { .. } => libc::ENODATA,
            Error::XattrExists { .. } => libc::EEXIST,
            Error::Unsupported { .. } => libc::EOPNOTSUPP,
            _ => libc::EIO,
        }
    }

    pub(crate) fn no_entry(directory: u64, name: &[u8]) -> Error {
        Error::NoEntry { directory, name: String::from_utf8_lossy(name).into_owned() }
    }

    pub(crate) fn entry_exists(directory: u64, name: &[u8]) -> Error {
        Error::EntryExists { directory, name: String::from_utf8_lossy(name).into_owned() }
    }
}
