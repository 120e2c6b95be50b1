//! SplitFS's strict mode (thesis §4.4): each write is durable and atomic when it returns.
//!
//! A write is durable in the process's operation log before any of it is in the file: that takes one flush of a preallocated file, or on
//! persistent memory a store (`mapped_log`).
//! - If nobody else has the file open, vmio leases it (`logged`), and copies or writes its bytes into the page cache. vmio flushes the file
//!   when another process opens it, when the program closes it, or when the log is full.
//! - On any other file processes take turns (`shared`): a thread logs its write, writes, flushes the file and retires the log entry before
//!   the next one's turn.
//!
//! The next process that opens a file under the same folder replays the logs of dead processes (`logs`).

mod logged;
mod logs;
mod mapped_log;
mod shared;

pub(super) use logged::{Logged, Turn};
pub(crate) use logs::opening as opening_logs;
pub(super) use logs::{Logs, close_descriptors_of_parent, counts, replay_dead_logs};
pub(super) use shared::SharedWrite;

use operation_log::Error;
use rustix::io::Errno;

/// The errno for an error of a log.
fn errno(error: &Error) -> Errno {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(number) = error.downcast_ref::<std::io::Error>().and_then(Errno::from_io_error) {
            return number;
        }
        source = error.source();
    }
    match error {
        Error::OutOfRange { .. } => Errno::FBIG,
        Error::FolderOfAnother { .. } => Errno::ACCESS,
        _ => Errno::IO,
    }
}
