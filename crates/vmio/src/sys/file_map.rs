//! A file mapped by the kernel itself, shared: the faults are its own.

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

/// A shared mapping of a file from its first byte, unmapped on drop. It may reach beyond the end of the file: accesses
/// there are a SIGBUS until the file has grown. Forked children do not have it.
///
/// Ranges are of bytes from the start of the mapping, whole pages, and within it.
pub(crate) struct FileMap {
    range: Reservation,
}

impl FileMap {
    /// Maps `len` bytes of a file at a multiple of a span.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::with(file, len, HUGE_PAGE_BYTES, writable, MapFlags::SHARED)
    }

    /// The same at a multiple of what an [`AddressTable`](crate::sys::address_table::AddressTable) tells apart.
    pub(crate) fn in_granules(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::with(file, len, GRANULE_BYTES, writable, MapFlags::SHARED)
    }

    /// The same of a file on persistent memory, past the page cache, with nothing of the file system's left to be made durable once
    /// a store has happened; EOPNOTSUPP where that cannot be.
    pub(crate) fn of_persistent_memory(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::with(file, len, HUGE_PAGE_BYTES, writable, MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
    }

    fn with(file: BorrowedFd<'_>, len: usize, align: usize, writable: bool, flags: MapFlags) -> io::Result<Self> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut range = Reservation::of_file_at_multiple(file, len, align, access, flags)?;
        range.leave_out_on_fork()?;
        Ok(FileMap { range })
    }

    /// What a mapping of a file's first bytes was that this process has from its parent. It stays where it is if this is dropped before
    /// [`Self::take_over`].
    ///
    /// # Safety
    /// It is such a mapping, shared, of whole spans, and nobody else unmaps it after that.
    pub(crate) unsafe fn adopted(addresses: Range<usize>) -> io::Result<Self> {
        // SAFETY: the caller vouches that the addresses are such a mapping, which nobody else unmaps.
        let map = FileMap { range: unsafe { Reservation::adopted(addresses)? } };
        // Fails where the parent left a part out of its children.
        map.no_read_ahead(&(0..map.len() as u64))?;
        Ok(map)
    }

    /// An adopted map is this one's from now on.
    pub(crate) fn take_over(&self) {
        self.range.take_over();
    }

    /// Whether the process has it; what lies there in a forked child is the child's own.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.range.is_here()
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base()
    }

    /// How far it reaches, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Where all of it lies in the address space.
    pub(crate) fn all_addresses(&self) -> Range<usize> {
        self.range.addresses()
    }

    /// Where a range of bytes lies in the address space.
    pub(crate) fn addresses(&self, range: &Range<u64>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.len() as u64, "{range:?} of a map of {}", self.len());
        let base = self.base() as usize;
        base + range.start as usize..base + range.end as usize
    }

    /// The kernel fetches at a miss what it misses, and no more.
    pub(crate) fn no_read_ahead(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::Random)
    }

    /// The kernel reads around a miss, and ahead of accesses that go upwards.
    pub(crate) fn usual_read_ahead(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::Normal)
    }

    /// The kernel fetches at a miss the 2 MiB around it that begin at a multiple of that, all at once and no more (since Linux 5.18); false if
    /// it has no huge pages.
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

    /// No huge page is entered into the page table.
    pub(crate) fn small_pages_only(&self) -> io::Result<()> {
        self.range.small_pages_only()
    }

    /// Makes pages resident as by loads; a page that is not available is an error.
    pub(crate) fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxPopulateRead)
    }

    /// The same as by stores: the pages are dirty then.
    pub(crate) fn populate_for_stores(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxPopulateWrite)
    }

    /// Takes pages out of the page table, with one TLB shootdown. They stay in the page cache, the stored-to ones dirty
    /// there; the next access finds them again. Fails with EINVAL where pages are locked.
    pub(crate) fn unmap(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, Advice::LinuxDontNeed)
    }

    /// Fetches pages and keeps them in memory.
    pub(crate) fn lock(&self, range: &Range<u64>) -> io::Result<()> {
        let addresses = self.addresses(range);
        // SAFETY: the range is ours; locking changes no contents.
        unsafe { rustix::mm::mlock_with(addresses.start as *mut _, addresses.len(), MlockFlags::empty())? };
        Ok(())
    }

    /// The opposite of [`Self::lock`].
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

    /// Copies bytes out by the kernel, which says of a page that is not available how far it came. Needs no whole pages.
    pub(crate) fn load(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Stopped> {
        let addresses = self.addresses(&(offset..offset + buffer.len() as u64));
        own_memory::load(addresses.start, buffer)
    }

    /// Copies bytes in, likewise.
    pub(crate) fn store(&self, offset: u64, data: &[u8]) -> Result<(), Stopped> {
        let addresses = self.addresses(&(offset..offset + data.len() as u64));
        // SAFETY: the bytes lie in the map, of which only pointers and atomics are handed out.
        unsafe { own_memory::store(addresses.start, data) }
    }

    /// Copies bytes out by loads, which [`signal::recover_copies`](crate::sys::signal::recover_copies) keeps from dying of a page
    /// that is not available. Needs no whole pages.
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Refused> {
        let from = self.addresses(&(offset..offset + buffer.len() as u64)).start as *const u8;
        // SAFETY: the range is mapped for loads, the buffer borrowed; what others store meanwhile is seen in part.
        unsafe { persistent_memory::move_bytes(buffer.as_mut_ptr(), from, buffer.len()) }
    }

    /// Copies bytes in by stores, likewise. The caller has mapped it for stores: else they are a SIGSEGV.
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

    /// The address space of a mapping that the kernel refuses may be another thread's by the time it has been refused.
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
                if FileMap::of_persistent_memory(file.as_fd(), len, false).is_ok() || other.is_finished() {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Flags that the kernel checks (MAP_SHARED_VALIDATE) go together with how the place is found: not so MAP_FIXED_NOREPLACE.
    #[test]
    fn a_map_whose_flags_are_checked_is_placed_as_others_are() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"eight by", 0).unwrap();
        let map = FileMap::with(file.as_fd(), PAGE_BYTES, HUGE_PAGE_BYTES, false, MapFlags::SHARED_VALIDATE).unwrap();
        assert!((map.base() as usize).is_multiple_of(HUGE_PAGE_BYTES), "{:p}", map.base());
        assert_eq!(map.first_word(0), u64::from_le_bytes(*b"eight by"));
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
