//! A shared mapping of a file, whose faults the kernel itself serves.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MlockFlags, MsyncFlags, ProtFlags};

use crate::sys::HUGE_PAGE_BYTES;
use crate::sys::PAGE_BYTES;
use crate::sys::address_table::GRANULE_BYTES;
use crate::sys::own_memory::{self, Stopped};
use crate::sys::persistent_memory::{self, Refused};
use crate::sys::reservation::Reservation;

/// A shared mapping of a file, unmapped on drop. It begins at the file's first byte, but for
/// [`FileMap::of_persistent_memory`]. It may reach beyond the end of the file: accesses there are a SIGBUS until the file
/// has grown. Forked children do not have the mapping.
///
/// Ranges are in bytes from the start of the mapping, consist of whole pages, and lie within it.
pub(crate) struct FileMap {
    range: Reservation,
}

impl FileMap {
    /// Maps `len` bytes of a file at a multiple of a span.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::with(file, 0, len, HUGE_PAGE_BYTES, writable, MapFlags::SHARED)
    }

    /// Like [`Self::new`], at a multiple of the granules of an
    /// [`AddressTable`](crate::sys::address_table::AddressTable).
    pub(crate) fn in_granules(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::with(file, 0, len, GRANULE_BYTES, writable, MapFlags::SHARED)
    }

    /// Like [`Self::new`], for a file on persistent memory, past the page cache, and from an offset on. Once a store has
    /// happened, the file system has nothing left to make durable for it. EOPNOTSUPP if the file system does not support
    /// that.
    pub(crate) fn of_persistent_memory(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<Self> {
        Self::with(file, offset, len, HUGE_PAGE_BYTES, writable, MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
    }

    fn with(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        align: usize,
        writable: bool,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut range = Reservation::of_file_at_multiple(file, offset, len, align, access, flags)?;
        range.leave_out_on_fork()?;
        Ok(FileMap { range })
    }

    /// Adopts a mapping of a file's first bytes that this process has from its parent. Dropping the result before
    /// [`Self::take_over`] leaves the mapping in place.
    ///
    /// # Safety
    /// The addresses are such a mapping, shared, of whole spans, and nobody else unmaps them after that.
    pub(crate) unsafe fn adopted(addresses: Range<usize>) -> io::Result<Self> {
        // SAFETY: the caller vouches that the addresses are such a mapping, which nobody else unmaps.
        let map = FileMap { range: unsafe { Reservation::adopted(addresses)? } };
        // This fails if the parent left a part of the mapping out of its children.
        map.no_read_ahead(&(0..map.len() as u64))?;
        Ok(map)
    }

    /// Makes this the owner of an adopted mapping.
    pub(crate) fn take_over(&self) {
        self.range.take_over();
    }

    /// Whether the process has the mapping. In a forked child, other memory may lie there.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.range.is_here()
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base()
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// The addresses of the mapping.
    pub(crate) fn all_addresses(&self) -> Range<usize> {
        self.range.addresses()
    }

    /// The addresses of a range of bytes.
    pub(crate) fn addresses(&self, range: &Range<u64>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.len() as u64, "{range:?} of a map of {}", self.len());
        let base = self.base() as usize;
        base + range.start as usize..base + range.end as usize
    }

    /// At a miss, makes the kernel read only the missed page.
    pub(crate) fn no_read_ahead(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::Random)
    }

    /// Makes the kernel read around a miss, and ahead of accesses that go upwards.
    pub(crate) fn usual_read_ahead(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::Normal)
    }

    /// At a miss, makes the kernel read the aligned 2 MiB around it, all at once and no more (since Linux 5.18). False
    /// if the kernel has no huge pages.
    pub(crate) fn read_by_huge_pages(&self, range: &Range<u64>) -> io::Result<bool> {
        match self.advise(range, Advice::LinuxHugepage) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The opposite of [`Self::read_by_huge_pages`].
    pub(crate) fn read_by_pages(&self, range: &Range<u64>) -> io::Result<()> {
        match self.advise(range, Advice::LinuxNoHugepage) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    /// Allows or forbids stores, as far as the mapping of the file allows any.
    pub(crate) fn allow_stores(&self, allow: bool) -> io::Result<()> {
        if allow { self.range.make_writable() } else { self.range.make_read_only() }
    }

    /// Keeps huge pages out of the page table.
    pub(crate) fn small_pages_only(&self) -> io::Result<()> {
        self.range.small_pages_only()
    }

    /// Makes pages resident as loads would. A page that is not available is an error.
    pub(crate) fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxPopulateRead)
    }

    /// Makes pages resident as stores would: they are dirty then.
    pub(crate) fn populate_for_stores(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxPopulateWrite)
    }

    /// Takes pages out of the page table, with one TLB shootdown. They stay in the page cache, dirty if they were
    /// stored to, and the next access finds them there. Fails with EINVAL where pages are locked.
    pub(crate) fn unmap(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxDontNeed)
    }

    /// Reads pages in and locks them in memory.
    pub(crate) fn lock(&self, range: &Range<u64>) -> io::Result<()> {
        let addresses = self.addresses(range);
        // SAFETY: the range is ours; locking changes no contents.
        unsafe { rustix::mm::mlock_with(addresses.start as *mut _, addresses.len(), MlockFlags::empty())? };
        Ok(())
    }

    /// Undoes [`Self::lock`].
    pub(crate) fn unlock(&self, range: &Range<u64>) -> io::Result<()> {
        let addresses = self.addresses(range);
        // SAFETY: the range is ours; unlocking changes no contents.
        unsafe { rustix::mm::munlock(addresses.start as *mut _, addresses.len())? };
        Ok(())
    }

    /// Writes the dirty pages of a range and waits until they are durable.
    pub(crate) fn sync(&self, range: &Range<u64>) -> io::Result<()> {
        let addresses = self.addresses(range);
        // SAFETY: the range is ours; writing it back changes no contents.
        unsafe { rustix::mm::msync(addresses.start as *mut _, addresses.len(), MsyncFlags::SYNC)? };
        Ok(())
    }

    /// The first 8 bytes of a page, by a load.
    pub(crate) fn first_word(&self, page: u64) -> u64 {
        let offset = page * PAGE_BYTES as u64;
        let addresses = self.addresses(&(offset..offset + PAGE_BYTES as u64));
        // SAFETY: the word lies in the mapping; safe accesses are atomic.
        unsafe { AtomicU64::from_ptr(addresses.start as *mut u64) }.load(Ordering::Acquire)
    }

    /// Stores zeros to a range of bytes, page-aligned or not.
    pub(crate) fn clear(&self, range: &Range<u64>) {
        for at in self.addresses(range) {
            // SAFETY: the byte lies in the mapping, which the caller has mapped for stores; safe accesses are atomic.
            unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(0, Ordering::Relaxed);
        }
    }

    /// Copies bytes out through the kernel. At a page that is not available, the error says how far it came. The range
    /// need not consist of whole pages.
    pub(crate) fn load(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Stopped> {
        let addresses = self.addresses(&(offset..offset + buffer.len() as u64));
        own_memory::load(addresses.start, buffer)
    }

    /// Copies bytes in, like [`Self::load`].
    pub(crate) fn store(&self, offset: u64, data: &[u8]) -> Result<(), Stopped> {
        let addresses = self.addresses(&(offset..offset + data.len() as u64));
        // SAFETY: the bytes lie in the map, of which only pointers and atomics are handed out.
        unsafe { own_memory::store(addresses.start, data) }
    }

    /// Copies bytes out by loads. [`signal::recover_copies`](crate::sys::signal::recover_copies) keeps them from a
    /// fatal signal at a page that is not available. The range need not consist of whole pages.
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Refused> {
        let from = self.addresses(&(offset..offset + buffer.len() as u64)).start as *const u8;
        // SAFETY: the range is mapped for loads, the buffer borrowed. Stores of other threads meanwhile are seen in
        // part.
        unsafe { persistent_memory::move_bytes(buffer.as_mut_ptr(), from, buffer.len()) }
    }

    /// Copies bytes in by stores, like [`Self::copy_out`]. The caller has mapped the file for stores; otherwise this is
    /// a SIGSEGV.
    #[inline]
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        let to = self.addresses(&(offset..offset + bytes.len() as u64)).start as *mut u8;
        // SAFETY: the range is mapped, and only pointers and atomics of it are handed out.
        unsafe { persistent_memory::move_bytes(to, bytes.as_ptr(), bytes.len()) }
    }

    fn advise(&self, range: &Range<u64>, advice: Advice) -> io::Result<()> {
        if !self.is_here() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let addresses = self.addresses(range);
        // SAFETY: the range is ours, and in a shared mapping of a file none of the advices above changes contents.
        unsafe { rustix::mm::madvise(addresses.start as *mut _, addresses.len(), advice)? };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::ptr;
    use std::sync::atomic::AtomicBool;

    use rustix::mm::{mmap_anonymous, msync, munmap};

    use super::*;

    /// While the kernel refuses a mapping, another thread may get its address space.
    #[test]
    fn a_refused_map_takes_nobodys_memory() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (len, is_over) = (1 << 30, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                    // SAFETY: a mapping of this thread's own, which nothing is done with.
                    let is_there = unsafe {
                        let map = mmap_anonymous(ptr::null_mut(), len / 8, ProtFlags::empty(), flags).unwrap();
                        std::thread::yield_now();
                        let is_there = msync(map, len / 8, MsyncFlags::ASYNC).is_ok();
                        munmap(map, len / 8).unwrap();
                        is_there
                    };
                    assert!(is_there, "unmapped by somebody else");
                }
            });
            for _ in 0..20_000 {
                if FileMap::of_persistent_memory(file.as_fd(), 0, len, false).is_ok() || other.is_finished() {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// The search for a place also works with flags that the kernel checks (MAP_SHARED_VALIDATE). MAP_FIXED_NOREPLACE
    /// does not.
    #[test]
    fn a_map_whose_flags_are_checked_is_placed_as_others_are() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"eight by", 0).unwrap();
        let map =
            FileMap::with(file.as_fd(), 0, PAGE_BYTES, HUGE_PAGE_BYTES, false, MapFlags::SHARED_VALIDATE).unwrap();
        assert!((map.base() as usize).is_multiple_of(HUGE_PAGE_BYTES), "{:p}", map.base());
        assert_eq!(map.first_word(0), u64::from_le_bytes(*b"eight by"));
    }

    #[test]
    fn a_map_begins_where_it_is_told() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"eight by", 3 * PAGE_BYTES as u64).unwrap();
        let offset = 2 * PAGE_BYTES as u64;
        let map =
            FileMap::with(file.as_fd(), offset, 2 * PAGE_BYTES, HUGE_PAGE_BYTES, false, MapFlags::SHARED).unwrap();
        assert_eq!((map.first_word(0), map.first_word(1)), (0, u64::from_le_bytes(*b"eight by")));
    }

    #[test]
    fn a_map_starts_at_a_multiple_and_shows_the_file() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"eight by", 8192).unwrap();
        for _ in 0..100 {
            let map = FileMap::in_granules(file.as_fd(), 3 * PAGE_BYTES, false).unwrap();
            assert!((map.base() as usize).is_multiple_of(GRANULE_BYTES), "{:p}", map.base());
            assert_eq!((map.len(), map.first_word(2)), (3 * PAGE_BYTES, u64::from_le_bytes(*b"eight by")));
        }
    }
}
