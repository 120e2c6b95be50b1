//! /proc/self/pagemap: which pages of a range have been stored to, as the kernel has noted it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use linux_raw_sys::general::{PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region, pm_scan_arg};

use crate::sys::PAGE_BYTES;

/// The longest range that is scanned at once, in pages: what one page of page tables maps.
pub(crate) const SCAN_PAGES: usize = 512;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<pm_scan_arg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// Stored pages of a range form at most so many runs.
const RUNS_MAX: usize = SCAN_PAGES / 2;

/// The stored pages of one range, and the memory for asking; allocated beforehand.
pub(crate) struct StoredPages {
    runs: Box<[page_region; RUNS_MAX]>,
    bits: [u64; SCAN_PAGES / 64],
}

impl StoredPages {
    /// None.
    pub(crate) fn new() -> Self {
        let none = page_region { start: 0, end: 0, categories: 0 };
        StoredPages { runs: Box::new([none; RUNS_MAX]), bits: [0; SCAN_PAGES / 64] }
    }

    /// Whether the page of that number within the range was stored to. True for pages that are not mapped and were
    /// never protected: ask for mapped ones, or for such as were mapped protected.
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.bits[index / 64] >> (index % 64) & 1 == 1
    }

    /// Every page, for when the kernel cannot be asked.
    pub(crate) fn assume_all(&mut self) {
        self.bits = [u64::MAX; SCAN_PAGES / 64];
    }
}

/// The open pagemap of this process.
pub(crate) struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens it, and finds out whether the kernel can scan (Linux 6.7).
    pub(crate) fn open() -> io::Result<Self> {
        let pagemap = Pagemap { file: File::open("/proc/self/pagemap")? };
        pagemap.scan(0, 0, 0, &mut StoredPages::new())?;
        Ok(pagemap)
    }

    /// Finds the pages of a range that were stored to since they were last protected.
    pub(crate) fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.scan(address, len, 0, found)
    }

    /// The same, and protects those pages again in the same step: what is stored later is found next time. One TLB
    /// shootdown.
    pub(crate) fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.scan(address, len, PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, found)
    }

    fn scan(&self, address: usize, len: usize, flags: u32, found: &mut StoredPages) -> io::Result<()> {
        debug_assert!(len <= SCAN_PAGES * PAGE_BYTES);
        found.bits = [0; SCAN_PAGES / 64];
        let end = (address + len) as u64;
        let mut from = address as u64;
        loop {
            let mut request = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: u64::from(flags),
                start: from,
                end,
                walk_end: 0,
                vec: found.runs.as_mut_ptr() as u64,
                vec_len: RUNS_MAX as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: u64::from(PAGE_IS_WRITTEN),
                category_anyof_mask: 0,
                return_mask: u64::from(PAGE_IS_WRITTEN),
            };
            // SAFETY: `request` is the structure of this request; the kernel writes at most RUNS_MAX regions to `runs`.
            let runs = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut request) };
            if runs < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            for run in &found.runs[..runs as usize] {
                let pages = run.start.max(address as u64)..run.end.min(end);
                for page in (pages.start..pages.end).step_by(PAGE_BYTES) {
                    let index = (page as usize - address) / PAGE_BYTES;
                    found.bits[index / 64] |= 1 << (index % 64);
                }
            }
            if request.walk_end >= end || request.walk_end <= from {
                return Ok(());
            }
            from = request.walk_end;
        }
    }
}
