//! How many file pages this process has mapped: one small read, however many there are.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// The process's count of mapped file and shared pages.
pub(crate) struct MappedPages {
    statm: File,
}

impl MappedPages {
    /// Opens it.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(MappedPages { statm: File::open("/proc/self/statm")? })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.statm.as_fd()
    }

    /// The count now. The kernel keeps it by core: it may be behind by some dozens of pages for each.
    pub(crate) fn read(&self) -> io::Result<u64> {
        let mut line = [0; 128];
        let read = self.statm.read_at(&mut line, 0)?;
        let line = std::str::from_utf8(&line[..read]).ok();
        // Size, resident, shared.
        let shared = line.and_then(|line| line.split(' ').nth(2)).and_then(|pages| pages.parse().ok());
        shared.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm is not as expected"))
    }
}
