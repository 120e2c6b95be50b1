//! SplitFS's strict mode (thesis §4.4): each write is durable and atomic when it returns.
//!
//! A write is in the process's operation log, durably, before any of it is in the file: one flush of a file that has its room already.
//! - A file that nobody else has open is the process's by a lease (`logged`): its writes are copied, or written, into the page
//!   cache, and the file is flushed when somebody else wants it, when it is closed, or when the log is full.
//! - For any other, processes take turns (`shared`): the write is logged, done, flushed, and its log entry retired before the next.
//!
//! What logs hold of processes that died is replayed by the next that opens a file under the same folder (`logs`).

mod logged;
mod logs;
mod shared;

pub(super) use logged::{Logged, Turn};
pub(crate) use logs::opening as opening_logs;
pub(super) use logs::{Logs, close_descriptors_of_parent, counts, replay_of_the_dead};
pub(super) use shared::SharedWrite;

use operation_log::Error;
use rustix::io::Errno;

/// The number for an error of a log's.
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
