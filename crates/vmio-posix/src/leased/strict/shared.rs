//! Writes to files that other processes have open, or of which there is no lease. The lease manager does them, since its thread may
//! allocate and wait.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

use operation_log::{FileIdentity, FileNumber};
use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fdatasync, fstat, seek};
use rustix::io::{Errno, pwritev, writev};

use super::errno;
use super::logs::{Logs, ProcessLog, counts, replay_dead_logs};
use crate::settings::Settings;
use crate::transfer::Position;

/// A write that a thread of the program's asks for, and whose end it waits for.
pub(in super::super) struct SharedWrite<'a> {
    pub(in super::super) fd: BorrowedFd<'a>,
    pub(in super::super) position: Position,
    pub(in super::super) buffers: &'a [&'a [u8]],
}

impl SharedWrite<'_> {
    /// Logs the write, does it, flushes the file and retires the log entry. Processes under the same folder take turns.
    pub(in super::super) fn perform(&self, logs: &mut Logs, settings: &Settings) -> Result<usize, Errno> {
        let fd = self.fd;
        let Some(path) = settings.path_under(fd) else {
            // The file was moved out of the folder meanwhile.
            return self.write(&self.slices(u64::MAX));
        };
        let process_log = logs.of(settings, &path)?;
        let log = &process_log.log;
        let identity = FileIdentity::of(fd).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let number = log.file(identity, &path).map_err(|error| errno(&error))?;
        let _turn = log.turn().map_err(|error| errno(&error))?;
        // The process that had the turn before may have died in the middle.
        if let Some(folder) = settings.under.iter().find(|folder| path.starts_with(folder)) {
            replay_dead_logs(folder)?;
        }

        let outcome = self.perform_in_turn(&process_log, number);
        process_log.set_shared(None);
        let _ = log.forget(number);
        outcome
    }

    fn perform_in_turn(&self, process_log: &ProcessLog, number: FileNumber) -> Result<usize, Errno> {
        let (fd, log) = (self.fd, &process_log.log);
        let flags = fcntl_getfl(fd)?;
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        let len = fstat(fd)?.st_size as u64;
        let offset = match self.position {
            _ if flags.contains(OFlags::APPEND) => len,
            Position::At(offset) => u64::try_from(offset).map_err(|_| Errno::INVAL)?,
            Position::Current => seek(fd, SeekFrom::Current(0))?,
        };
        let buffers = self.slices(log.data_bytes_max());
        process_log.set_shared(Some((number, fd.as_raw_fd())));
        let unapplied = loop {
            match log.write(number, offset, len, &buffers) {
                Ok(unapplied) => break unapplied,
                Err(operation_log::Error::Full { .. } | operation_log::Error::Failed { .. }) => {
                    process_log.checkpoint()?;
                }
                Err(error) => return Err(errno(&error)),
            }
        };
        let outcome = self.write(&buffers);
        drop(unapplied);
        // The log entry goes even if the flush fails: the caller gets the error, and a later replay would undo writes of others.
        let flushed = fdatasync(fd);
        process_log.retire(number, || Ok(()))?;
        flushed?;
        counts().writes.fetch_add(1, Ordering::Relaxed);
        counts().shared.fetch_add(1, Ordering::Relaxed);
        counts().bytes.fetch_add(buffers.iter().map(|buffer| buffer.len() as u64).sum(), Ordering::Relaxed);
        outcome
    }

    fn write(&self, buffers: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match self.position {
            Position::Current => writev(self.fd, buffers),
            Position::At(offset) => pwritev(self.fd, buffers, u64::try_from(offset).map_err(|_| Errno::INVAL)?),
        }
    }

    /// The buffers, cut to the longest write that the log takes.
    fn slices(&self, bytes_max: u64) -> Vec<IoSlice<'_>> {
        let mut left = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let part = |buffer: &&'_ [u8]| {
            let take = buffer.len().min(left);
            left -= take;
            take
        };
        let lengths: Vec<usize> = self.buffers.iter().map(part).collect();
        self.buffers.iter().zip(lengths).map(|(buffer, take)| IoSlice::new(&buffer[..take])).collect()
    }
}
