//! The backing of a store that was taken over: the former owner may still have it open, in this process or another.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vmio::backing::{Access, Backing, FileUser};

/// A backing that is opened while another process has it open for writing.
pub(crate) struct TakeoverBacking(pub(crate) Arc<dyn Backing>);

impl Backing for TakeoverBacking {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.0.discard(range)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.0.allocate(range)
    }

    // Without an identity: pages must not be shared with a mapping of the former owner in this process.

    fn lock(&self, user: FileUser) -> vmio::Result<()> {
        self.0.lock(if user == FileUser::CachedWriter { FileUser::Successor } else { user })
    }

    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }

    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        self.0.direct_reads()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
