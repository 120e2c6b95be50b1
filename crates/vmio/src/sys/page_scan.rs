//! The pages of an address range that are in the page table of this process.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general::{PAGE_IS_PRESENT, page_region};

use crate::sys::PAGE_BYTES;
use crate::sys::pagemap::Pagemap;

/// The most runs of pages that one call reports.
const RUNS: usize = 512;
/// Bit 63 of a pagemap entry.
const PRESENT: u64 = 1 << 63;

/// The pagemap of this process. In a forked child it is still that of the parent.
pub(crate) struct PageScan {
    pagemap: Pagemap,
    has_ioctl: AtomicBool,
}

impl PageScan {
    /// Opens the pagemap.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(PageScan { pagemap: Pagemap::open()?, has_ioctl: AtomicBool::new(true) })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pagemap.descriptor()
    }

    /// Calls `each` with the runs of neighbouring present pages, in ascending order. Empty ranges of any length cost
    /// little. Before Linux 6.7 it looks at each page.
    pub(crate) fn present(&self, addresses: Range<usize>, mut each: impl FnMut(Range<usize>)) -> io::Result<()> {
        let mut at = addresses.start;
        while at < addresses.end && self.has_ioctl.load(Ordering::Relaxed) {
            match self.scan(at..addresses.end, &mut each) {
                Ok(reached) => at = reached.max(at + PAGE_BYTES),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS)) => {
                    self.has_ioctl.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        self.read(at..addresses.end, each)
    }

    /// The number of present pages in a range.
    pub(crate) fn count(&self, addresses: Range<usize>) -> io::Result<u64> {
        let mut bytes = 0;
        self.present(addresses, |run| bytes += run.len())?;
        Ok((bytes / PAGE_BYTES) as u64)
    }

    /// Makes one system call, and returns the address that it reached.
    fn scan(&self, addresses: Range<usize>, each: &mut impl FnMut(Range<usize>)) -> io::Result<usize> {
        let mut runs = [page_region { start: 0, end: 0, categories: 0 }; RUNS];
        let (found, reached) = self.pagemap.scan(addresses, PAGE_IS_PRESENT, 0, &mut runs)?;
        runs[..found].iter().for_each(|run| each(run.start as usize..run.end as usize));
        Ok(reached)
    }

    /// Like [`Self::present`], from the pagemap entries: eight bytes for each page.
    fn read(&self, addresses: Range<usize>, mut each: impl FnMut(Range<usize>)) -> io::Result<()> {
        let mut entries = [0_u8; 8 * RUNS];
        let mut run = addresses.start..addresses.start;
        let mut at = addresses.start;
        while at < addresses.end {
            let pages = ((addresses.end - at) / PAGE_BYTES).min(RUNS);
            self.pagemap.read_entries(at, &mut entries[..8 * pages])?;
            for entry in entries[..8 * pages].chunks_exact(8) {
                let entry = entry.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
                if entry & PRESENT == 0 {
                    if !run.is_empty() {
                        each(run);
                    }
                    run = at + PAGE_BYTES..at + PAGE_BYTES;
                } else {
                    run.end = at + PAGE_BYTES;
                }
                at += PAGE_BYTES;
            }
        }
        if !run.is_empty() {
            each(run);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::reservation::Reservation;

    #[test]
    fn finds_the_pages_that_were_touched() {
        let memory = Reservation::zeroed(3000 * PAGE_BYTES, PAGE_BYTES).unwrap();
        memory.small_pages_only().unwrap();
        let base = memory.base() as usize;
        let touched = [0, 1, 2, 7, 600, 601, 2999];
        for page in touched {
            // SAFETY: the page lies in the reservation, which nobody else uses.
            unsafe { memory.base().add(page * PAGE_BYTES).write(1) };
        }
        let scan = PageScan::open().unwrap();
        let addresses = base..base + memory.len();
        for has_ioctl in [true, false] {
            scan.has_ioctl.store(has_ioctl, Ordering::Relaxed);
            let mut pages = Vec::new();
            let mut note = |run: Range<usize>| pages.extend(run.step_by(PAGE_BYTES).map(|at| (at - base) / PAGE_BYTES));
            scan.present(addresses.clone(), &mut note).unwrap();
            assert_eq!(pages, touched, "by ioctl: {has_ioctl}");
            assert_eq!(scan.count(addresses.clone()).unwrap(), touched.len() as u64);
        }
    }
}
