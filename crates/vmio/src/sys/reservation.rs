//! Ranges of address space that cost nothing until touched.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::fork::Generation;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

/// How often to try to map a file while other threads map memory at the same moment.
const PLACES_TRIED: usize = 1000;

/// A range of addresses, unmapped on drop: private anonymous zeros without reserved swap, or a shared mapping of a
/// file.
pub(crate) struct Reservation {
    base: NonNull<u8>,
    len: usize,
    /// Set if forked children do not have the range. In a child, other memory may lie at its addresses.
    only_in: Option<Generation>,
    /// Whether the range stays mapped when this is dropped.
    stays: AtomicBool,
    is_read_only: AtomicBool,
}

// SAFETY: a Reservation is an address and a length; each user of the pointer answers for the accesses of threads.
unsafe impl Send for Reservation {}
// SAFETY: a Reservation is an address and a length: no method reads or writes the bytes.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` readable and writable bytes at a multiple of `align`; both are multiples of the page size.
    pub(crate) fn zeroed(len: usize, align: usize) -> io::Result<Self> {
        assert!(align.is_power_of_two() && align >= super::PAGE_BYTES && len > 0);
        let padded = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe {
            mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let start = raw as usize;
        let aligned = start.next_multiple_of(align);
        let end = aligned + len.next_multiple_of(super::PAGE_BYTES);
        // SAFETY: both pieces lie inside the mapping just made, which nobody else knows of.
        unsafe {
            if aligned > start {
                munmap(start as *mut _, aligned - start)?;
            }
            if start + padded > end {
                munmap(end as *mut _, start + padded - end)?;
            }
            mprotect(aligned as *mut _, end - aligned, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        Self::of(aligned as *mut u8, end - aligned)
    }

    /// Maps the first `len` bytes of a file, a multiple of the page size, shared with all others that map them.
    pub(crate) fn of_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        Self::of(raw.cast(), len)
    }

    /// Makes `len` bytes of zeros, a multiple of the page size, which children forked from now on share with this
    /// process.
    pub(crate) fn shared_with_children(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED)? };
        Self::of(raw.cast(), len)
    }

    /// Adopts an existing mapping. It stays mapped on drop until [`Self::take_over`].
    ///
    /// # Safety
    /// The addresses are a mapping, and after `take_over` nobody else unmaps it.
    pub(crate) unsafe fn adopted(addresses: Range<usize>) -> io::Result<Self> {
        let adopted = Self::of(addresses.start as *mut u8, addresses.len())?;
        adopted.stays.store(true, Ordering::Relaxed);
        Ok(adopted)
    }

    /// Unmaps an adopted range on drop from now on.
    pub(crate) fn take_over(&self) {
        self.stays.store(false, Ordering::Relaxed);
    }

    fn of(base: *mut u8, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Reservation {
            base,
            len,
            only_in: None,
            stays: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
        })
    }

    /// Maps `len` bytes of a file from `offset` on, at a multiple of `align`, and with these flags. The range may reach
    /// beyond the end of the file. The offset is a multiple of the page size.
    ///
    /// The mapping is not laid over a reservation (MAP_FIXED): the kernel removes what lies there before a file system
    /// refuses. By the time we give the rest back, another thread may have memory of its own there. MAP_FIXED_NOREPLACE
    /// does not work either: with MAP_SHARED_VALIDATE the kernel refuses it for every file. So the place is a hint.
    pub(crate) fn of_file_at_multiple(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        align: usize,
        access: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let len = len.next_multiple_of(super::PAGE_BYTES);
        // A file system that places huge pages itself follows the hint only if there is space for one more.
        let room = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        for _ in 0..PLACES_TRIED {
            let free = Self::zeroed(room, align)?.base();
            // SAFETY: without MAP_FIXED a new mapping overlaps nothing, wherever the kernel puts it.
            let raw = unsafe { mmap(free.cast(), len, access, flags | MapFlags::NORESERVE, file, offset)? };
            let placed = Self::of(raw.cast(), len)?;
            if (placed.base() as usize).is_multiple_of(align) {
                return Ok(placed);
            }
            // Another thread has taken the place first.
        }
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// The addresses of the range.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let base = self.base() as usize;
        base..base + self.len()
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether the process has the range: a forked child may not.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.only_in.is_none_or(Generation::is_current)
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes the range readable only: a store to it is a SIGSEGV.
    pub(crate) fn make_read_only(&self) -> io::Result<()> {
        // SAFETY: the range is ours; readers of the memory do not notice that it is read-only.
        unsafe { mprotect(self.base().cast(), self.len, MprotectFlags::READ)? };
        self.is_read_only.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends that.
    pub(crate) fn make_writable(&self) -> io::Result<()> {
        // SAFETY: the range is ours; whoever holds it decides on the protection.
        unsafe { mprotect(self.base().cast(), self.len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        self.is_read_only.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it was made readable only.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the kernel knows it, too"))]
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Makes every access to the range a SIGSEGV.
    pub(crate) fn make_inaccessible(&self) -> io::Result<()> {
        // SAFETY: the range is ours, and whoever takes its bytes away has ended every use of them.
        unsafe { mprotect(self.base().cast(), self.len, MprotectFlags::empty())? };
        Ok(())
    }

    /// Makes addresses behind the range inaccessible, up to a multiple of `align`; an error if there is something else.
    pub(crate) fn pad(&self, align: usize) -> io::Result<Option<Reservation>> {
        let end = self.addresses().end;
        let len = end.next_multiple_of(align) - end;
        if len == 0 {
            return Ok(None);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the kernel refuses where something is mapped already.
        let raw = unsafe { mmap_anonymous(end as *mut _, len, ProtFlags::empty(), flags)? };
        let mut padding = Self::of(raw.cast(), len)?;
        padding.leave_out_on_fork()?;
        Ok(Some(padding))
    }

    /// Makes the kernel give forked children zeros in place of the contents.
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        self.advise(Advice::LinuxWipeOnFork)
    }

    /// Makes the kernel leave the range out of forked children altogether.
    pub(crate) fn leave_out_on_fork(&mut self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)?;
        self.only_in = Some(Generation::of_this_process()?);
        Ok(())
    }

    /// Turns transparent huge pages off: residency is decided page by page.
    pub(crate) fn small_pages_only(&self) -> io::Result<()> {
        match self.advise(Advice::LinuxNoHugepage) {
            // A kernel built without transparent huge pages has nothing to turn off.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    /// Prepares a range whose pages come and go one by one, in this process alone. With `read_only` stores are not
    /// allowed. With `locked` its resident pages are locked in memory.
    pub(crate) fn prepare_for_frames(&mut self, read_only: bool, locked: bool) -> io::Result<()> {
        self.leave_out_on_fork()?;
        self.small_pages_only()?;
        if read_only {
            self.make_read_only()?;
        }
        if locked {
            self.lock_on_fault()?;
        }
        Ok(())
    }

    /// Asks for huge pages where they fit the range, if the kernel has any.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        match self.advise(Advice::LinuxHugepage) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    /// Locks pages in memory as they become resident (MLOCK_ONFAULT), so that the kernel does not swap them.
    pub(crate) fn lock_on_fault(&self) -> io::Result<()> {
        // SAFETY: locking changes no contents; the range is ours.
        unsafe { rustix::mm::mlock_with(self.base().cast(), self.len, rustix::mm::MlockFlags::ONFAULT)? };
        Ok(())
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the advices used above neither free nor change bytes of the range in this process.
        unsafe { madvise(self.base().cast(), self.len, advice)? };
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_here() || *self.stays.get_mut() {
            return;
        }
        // SAFETY: this has mapped the range or was given it, nothing else unmaps it, and the owner outlives every use
        // of it.
        if let Err(error) = unsafe { munmap(self.base().cast(), self.len) } {
            tracing::error!(%error, len = self.len, "unmapping a reservation failed");
        }
    }
}
