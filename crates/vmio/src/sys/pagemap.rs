//! /proc/self/pagemap: the kernel's view of the pages of a range, above all which of them have been stored to.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use linux_raw_sys::general::{
    PAGE_IS_HUGE, PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region, pm_scan_arg,
};

use crate::sys::PAGE_BYTES;

/// The longest range of one scan, in pages: one page of page tables maps as many.
pub(crate) const SCAN_PAGES: usize = 512;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<pm_scan_arg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// The stored pages of a range form at most this many runs.
const RUNS_MAX: usize = SCAN_PAGES / 2;

/// The stored pages of a range, with buffers for the scan, allocated beforehand.
pub(crate) struct StoredPages {
    runs: Box<[page_region; RUNS_MAX]>,
    bits: [u64; SCAN_PAGES / 64],
}

impl StoredPages {
    /// An empty set.
    pub(crate) fn new() -> Self {
        let none = page_region { start: 0, end: 0, categories: 0 };
        StoredPages { runs: Box::new([none; RUNS_MAX]), bits: [0; SCAN_PAGES / 64] }
    }

    /// Whether the page of this number within the range was stored to. Also true for an unmapped page that was never
    /// protected. So ask only for mapped pages, or for pages that were mapped protected.
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.bits[index / 64] >> (index % 64) & 1 == 1
    }

    /// Adds the page of this number within the range.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the kernel finds them"))]
    pub(crate) fn insert(&mut self, index: usize) {
        self.bits[index / 64] |= 1 << (index % 64);
    }

    /// Forgets all pages.
    pub(crate) fn clear(&mut self) {
        self.bits = [0; SCAN_PAGES / 64];
    }

    /// Takes every page for stored, for when the kernel cannot tell.
    pub(crate) fn assume_all(&mut self) {
        self.bits = [u64::MAX; SCAN_PAGES / 64];
    }
}

/// The open pagemap of this process. In a forked child it is still that of the parent.
pub(crate) struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens the pagemap.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Pagemap { file: File::open("/proc/self/pagemap")? })
    }

    /// Opens the pagemap. An error if the kernel cannot scan it (before Linux 6.7).
    pub(crate) fn open_to_scan() -> io::Result<Self> {
        let pagemap = Self::open()?;
        pagemap.scan(0..0, PAGE_IS_WRITTEN, 0, &mut [])?;
        Ok(pagemap)
    }

    /// Whether a page was stored to since it was last protected: like [`Self::stored`], without buffers.
    pub(crate) fn was_stored(&self, address: usize) -> io::Result<bool> {
        let mut run = [page_region { start: 0, end: 0, categories: 0 }];
        loop {
            match self.scan(address..address + PAGE_BYTES, PAGE_IS_WRITTEN, 0, &mut run) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Ok(other?.0 > 0),
            }
        }
    }

    /// Whether a range is mapped by huge pages from its start to its end.
    pub(crate) fn is_huge(&self, address: usize, len: usize) -> io::Result<bool> {
        let mut run = [page_region { start: 0, end: 0, categories: 0 }];
        self.scan(address..address + len, PAGE_IS_HUGE, 0, &mut run)?;
        Ok(run[0].start as usize == address && run[0].end as usize == address + len)
    }

    /// Adds the pages of a range that were stored to since they were last protected.
    pub(crate) fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.mark(address, len, 0, found)
    }

    /// Like [`Self::stored`], and protects these pages again in the same step, so that a later call finds later stores.
    /// One TLB shootdown.
    pub(crate) fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.mark(address, len, PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, found)
    }

    fn mark(&self, address: usize, len: usize, flags: u32, found: &mut StoredPages) -> io::Result<()> {
        debug_assert!(len <= SCAN_PAGES * PAGE_BYTES);
        let end = address + len;
        let mut from = address;
        loop {
            let (count, reached) = match self.scan(from..end, PAGE_IS_WRITTEN, flags, &mut found.runs[..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            for run in &found.runs[..count] {
                for page in ((run.start as usize).max(address)..(run.end as usize).min(end)).step_by(PAGE_BYTES) {
                    let index = (page - address) / PAGE_BYTES;
                    found.bits[index / 64] |= 1 << (index % 64);
                }
            }
            if reached >= end || reached <= from {
                return Ok(());
            }
            from = reached;
        }
    }

    /// Lists the runs of pages of a category (PAGE_IS_*) in one system call. Returns the number of runs, and the
    /// address that it reached.
    pub(super) fn scan(
        &self,
        addresses: Range<usize>,
        category: u32,
        flags: u32,
        runs: &mut [page_region],
    ) -> io::Result<(usize, usize)> {
        let mut request = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: u64::from(flags),
            start: addresses.start as u64,
            end: addresses.end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: u64::from(category),
            category_anyof_mask: 0,
            return_mask: u64::from(category),
        };
        // SAFETY: `request` is the structure of this request, and names an array of ours with its length.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut request) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        Ok((found, request.walk_end as usize))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads the pagemap entries of pages, eight bytes each.
    pub(super) fn read_entries(&self, address: usize, entries: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(entries, (address / PAGE_BYTES * 8) as u64)
    }
}
