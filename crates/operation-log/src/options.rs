//! The options of a log.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Pid, getpid};

use crate::direct::OpenDirectly;
use crate::error::{Error, Result};
use crate::header::ENTRIES_START_BYTES;

/// The least length with space for a reasonable operation.
const CAPACITY_BYTES_MIN: u64 = 64 << 10;
/// The length of an entry has 32 bits.
const CAPACITY_BYTES_MAX: u64 = 4 << 30;
/// A log is a number of whole pages.
const PAGE_BYTES: u64 = 4096;

/// Options of a new [`crate::Log`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct LogOptions {
    capacity_bytes: u64,
    descriptors_from: RawFd,
    checks_owner: bool,
    open_directly: Option<OpenDirectly>,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { capacity_bytes: 128 << 20, descriptors_from: 0, checks_owner: true, open_directly: None }
    }
}

impl LogOptions {
    /// The default options: a log of 128 MiB, as in SplitFS.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the length of the log's file, from 64 KiB to 4 GiB. The space is allocated at once. A longer log needs fewer checkpoints.
    ///
    /// # Default
    /// 128 MiB.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Gives the log's descriptors this number or higher ones, if that is possible: programs expect to get the lowest numbers themselves.
    ///
    /// # Default
    /// 0.
    pub fn descriptors_from(mut self, fd: RawFd) -> Self {
        self.descriptors_from = fd;
        self
    }

    /// Lets any process with the log use it. The caller must keep the log from forked children.
    ///
    /// # Default
    /// Only the process that created the log may use it, and not a child by vfork, which shares its memory until it runs another program.
    pub fn of_any_process(mut self) -> Self {
        self.checks_owner = false;
        self
    }

    /// Stores entries by a mapping that `open` makes of the log's file, where it can make one. A file system without a page cache takes a store
    /// for a fraction of what a system call costs.
    ///
    /// # Default
    /// Each entry is one system call, `pwritev2` with `RWF_DSYNC`.
    pub fn directly(mut self, open: OpenDirectly) -> Self {
        self.open_directly = Some(open);
        self
    }

    /// The way to map the log's file.
    pub(crate) fn open_directly(self) -> Option<OpenDirectly> {
        self.open_directly
    }

    /// The only process that may use the log.
    pub(crate) fn owner(self) -> Option<Pid> {
        self.checks_owner.then(getpid)
    }

    /// A descriptor, or its duplicate with a number in the wanted range.
    pub(crate) fn place(self, file: File) -> File {
        if file.as_raw_fd() >= self.descriptors_from {
            return file;
        }
        rustix::io::fcntl_dupfd_cloexec(&file, self.descriptors_from).map_or(file, File::from)
    }

    /// The length of the log's file.
    pub(crate) fn file_bytes(self) -> Result<u64> {
        const { assert!(ENTRIES_START_BYTES < CAPACITY_BYTES_MIN) };
        if !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&self.capacity_bytes) {
            let expected = "it must be from 64 KiB to 4 GiB";
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
