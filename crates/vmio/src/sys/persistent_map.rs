//! A file on persistent memory as a range of addresses. It copies bytes and makes stores durable.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::sys::file_map::FileMap;
use crate::sys::persistent_memory::{Instructions, Refused};
use crate::sys::signal;

/// A mapping of persistent memory. It may reach beyond the end of the file. Forked children do not have it. Ranges are
/// from its first byte, and lie within it.
pub(crate) struct PersistentMap {
    map: FileMap,
    instructions: Instructions,
    is_writable: bool,
}

impl PersistentMap {
    /// Maps the first `len` bytes of a file; EOPNOTSUPP (before Linux 4.15 EINVAL) if it is not on persistent memory.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize, is_writable: bool) -> io::Result<Self> {
        Self::of_part(file, 0, len, is_writable)
    }

    /// The same from an offset on, a multiple of the page size.
    pub(crate) fn of_part(file: BorrowedFd<'_>, offset: u64, len: usize, is_writable: bool) -> io::Result<Self> {
        let map = FileMap::of_persistent_memory(file, offset, len, is_writable)?;
        let instructions = Instructions::of_this_cpu().ok_or(io::ErrorKind::Unsupported)?;
        signal::recover_copies()?;
        Ok(PersistentMap { map, instructions, is_writable })
    }

    /// The underlying mapping.
    pub(crate) fn file_map(&self) -> &FileMap {
        &self.map
    }

    /// Copies bytes out.
    pub(crate) fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Refused> {
        let from = self.map.addresses(&(offset..offset + to.len() as u64)).start as *const u8;
        // SAFETY: the range is mapped for loads. Stores of other threads meanwhile are seen in part.
        unsafe { self.instructions.load(from, to) }
    }

    /// Copies bytes in. They are durable when this returns.
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<(), Refused> {
        assert!(self.is_writable, "a store to a map for loads");
        let to = self.map.addresses(&(offset..offset + from.len() as u64)).start as *mut u8;
        // SAFETY: the range is within the mapping, which is made for stores, with MAP_SYNC, and lasts as long as this.
        // Safe code has only pointers to it.
        unsafe { self.instructions.store(to, from) }
    }

    /// Makes the stores to a range durable.
    pub(crate) fn write_back(&self, range: &Range<u64>) -> Result<(), Refused> {
        // SAFETY: the range is mapped, with MAP_SYNC.
        unsafe { self.instructions.write_back(self.map.addresses(range)) }
    }
}

/// The instructions for copies and for write-back.
impl fmt::Display for PersistentMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instructions.fmt(out)
    }
}
