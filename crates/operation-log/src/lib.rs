//! A redo log of write calls: each is durable and atomic when it returns, at the price of one flush.
//!
//! A process that gives its program SplitFS's strict mode has one [`Log`], in the folder `.vmio` of the file system that its
//! files are on. Before the bytes of a call go into their file, [`Log::write`] has them in the log, durably. From there
//! [`recover`] brings them into the file if the process dies before the file holds them. To the byte:
//! docs/formats/operation-log.md.
//!
//! ```
//! use std::fs::File;
//! use std::io::IoSlice;
//! use std::os::unix::fs::FileExt;
//!
//! use operation_log::{FileIdentity, Log, LogOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let under = folder.path();
//! let path = under.join("data");
//! let file = File::create(&path)?;
//! let log = Log::create(under, LogOptions::new())?;
//! let number = log.file(FileIdentity::of(&file)?, &path)?;
//!
//! let unapplied = log.write(number, 0, 0, &[IoSlice::new(b"whole "), IoSlice::new(b"or not at all")])?;
//! file.write_all_at(b"whole or not at all", 0)?;         // or a copy into a shared mapping
//! drop(unapplied);                                        // from here on, a checkpoint may forget the operation
//!
//! log.retire(number, || file.sync_data())?;               // the file holds it, durably
//! log.close()?;                                           // nothing is left to replay: removes the log
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the log relies on
//!
//! - Operations on bytes of a file that overlap reach the file in the order in which the log has them: whoever calls
//!   [`Log::write`] keeps others off those bytes until he has applied what he wrote.
//! - Before bytes or the length of a file change in any other way (another process, a store to a mapping, `ftruncate`,
//!   `copy_file_range`), the file is [retired](Log::retire): what is replayed later would undo the change.
//! - [`recover`] runs before the files of a dead process are used again.
#![deny(unsafe_code)]

mod entry;
mod error;
mod files;
mod folder;
mod header;
mod identity;
mod locate;
mod log;
mod options;
mod recovery;
mod recovery_lock;
mod replay;
mod scan;
mod space;

#[cfg(test)]
mod crash_model;

pub use error::{Damage, Error, Result};
pub use files::FileNumber;
pub use folder::FOLDER_NAME;
pub use identity::{Birth, FileIdentity};
pub use log::{Log, Turn, Unapplied};
pub use options::LogOptions;
pub use recovery::{LogState, RecoveredFile, RecoveredLog, Recovery, preview, recover};
pub use scan::{Contents, Entry, EntryKind, FileEntry, Source};
