//! How long a log is.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Pid, getpid};

use crate::error::{Error, Result};
use crate::header::ENTRIES_START_BYTES;

/// The least that holds an operation of some length.
const CAPACITY_BYTES_MIN: u64 = 64 << 10;
/// Lengths of entries have 32 bits.
const CAPACITY_BYTES_MAX: u64 = 4 << 30;
/// Logs are whole pages.
const PAGE_BYTES: u64 = 4096;

/// What a new [`crate::Log`] is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct LogOptions {
    capacity_bytes: u64,
    descriptors_from: RawFd,
    checks_owner: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { capacity_bytes: 128 << 20, descriptors_from: 0, checks_owner: true }
    }
}

impl LogOptions {
    /// A log of 128 MiB, as SplitFS has it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The length of its file, from 64 KiB to 4 GiB: the space is taken at once. The longer, the fewer checkpoints.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Has the log's descriptors be this number or higher, if such can be had: programs expect to get the lowest themselves.
    pub fn descriptors_from(mut self, fd: RawFd) -> Self {
        self.descriptors_from = fd;
        self
    }

    /// Lets whoever has the log use it. Otherwise that is the process that made it alone, to which a child that has its memory until it is
    /// another program (vfork) does not belong. Who asks for this keeps it from forked children.
    pub fn of_any_process(mut self) -> Self {
        self.checks_owner = false;
        self
    }

    /// The process that alone may use the log.
    pub(crate) fn owner(self) -> Option<Pid> {
        self.checks_owner.then(getpid)
    }

    /// A descriptor, or its duplicate with a number as asked for.
    pub(crate) fn place(self, file: File) -> File {
        if file.as_raw_fd() >= self.descriptors_from {
            return file;
        }
        rustix::io::fcntl_dupfd_cloexec(&file, self.descriptors_from).map_or(file, File::from)
    }

    /// The length that the file gets.
    pub(crate) fn file_bytes(self) -> Result<u64> {
        const { assert!(ENTRIES_START_BYTES < CAPACITY_BYTES_MIN) };
        if !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&self.capacity_bytes) {
            let expected = "a log has from 64 KiB to 4 GiB";
            return Err(Error::BadOption { option: "capacity_bytes", value: self.capacity_bytes, expected });
        }
        Ok(self.capacity_bytes.next_multiple_of(PAGE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_no_log_can_have_are_refused() {
        assert_eq!(LogOptions::new().file_bytes().unwrap(), 128 << 20);
        assert_eq!(LogOptions::new().capacity_bytes((64 << 10) + 1).file_bytes().unwrap(), 68 << 10);
        for bytes in [0, (64 << 10) - 1, (4 << 30) + 1, u64::MAX] {
            let refused = LogOptions::new().capacity_bytes(bytes).file_bytes();
            assert!(matches!(refused, Err(Error::BadOption { value, .. }) if value == bytes));
        }
    }
}
