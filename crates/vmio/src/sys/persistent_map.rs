//! A file on persistent memory as a range of addresses. It copies bytes and makes stores durable.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::sys::extent_leases::LeasedMap;
use crate::sys::file_map::FileMap;
use crate::sys::persistent_memory::{Instructions, Refused};
use crate::sys::signal;

/// A mapping of persistent memory. It may reach beyond the end of the file. Forked children do not have it. Ranges are
/// from its first byte, and lie within it.
pub(crate) struct PersistentMap {
    map: Map,
    instructions: Instructions,
    is_writable: bool,
}

/// The addresses.
enum Map {
    /// The kernel maps the file.
    Kernel(FileMap),
    /// This process maps the extents of a file of vmio-pmfs.
    Leased(LeasedMap),
}

impl PersistentMap {
    /// Maps the first `len` bytes of a file; EOPNOTSUPP (before Linux 4.15 EINVAL) if it is neither on persistent memory nor
    /// of a mounted vmio-pmfs whose medium this process may open.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize, is_writable: bool) -> io::Result<Self> {
        Self::of_part(file, 0, len, is_writable)
    }

    /// The same from an offset on, a multiple of the page size.
    pub(crate) fn of_part(file: BorrowedFd<'_>, offset: u64, len: usize, is_writable: bool) -> io::Result<Self> {
        let map = match FileMap::of_persistent_memory(file, offset, len, is_writable) {
            Ok(map) => Map::Kernel(map),
            Err(refused) => match LeasedMap::new(file, offset, len, is_writable)? {
                Some(map) => Map::Leased(map),
                None => return Err(refused),
            },
        };
        let instructions = Instructions::of_this_cpu().ok_or(io::ErrorKind::Unsupported)?;
        signal::recover_copies()?;
        Ok(PersistentMap { map, instructions, is_writable })
    }

    /// Maps the first `len` bytes of a file of a mounted vmio-pmfs by a descriptor that stays open as long as anybody has it; `None` if it is another file, or this
    /// process may not open the medium.
    pub(crate) fn by_extents(file: Arc<OwnedFd>, len: usize, is_writable: bool) -> io::Result<Option<Self>> {
        let instructions = Instructions::of_this_cpu().ok_or(io::ErrorKind::Unsupported)?;
        signal::recover_copies()?;
        let map = LeasedMap::by_own(file, 0, len, is_writable)?;
        Ok(map.map(|map| PersistentMap { map: Map::Leased(map), instructions, is_writable }))
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        match &self.map {
            Map::Kernel(map) => map.base(),
            Map::Leased(map) => map.base(),
        }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.map {
            Map::Kernel(map) => map.len(),
            Map::Leased(map) => map.len(),
        }
    }

    /// Whether the process has the mapping. In a forked child, other memory may lie there.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        match &self.map {
            Map::Kernel(map) => map.is_here(),
            Map::Leased(map) => map.is_here(),
        }
    }

    /// Whether stores are durable once they are written back. Else only a sync of the file makes them so: the medium of
    /// vmio-pmfs is an ordinary file.
    pub(crate) fn is_synchronous(&self) -> bool {
        match &self.map {
            Map::Kernel(_) => true,
            Map::Leased(map) => map.is_synchronous(),
        }
    }

    /// Whether a sync of the file has nothing left to do: [`LeasedMap::is_always_durable`].
    pub(crate) fn is_always_durable(&self) -> bool {
        matches!(&self.map, Map::Leased(map) if map.is_always_durable())
    }

    /// Whether this process maps the extents of the file itself.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.map, Map::Leased(_))
    }

    /// Makes pages resident as loads would. A page that is not available is an error.
    pub(crate) fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        match &self.map {
            Map::Kernel(map) => map.populate(range),
            Map::Leased(map) => map.populate(range),
        }
    }

    fn addresses(&self, range: &Range<u64>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.len() as u64, "{range:?} of a map of {}", self.len());
        let base = self.base() as usize;
        base + range.start as usize..base + range.end as usize
    }

    /// Copies bytes out.
    pub(crate) fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Refused> {
        let from = self.addresses(&(offset..offset + to.len() as u64)).start as *const u8;
        // SAFETY: the range is mapped for loads. Stores of other threads meanwhile are seen in part.
        unsafe { self.instructions.load(from, to) }
    }

    /// Copies bytes in. They are durable when this returns.
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<(), Refused> {
        assert!(self.is_writable, "a store to a map for loads");
        let to = self.addresses(&(offset..offset + from.len() as u64)).start as *mut u8;
        // SAFETY: the range is within the mapping, which is made for stores, with MAP_SYNC, and lasts as long as this.
        // Safe code has only pointers to it.
        unsafe { self.instructions.store(to, from) }
    }

    /// The descriptors that must stay open, of a file of vmio-pmfs: [`LeasedMap::descriptors`].
    pub(crate) fn descriptors(&self) -> Option<(BorrowedFd<'_>, [BorrowedFd<'_>; 3])> {
        match &self.map {
            Map::Kernel(_) => None,
            Map::Leased(map) => Some(map.descriptors()),
        }
    }

    /// Counts the times when the file may have become shorter: [`LeasedMap::cuts`].
    #[inline]
    pub(crate) fn cuts(&self) -> Option<u64> {
        match &self.map {
            Map::Kernel(_) => None,
            Map::Leased(map) => map.cuts(),
        }
    }

    /// Whether others may have taken something of a range away: [`LeasedMap::has_lost`].
    pub(crate) fn has_lost(&self, before: u64, range: &Range<u64>) -> bool {
        match &self.map {
            Map::Kernel(_) => false,
            Map::Leased(map) => map.has_lost(before, range),
        }
    }

    /// The map's own descriptor of a file of vmio-pmfs.
    pub(crate) fn file(&self) -> Option<Arc<OwnedFd>> {
        match &self.map {
            Map::Kernel(_) => None,
            Map::Leased(map) => Some(map.file()),
        }
    }

    /// Whether [`Self::append`] may ever store anything.
    pub(crate) fn appends(&self) -> bool {
        matches!(self.map, Map::Leased(_)) && self.is_writable
    }

    /// Copies bytes in behind the end of the file, which is `end`, if there is room for all: [`LeasedMap::append`].
    pub(crate) fn append(&self, end: u64, from: &[&[u8]], durably: bool) -> bool {
        match &self.map {
            Map::Kernel(_) => false,
            Map::Leased(map) => map.append(end, from, durably, self.instructions),
        }
    }

    /// Makes the stores to a range durable.
    pub(crate) fn write_back(&self, range: &Range<u64>) -> Result<(), Refused> {
        // SAFETY: the range is mapped, with MAP_SYNC.
        unsafe { self.instructions.write_back(self.addresses(range)) }
    }
}

/// The instructions for copies and for write-back.
impl fmt::Display for PersistentMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instructions.fmt(out)
    }
}
