//! The number of file pages that this process has mapped, by one small read for any number of them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// The count of mapped file and shared pages of the process.
pub(crate) struct MappedPages {
    statm: File,
}

impl MappedPages {
    /// Opens the count.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(MappedPages { statm: File::open("/proc/self/statm")? })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.statm.as_fd()
    }

    /// The present count. The kernel keeps it by core, so it may lag by some dozens of pages a core.
    pub(crate) fn read(&self) -> io::Result<u64> {
        let mut line = [0; 128];
        let read = self.statm.read_at(&mut line, 0)?;
        let line = std::str::from_utf8(&line[..read]).ok();
        // The fields are size, resident, shared.
        let shared = line.and_then(|line| line.split(' ').nth(2)).and_then(|pages| pages.parse().ok());
        shared.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm is not as expected"))
    }
}
