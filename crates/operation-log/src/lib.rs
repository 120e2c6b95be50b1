//! A redo log of write calls: each call is durable and atomic when it returns, at the cost of one flush.
//!
//! A process in SplitFS's strict mode has one [`Log`], in the folder `.vmio` on the file system of its files. [`Log::write`] makes the bytes
//! of a call durable in the log before they go into their file. If the process dies before the file has them, [`recover`] writes them into
//! the file. docs/formats/operation-log.md describes the format.
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
//! drop(unapplied);                                        // from here on, a checkpoint may drop the operation
//!
//! log.retire(number, || file.sync_data())?;               // the file has it, durably
//! log.close()?;                                           // nothing remains to replay: removes the log
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The log relies on its callers:
//!
//! - Operations on overlapping bytes of a file reach the file in the order of the log: a caller of [`Log::write`] keeps other writers off
//!   those bytes until it has applied the operation.
//! - Before bytes or the length of a file change in any other way (another process, a store to a mapping, `ftruncate`,
//!   `copy_file_range`), the file is [retired](Log::retire): a later replay would undo the change.
//! - [`recover`] runs before the files of a dead process are used again.
#![deny(unsafe_code)]

mod direct;
mod entry;
mod error;
mod file_number;
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

pub use direct::{DirectFile, OpenDirectly};
pub use error::{Damage, Error, Result};
pub use file_number::FileNumber;
pub use folder::FOLDER_NAME;
pub use identity::{Birth, FileIdentity};
pub use log::{Log, Turn, Unapplied};
pub use options::LogOptions;
pub use recovery::{LogState, RecoveredFile, RecoveredLog, Recovery, preview, recover};
pub use scan::{Contents, Entry, EntryKind, FileEntry, Source};
