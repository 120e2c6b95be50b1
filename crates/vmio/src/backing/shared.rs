//! A shared backing, for a mapping and for code that bypasses the mapping.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::backing::{Access, Backing, FileUser, Identity};

impl<B: Backing + ?Sized> Backing for Arc<B> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn access(&self) -> Access {
        (**self).access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        (**self).discard(range)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        (**self).allocate(range)
    }

    fn identity(&self) -> Option<Identity> {
        (**self).identity()
    }

    fn lock(&self, user: FileUser) -> crate::Result<()> {
        (**self).lock(user)
    }

    fn unlock(&self) -> io::Result<()> {
        (**self).unlock()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        (**self).file()
    }

    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        (**self).direct_reads()
    }

    fn prefer_buffers(&self, addresses: &[Range<usize>]) {
        (**self).prefer_buffers(addresses);
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}
