//! Errors, with the offending value and a remedy.

use std::io;
use std::path::PathBuf;

use crate::file_number::FileNumber;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a log or its folder failed.
    #[error("{action} {path} failed")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// An option has an invalid value.
    #[error("option {option} is {value}: {expected}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        expected: &'static str,
    },
    /// The log has no space for the operation until the next checkpoint.
    #[error("the log is full: {needed_bytes} bytes are needed, {free_bytes} are free; a checkpoint makes space")]
    Full {
        /// Bytes that the operation needs, with its header.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// The operation does not fit even into an empty log of this length.
    #[error("an operation of {bytes} bytes is longer than this log's maximum, {bytes_max} bytes: write it in parts")]
    TooLong {
        /// Length of the operation's data.
        bytes: u64,
        /// The maximum.
        bytes_max: u64,
    },
    /// The operation ends behind the last byte that a file can have.
    #[error("{bytes} bytes at offset {offset} end behind the largest length of a file")]
    OutOfRange {
        /// Offset of the operation.
        offset: u64,
        /// Length of the operation's data.
        bytes: u64,
    },
    /// No file of this log has the number, or it was given up.
    #[error("file {0} is unknown to this log")]
    UnknownFile(FileNumber),
    /// A path is longer than the kernel allows.
    #[error("the path of a file has {bytes} bytes; the most is {bytes_max}")]
    PathTooLong {
        /// Its length.
        bytes: usize,
        /// The maximum.
        bytes_max: usize,
    },
    /// The log has operations that may not be durable in the file.
    #[error("{path} has operations in the log that are not retired: retire the file first")]
    NotRetired {
        /// The file, or the log if it concerns all files.
        path: PathBuf,
    },
    /// A file lacks operations of the log, and the log [keeps](crate::Log::keep) them.
    #[error(
        "{path} lacks operations of the log: run the recovery before anything is written to it or the log is checkpointed"
    )]
    Kept {
        /// The file.
        path: PathBuf,
    },
    /// An earlier write to the log failed, so that its contents are unknown.
    #[error("an earlier write to {log} failed: a checkpoint empties the log")]
    Failed {
        /// The log.
        log: PathBuf,
    },
    /// The log belongs to the parent of this forked process.
    #[error("{log} belongs to process {owner}, from which this one was forked: create another log")]
    Forked {
        /// The log.
        log: PathBuf,
        /// The process that owns it.
        owner: i32,
    },
    /// The caller's function failed to make files durable.
    #[error("making the files durable failed")]
    Sync(#[source] io::Error),
    /// A log is damaged in a way that no crash can cause. It stays as it is.
    #[error("{log} is not a valid operation log: {damage}")]
    Damaged {
        /// The log.
        log: PathBuf,
        /// The damage.
        damage: Damage,
    },
    /// The log belongs to another user: only that user may replay it.
    #[error("{log} belongs to user {uid}: run the recovery as that user")]
    OwnedByAnother {
        /// The log.
        log: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The folder of logs belongs to another user, who could take a log out of it.
    #[error(
        "{folder} belongs to user {uid}, who could take logs out of it: run as that user, or recover and remove it"
    )]
    FolderOfAnother {
        /// The folder.
        folder: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// An operation could not be written to its file. The log is unchanged.
    #[error("{action} {path} failed: run the recovery again once that works")]
    File {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file is missing, and may be in a folder that this user cannot read.
    #[error("{path} was not found, and may be in {folder}, which this user cannot read")]
    SearchIncomplete {
        /// The former path of the file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// Damage of a log that no crash can cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter than a header.
    #[error("it has {bytes} bytes, less than its header")]
    TooShort {
        /// Its length.
        bytes: u64,
    },
    /// Neither copy of the header begins with the magic number.
    #[error("it does not begin with the magic number of an operation log")]
    NoMagic,
    /// It was written in another format.
    #[error("its format has version {found}, and this program supports {known}")]
    Version {
        /// Its version.
        found: u32,
        /// The supported version.
        known: u32,
    },
    /// It uses features that this program does not support.
    #[error("it uses features that this program does not support (flags {flags:#x})")]
    Features {
        /// The unsupported flags.
        flags: u64,
    },
    /// The checksum of the header is wrong, in both copies.
    #[error("the checksum of its header is wrong")]
    HeaderChecksum,
    /// A number in the header is impossible.
    #[error("its header says that {field} is {value}")]
    HeaderField {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file is shorter than its header says.
    #[error("it has been cut: it has {found_bytes} of {expected_bytes} bytes")]
    Cut {
        /// Its length.
        found_bytes: u64,
        /// The length in its header.
        expected_bytes: u64,
    },
    /// It is a copy of a log, whose operations belong to the original.
    #[error("it is a copy: the log that it was made from has inode {original}, this file has {found}")]
    Copy {
        /// The inode that the header names.
        original: u64,
        /// The inode of this file.
        found: u64,
    },
    /// The newest header is lost, but its entries are not. So it is unknown which entries to replay.
    #[error("its newest header is lost: there are entries of generation {found}, and the header is of {known}")]
    HeaderLost {
        /// The newest generation of an entry.
        found: u64,
        /// The header's.
        known: u64,
    },
    /// Two files have one number.
    #[error("number {number} stands for two files")]
    TwoFiles {
        /// The number.
        number: u32,
    },
}
