//! A leased file whose writes are logged.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use operation_log::{FileIdentity, FileNumber, Unapplied};
use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

use super::errno;
use super::logs::{Logs, ProcessLog, counts};
use crate::entry;
use crate::settings::Settings;

/// The log of a leased file, in strict mode.
pub(in super::super) struct Logged {
    log: Arc<ProcessLog>,
    number: FileNumber,
    /// Locked from the logging of a write until the file has the write: writes reach the file in the order of the log.
    order: Mutex<Numbered>,
    /// Whether the program has flushed the file since vmio leased it.
    is_synced: AtomicBool,
}

/// Whether the file still has its number in the log. If not, another file may have it.
#[derive(PartialEq, Eq)]
enum Numbered {
    Yes,
    NoMore,
}

/// A thread's turn to write to the file.
pub(in super::super) struct Turn<'a> {
    logged: &'a Logged,
    _order: MutexGuard<'a, Numbered>,
}

impl Logged {
    /// Gives a file at this path a number in its folder's log. The process must have the lease.
    pub(in super::super) fn new(
        logs: &mut Logs,
        settings: &Settings,
        fd: BorrowedFd<'_>,
        path: &Path,
    ) -> Result<Self, Errno> {
        let log = logs.of(settings, path)?;
        let identity = FileIdentity::of(fd).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let number = log.log.file(identity, path).map_err(|error| errno(&error))?;
        Ok(Logged { log, number, order: Mutex::new(Numbered::Yes), is_synced: AtomicBool::new(false) })
    }

    /// The key by which a checkpoint finds the description.
    pub(in super::super) fn key(&self) -> u64 {
        self.log.key(self.number)
    }

    /// Waits for writes under way; `None` if the file was retired meanwhile. Signals must be blocked: a handler of this thread's would wait
    /// for itself.
    pub(in super::super) fn turn(&self) -> Option<Turn<'_>> {
        let order = self.order();
        (*order == Numbered::Yes).then_some(Turn { logged: self, _order: order })
    }

    fn order(&self) -> MutexGuard<'_, Numbered> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// fsync: writes of other processes before the lease may be in the page cache alone. The log has all writes since.
    pub(in super::super) fn sync(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if !self.is_synced.load(Ordering::Acquire) {
            entry::as_vmio_undisturbed(|| fsync(fd))?;
            self.is_synced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Flushes the file, and retires its operations from the log: other processes may use the file from now on.
    pub(in super::super) fn retire(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut order = self.order();
        self.retire_in_turn(fd)?;
        *order = Numbered::NoMore;
        let _ = self.log.log.forget(self.number);
        Ok(())
    }

    /// Keeps the file's operations in the log, since the file lacks logged bytes. Other processes may use the file from now on, and this
    /// process writes nothing more to it.
    pub(in super::super) fn keep(&self) {
        let _order = self.order();
        let _ = self.log.log.keep(self.number);
    }

    fn retire_in_turn(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // Also for a file without a name: if it was opened with O_TMPFILE, it may get one later.
        self.log.retire(self.number, || Ok(fdatasync(fd)?))
    }
}

impl Turn<'_> {
    /// The most bytes of one write: a longer one is cut, as Linux cuts a write of more than 2 GiB.
    pub(in super::super) fn bytes_max(&self) -> u64 {
        self.logged.log.log.data_bytes_max()
    }

    /// Logs a write to `offset`: the write survives a crash from here on. Drop the returned value once the file has the write.
    pub(in super::super) fn log(&self, offset: u64, len: u64, buffers: &[IoSlice<'_>]) -> Result<Unapplied<'_>, Errno> {
        let ProcessLog { log, .. } = &*self.logged.log;
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        loop {
            match log.write(self.logged.number, offset, len, buffers) {
                Ok(unapplied) => {
                    counts().writes.fetch_add(1, Ordering::Relaxed);
                    counts().bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                    return Ok(unapplied);
                }
                Err(operation_log::Error::Full { .. } | operation_log::Error::Failed { .. }) => {
                    self.logged.log.checkpoint()?;
                }
                Err(error) => return Err(errno(&error)),
            }
        }
    }

    /// Retires a logged write that the file has not taken in full. The caller gets the error, and a replay must not complete the write.
    pub(in super::super) fn take_back(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.logged.retire_in_turn(fd)
    }
}
