//! A file as the kernel maps it for all processes, with access by copies.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Access;
use crate::sys::PAGE_BYTES;
use crate::sys::file_map::FileMap;
use crate::sys::page_cache;
use crate::sys::persistent_map::PersistentMap;
use crate::sys::signal;

/// The kernel's own shared mapping of a file, with copies in and out that take no system call (SplitFS's collection of mmaps,
/// thesis §4.5).
///
/// It begins at the first byte of the file, and does not use a vmio cache. On a file system with a page cache the bytes are in that
/// cache, where every process sees them. On persistent memory (DAX) they are on the device.
///
/// A page that is not available (behind the end of the file, a device that fails, no space for a hole) is [`NotThere`], not a
/// SIGBUS, unless the thread blocks that signal. Forked children do not have the mapping: for them no page is available.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsFd;
/// use vmio::{Access, SharedMap};
///
/// let file = tempfile::tempfile()?;
/// file.set_len(8192)?;
/// let map = SharedMap::open(file.as_fd(), 8192, Access::ReadWrite)?;
/// map.write_at(5000, b"hello")?;
/// let mut found = [0; 5];
/// map.read_at(5000, &mut found)?;
/// assert_eq!(&found, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct SharedMap {
    kind: Kind,
}

enum Kind {
    PageCache { map: FileMap, is_writable: bool },
    Persistent(PersistentMap),
}

/// The error for a page that is not available. Bytes before it may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotThere;

impl fmt::Display for NotThere {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a page of the file is not available")
    }
}

impl std::error::Error for NotThere {}

impl SharedMap {
    /// Maps `len` bytes, which may reach beyond the end of the file.
    ///
    /// The descriptor must be open for reading, and with [`Access::ReadWrite`] for writing too. The caller may close it afterwards.
    ///
    /// # Errors
    ///
    /// Those of mmap.
    pub fn open(file: BorrowedFd<'_>, len: u64, access: Access) -> io::Result<Self> {
        let len = usize::try_from(len).ok().and_then(|len| len.max(1).checked_next_multiple_of(PAGE_BYTES));
        let len = len.ok_or(io::ErrorKind::FileTooLarge)?;
        let is_writable = access == Access::ReadWrite;
        let kind = match PersistentMap::new(file, len, is_writable) {
            Ok(map) => Kind::Persistent(map),
            // Any error: if it matters, the mapping below fails with it too.
            Err(_) => Kind::PageCache { map: FileMap::new(file, len, is_writable)?, is_writable },
        };
        signal::recover_copies()?;
        Ok(SharedMap { kind })
    }

    /// Maps `len` bytes of a file of a mounted vmio-pmfs by its extents; `None` if it is another file, or this process may not open the medium. The descriptor
    /// stays open as long as anybody has it.
    ///
    /// # Errors
    ///
    /// Those of mmap, and a processor whose instructions for persistent memory vmio does not know.
    pub fn by_extents(file: Arc<OwnedFd>, len: u64, access: Access) -> io::Result<Option<Self>> {
        let len = usize::try_from(len).ok().and_then(|len| len.max(1).checked_next_multiple_of(PAGE_BYTES));
        let len = len.ok_or(io::ErrorKind::FileTooLarge)?;
        let map = PersistentMap::by_extents(file, len, access == Access::ReadWrite)?;
        Ok(map.map(|map| SharedMap { kind: Kind::Persistent(map) }))
    }

    /// Refuses in a forked child, which may have other memory at the addresses of its parent's map.
    #[inline]
    fn check_here(&self) -> Result<(), NotThere> {
        let is_here = match &self.kind {
            Kind::PageCache { map, .. } => map.is_here(),
            Kind::Persistent(map) => map.is_here(),
        };
        if is_here { Ok(()) } else { Err(NotThere) }
    }

