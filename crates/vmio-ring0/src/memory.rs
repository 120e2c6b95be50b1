//! Memory of the crate's own, whose bytes forked children do not get.

use std::ops::Deref;
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect, mremap, munmap,
};
use rustix::process::{Pid, getpid};

use crate::error::{Error, Result};

/// The page size of x86-64.
pub(crate) const PAGE_BYTES: usize = 4096;
/// An entry of a page directory maps this much.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;
/// A page directory maps this much.
pub(crate) const GIB: usize = 1 << 30;
/// How memory is aligned that code in the machine touches under a lock. Unit tests have it in gigabytes of its own, as it may happen to be.
pub(crate) const UNDER_LOCK_ALIGN: usize = if cfg!(test) { GIB } else { PAGE_BYTES };

/// Zeros that take memory when they are touched.
pub(crate) struct Memory {
    base: usize,
    len: usize,
    process: Pid,
}

impl Memory {
    /// `len` bytes at a multiple of `align`, both multiples of the page size.
    pub(crate) fn reserve(len: usize, align: usize) -> Result<Memory> {
        Self::reserve_as(MapFlags::PRIVATE, Advice::LinuxDontFork, len, align)
    }

    /// The same, which forked children have, too, with zeros.
    pub(crate) fn reserve_zeros_for_children(len: usize, align: usize) -> Result<Memory> {
        Self::reserve_as(MapFlags::PRIVATE, Advice::LinuxWipeOnFork, len, align)
    }

    /// The same, in pages that may have a second address in this process. Core dumps do not have it: the kernel would give memory to all pages
    /// that have none, to dump them.
    pub(crate) fn reserve_shared(len: usize, align: usize) -> Result<Memory> {
        let memory = Self::reserve_as(MapFlags::SHARED, Advice::LinuxDontFork, len, align)?;
        // SAFETY: the advice changes no byte of the mapping just made.
        unsafe { madvise(memory.base as *mut _, len, Advice::LinuxDontDump) }
            .map_err(Error::system("leaving memory of the machine out of core dumps"))?;
        Ok(memory)
    }

    fn reserve_as(kind: MapFlags, in_children: Advice, len: usize, align: usize) -> Result<Memory> {
        let failed = "reserving memory for the machine";
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe {
            mmap_anonymous(ptr::null_mut(), len + align, ProtFlags::READ | ProtFlags::WRITE, kind | MapFlags::NORESERVE)
        };
        let start = raw.map_err(Error::system(failed))? as usize;
        let base = start.next_multiple_of(align);
        // SAFETY: both pieces lie in the mapping just made, of which nobody knows; children are forked without the bytes of what is left.
        unsafe {
            if base > start {
                munmap(start as *mut _, base - start).map_err(Error::system(failed))?;
            }
            if start + align > base {
                munmap((base + len) as *mut _, start + align - base).map_err(Error::system(failed))?;
            }
            madvise(base as *mut _, len, in_children).map_err(Error::system(failed))?;
        }
        Ok(Memory { base, len, process: getpid() })
    }

    /// The same pages of shared memory at a second address, where they can be read alone.
    pub(crate) fn again_for_reading(&self) -> Result<Memory> {
        let failed = "giving the machine's memory a second address";
        // SAFETY: of a shared mapping, no bytes moved are a second mapping of the same, at an address of the kernel's choice.
        let base = unsafe { mremap(self.base as *mut _, 0, self.len, MremapFlags::MAYMOVE) };
        let again =
            Memory { base: base.map_err(Error::system(failed))? as usize, len: self.len, process: self.process };
        // SAFETY: takes rights from the mapping just made, of which nobody knows; children are forked without it.
        unsafe {
            mprotect(again.base as *mut _, again.len, MprotectFlags::READ).map_err(Error::system(failed))?;
            madvise(again.base as *mut _, again.len, Advice::LinuxDontFork).map_err(Error::system(failed))?;
        }
        Ok(again)
    }

    /// The first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has it in huge pages where the kernel has some.
    pub(crate) fn prefer_huge_pages(&self) {
        // SAFETY: the advice changes no byte of the range. Without it there are small pages.
        let _ = unsafe { madvise(self.base as *mut _, self.len, Advice::LinuxHugepage) };
    }

    /// Makes a page fault for good, so that a stack that grows into it ends the program and corrupts nothing.
    pub(crate) fn guard(&self, offset: usize) -> Result<()> {
        debug_assert!(offset + PAGE_BYTES <= self.len);
        // SAFETY: the page lies in memory of our own, in which nothing was put yet.
        unsafe { mprotect((self.base + offset) as *mut _, PAGE_BYTES, MprotectFlags::empty()) }
            .map_err(Error::system("guarding a stack of the machine"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A child may have something else there.
        if self.process != getpid() {
            return;
        }
        // SAFETY: the range was mapped by `reserve`, and its owner has ended every use of it. Should it fail, the addresses stay taken.
        let _ = unsafe { munmap(self.base as *mut _, self.len) };
    }
}

/// A word for each of some things, which has memory when it is touched.
pub(crate) struct Words {
    memory: Memory,
    count: usize,
}

impl Words {
    /// Zeros at first.
    pub(crate) fn zeros(count: usize) -> Result<Words> {
        let len = (count * size_of::<AtomicU64>()).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        Ok(Words { memory: Memory::reserve(len, PAGE_BYTES)?, count })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the memory is as long, was zeros at first, has nothing else, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.memory.base() as *const AtomicU64, self.count) }
    }
}
