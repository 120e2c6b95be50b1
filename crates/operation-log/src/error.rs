//! What can go wrong, with the value that was wrong and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::files::FileNumber;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused something of a log or its folder.
    #[error("{action} {path} failed")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An option makes no sense.
    #[error("option {option} is {value}: {expected}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// The log has no room for the operation until the next checkpoint.
    #[error("the log is full: {needed_bytes} bytes are needed, {free_bytes} are free; a checkpoint makes room")]
    Full {
        /// What the operation takes, with what goes around its data.
        needed_bytes: u64,
        /// What is left.
        free_bytes: u64,
    },
    /// No log of this length has room for the operation, however empty.
    #[error("an operation of {bytes} bytes is too long for a log that takes {bytes_max} bytes: write fewer at a time")]
    TooLong {
        /// The operation's data.
        bytes: u64,
        /// The most that fits.
        bytes_max: u64,
    },
    /// The operation would reach behind the last byte that a file can have.
    #[error("{bytes} bytes at {offset} reach behind the end of what a file can hold")]
    OutOfRange {
        /// Where the operation begins.
        offset: u64,
        /// The operation's data.
        bytes: u64,
    },
    /// No file of this log has the number, or it was forgotten.
    #[error("file {0} is unknown to this log")]
    UnknownFile(FileNumber),
    /// A path is longer than the kernel takes.
    #[error("the path of a file has {bytes} bytes; a log takes {bytes_max}")]
    PathTooLong {
        /// Its length.
        bytes: usize,
        /// The most that fits.
        bytes_max: usize,
    },
    /// The log holds operations that may not be in the file durably.
    #[error("{path} has operations in the log that are not retired")]
    NotRetired {
        /// The file, or the log if it is about all.
        path: PathBuf,
    },
    /// A file lacks what the log has of it, and the log is [kept](crate::Log::keep) for that.
    #[error(
        "{path} lacks what the log has of it: it is not written to, and the log not begun anew, until that is recovered"
    )]
    Kept {
        /// The file.
        path: PathBuf,
    },
    /// An earlier write to the log failed, so that nobody knows what it holds.
    #[error("an earlier write to {log} failed; a checkpoint begins it anew")]
    Failed {
        /// The log.
        log: PathBuf,
    },
    /// The log belongs to the process that this one was forked from.
    #[error("{log} belongs to process {owner}, from which this one was forked: it needs a log of its own")]
    Forked {
        /// The log.
        log: PathBuf,
        /// Whose it is.
        owner: i32,
    },
    /// What the caller does to make files durable failed.
    #[error("making the files durable failed")]
    Sync(#[source] io::Error),
    /// A log is not as any crash could leave it. It is left alone.
    #[error("{log} is no sound operation log: {damage}")]
    Damaged {
        /// The log.
        log: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The log belongs to another user, who alone may have its operations replayed.
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
    /// A file that the log has operations for cannot be brought up to date. Nothing of the log was given up.
    #[error("{action} {path} failed; once it can be, recover again")]
    File {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file was not found, and it may lie in a folder that could not be read.
    #[error("{path} was not found, and may lie in {folder}, which cannot be read")]
    SearchIncomplete {
        /// The file, as it was called.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// What is wrong with a log that no crash can have left so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter than a header.
    #[error("it has {bytes} bytes, less than its header")]
    TooShort {
        /// Its length.
        bytes: u64,
    },
    /// Neither copy of the header begins as a log does.
    #[error("it does not begin as an operation log does")]
    NoMagic,
    /// It was written in another format.
    #[error("its format has version {found}, and this program knows {known}")]
    Version {
        /// Its version.
        found: u32,
        /// The one that is known.
        known: u32,
    },
    /// It uses something that this program does not know.
    #[error("it uses features that this program does not know (flags {flags:#x})")]
    Features {
        /// The unknown flags.
        flags: u64,
    },
    /// The checksum of the header is wrong, in both copies.
    #[error("the checksum of its header is wrong")]
    HeaderChecksum,
    /// A number in the header cannot be.
    #[error("its header says that {field} is {value}")]
    HeaderField {
        /// Which one.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// The file is shorter than its header says.
    #[error("it has been cut: {found_bytes} bytes of {expected_bytes} are left")]
    Cut {
        /// What is there.
        found_bytes: u64,
        /// What the header says.
        expected_bytes: u64,
    },
    /// It is a copy of a log: what it says is for the files that the original was of.
    #[error("it is a copy: the log that it was made from has inode {original}, this file has {found}")]
    Copy {
        /// The inode that the header names.
        original: u64,
        /// The inode of this file.
        found: u64,
    },
    /// The newest header is lost, and what it belonged to is not: nobody can say what is to be replayed.
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