    /// Returns the length of the mapping in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match &self.kind {
            Kind::PageCache { map, .. } => map.len() as u64,
            Kind::Persistent(map) => map.len() as u64,
        }
    }

    /// Returns whether the bytes are on persistent memory: writes are then durable when [`Self::write_at`] returns.
    pub fn is_persistent(&self) -> bool {
        matches!(&self.kind, Kind::Persistent(map) if map.is_synchronous())
    }

    /// Returns whether a sync of the file has nothing left to do. It is one of vmio-pmfs on persistent memory: all calls of all processes are durable when
    /// they return. And no process has it mapped by the page cache. Stores of programs to mappings of their own are another matter
    /// ([`crate::ProgramMap::medium_to_sync`]).
    pub fn is_always_durable(&self) -> bool {
        matches!(&self.kind, Kind::Persistent(map) if map.is_always_durable())
    }

    /// Returns whether the bytes are in no page cache: a store costs the kernel nothing then.
    pub fn is_direct(&self) -> bool {
        matches!(self.kind, Kind::Persistent(_))
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Errors
    ///
    /// [`NotThere`] for a page that is not available.
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the mapping.
    #[inline]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), NotThere> {
        self.check_here()?;
        match &self.kind {
            Kind::PageCache { map, .. } => map.copy_out(offset, buffer),
            Kind::Persistent(map) => map.load(offset, buffer),
        }
        .map_err(|_| NotThere)
    }

    /// Copies bytes into the mapping.
    ///
    /// # Errors
    ///
    /// [`NotThere`] for a page that is not available.
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the mapping, or the mapping is read-only.
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), NotThere> {
        self.check_here()?;
        match &self.kind {
            Kind::PageCache { map, is_writable } => {
                assert!(*is_writable, "a store to a map for loads");
                map.copy_in(offset, bytes)
            }
            Kind::Persistent(map) => map.store(offset, bytes),
        }
        .map_err(|_| NotThere)
    }

    /// Returns the descriptor that the map needs, and those that all maps of the same mounted vmio-pmfs need; `None` for other files. A program
    /// that closes all descriptors it finds must spare these. The first one is closed with the map, the others stay.
    pub fn descriptors(&self) -> Option<(BorrowedFd<'_>, [BorrowedFd<'_>; 3])> {
        match &self.kind {
            Kind::PageCache { .. } => None,
            Kind::Persistent(map) => map.descriptors(),
        }
    }

    /// Returns a number that changes when a file of vmio-pmfs may have become shorter. If the number is the same before the caller learns the length and after a copy, the
    /// file was as long during the copy. `None` where the kernel serves the map: it alone knows.
    #[inline]
    pub fn cuts(&self) -> Option<u64> {
        match &self.kind {
            Kind::PageCache { .. } => None,
            Kind::Persistent(map) => map.cuts(),
        }
    }

    /// Returns whether others may have taken some of these bytes away since [`Self::cuts`] was `before`: by a cut, or by a hole. If not, what was copied
    /// to them since is in the file, as far as the file reaches.
    pub fn has_lost(&self, before: u64, bytes: &Range<u64>) -> bool {
        match &self.kind {
            Kind::PageCache { .. } => false,
            Kind::Persistent(map) => map.has_lost(before, bytes),
        }
    }

    /// Returns the first of [`Self::descriptors`]. It stays open as long as anybody has this: closing it ends the record locks of the process
    /// (`fcntl`, F_SETLK), as closing any descriptor does.
    pub fn file(&self) -> Option<Arc<OwnedFd>> {
        match &self.kind {
            Kind::PageCache { .. } => None,
            Kind::Persistent(map) => map.file(),
        }
    }

    /// Returns whether [`Self::append_at`] can append without the kernel: the file is one of vmio-pmfs, mapped for stores.
    pub fn appends(&self) -> bool {
        matches!(&self.kind, Kind::Persistent(map) if map.appends())
    }

    /// Appends parts, one after the other, to the file, whose length is `end`, without a system call if there is room for all of them. If it returns false, the kernel has to
    /// append them; ask for the file's length first (fstat), so that it knows the end.
    ///
    /// All processes see them at once, and they survive the end of this one. They are durable after a sync of the file.
    pub fn append_at(&self, end: u64, parts: &[&[u8]]) -> bool {
        match &self.kind {
            Kind::Persistent(map) if self.check_here().is_ok() => map.append(end, parts, false),
            _ => false,
        }
    }

    /// Appends as [`Self::append_at`] does. All parts are durable when this returns true, and a crash before leaves all of them or none. It returns false
    /// unless the file is on persistent memory ([`Self::is_persistent`]).
    pub fn append_durably_at(&self, end: u64, parts: &[&[u8]]) -> bool {
        match &self.kind {
            Kind::Persistent(map) if self.check_here().is_ok() && map.is_synchronous() => map.append(end, parts, true),
            _ => false,
        }
    }

    /// Fills the page tables for a range if nine tenths of it are in memory, and returns whether they are.
    ///
    /// Copies then take no faults. Else the kernel's own reads fetch the range faster than faults do. `file` is the mapped file.
    /// The range covers whole pages, except at the end of the file.
    pub fn populate_if_cached(&self, file: BorrowedFd<'_>, range: Range<u64>) -> bool {
        let page = PAGE_BYTES as u64;
        let pages = (range.end - range.start).div_ceil(page);
        let cached = || page_cache::look(file, &range).map_or(pages, |cached| cached.pages);
        let is_cached = self.is_direct() || cached() * 10 >= pages * 9;
        if is_cached {
            let range = range.start..range.end.next_multiple_of(page);
            // A page that is not available is an error of the later copy.
            let _ = match &self.kind {
                Kind::PageCache { map, .. } => map.populate(&range),
                Kind::Persistent(map) => map.populate(&range),
            };
        }
        is_cached
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn everybody_sees_what_is_written_and_it_sees_what_everybody_writes() {
        let file = file(3 * PAGE_BYTES as u64);
        let map = SharedMap::open(file.as_fd(), 1 << 20, Access::ReadWrite).unwrap();
        assert!(map.len() == 1 << 20 && !map.is_persistent());
        map.write_at(4090, b"across a page").unwrap();
        let mut found = [0; 13];
        file.read_exact_at(&mut found, 4090).unwrap();
        assert_eq!(&found, b"across a page");
        file.write_all_at(b"another", 4093).unwrap();
        map.read_at(4090, &mut found).unwrap();
        assert_eq!(&found, b"acranotherage");
    }

    #[test]
    fn what_is_in_memory_is_mapped_at_once() {
        let (dir, len) = (tempfile::tempdir().unwrap(), 100 * PAGE_BYTES as u64 + 1);
        let path = dir.path().join("data");
        std::fs::write(&path, vec![7; len as usize]).unwrap();
        let file = File::open(&path).unwrap();
        let map = SharedMap::open(file.as_fd(), len, Access::ReadOnly).unwrap();
        file.sync_all().unwrap();
        page_cache::drop_clean(file.as_fd(), &(0..map.len())).unwrap();
        if page_cache::look(file.as_fd(), &(0..len)).is_some_and(|cached| cached.pages == 0) {
            assert!(!map.populate_if_cached(file.as_fd(), 0..len));
        }
        assert_eq!(std::fs::read(&path).unwrap().len(), len as usize);
        assert!(map.populate_if_cached(file.as_fd(), 0..len));
    }

    #[test]
    fn what_is_behind_the_end_is_not_there_until_the_file_has_grown() {
        let file = file(100);
        let map = SharedMap::open(file.as_fd(), 1 << 20, Access::ReadWrite).unwrap();
        let mut found = [1; 200];
        // The last page is zeros behind the end.
        map.read_at(0, &mut found).unwrap();
        assert_eq!(found, [0; 200]);
        assert_eq!(map.read_at(4000, &mut found), Err(NotThere));
        assert_eq!(map.write_at(4000, &found), Err(NotThere));
        assert_eq!(map.write_at(8192, &[]), Ok(()));
        file.set_len(8192).unwrap();
        assert_eq!(map.write_at(4000, &[5; 200]), Ok(()));
        map.read_at(4000, &mut found).unwrap();
        assert_eq!(found, [5; 200]);
        file.set_len(4096).unwrap();
        assert_eq!(map.read_at(4096, &mut found[..1]), Err(NotThere));
    }

    #[test]
    fn a_file_for_loads_is_mapped_for_loads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"some bytes").unwrap();
        let file = File::open(&path).unwrap();
        let map = SharedMap::open(file.as_fd(), 10, Access::ReadOnly).unwrap();
        let mut found = [0; 10];
        map.read_at(0, &mut found).unwrap();
        assert_eq!(&found, b"some bytes");
        assert!(SharedMap::open(file.as_fd(), 10, Access::ReadWrite).is_err());
    }
}
