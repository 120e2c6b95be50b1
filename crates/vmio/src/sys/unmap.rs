//! Giving frames back: many scattered pages with one TLB shootdown.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::sys::PAGE_BYTES;
use crate::sys::kernel::{KernelFeature, KernelFeatures};

const IOV_MAX: usize = 1024;

/// Page-aligned address ranges to unmap, with neighbours merged. The capacity is fixed: pushing never allocates.
pub(crate) struct UnmapList {
    ranges: Vec<libc::iovec>,
    /// Pages that the kernel refused to unmap.
    failed: Vec<usize>,
    /// The range and the first page in it that were not tried, once there was no space to note another failure.
    untried: Option<(usize, usize)>,
}

// SAFETY: the iovecs are plain addresses that only `Unmapper::unmap`'s caller gives a meaning.
unsafe impl Send for UnmapList {}

impl UnmapList {
    /// Makes a list for `capacity` pages.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        UnmapList { ranges: Vec::with_capacity(capacity), failed: Vec::with_capacity(capacity), untried: None }
    }

    /// Adds a page. Between two clears, callers may add as many as the capacity.
    pub(crate) fn push_page(&mut self, address: usize) {
        self.push(address, PAGE_BYTES);
    }

    /// Adds whole pages; counts as one [`Self::push_page`].
    pub(crate) fn push(&mut self, address: usize, len: usize) {
        if let Some(last) = self.ranges.last_mut()
            && last.iov_base as usize + last.iov_len == address
        {
            last.iov_len += len;
            return;
        }
        assert!(self.ranges.len() < self.ranges.capacity(), "an unmap list grew in the trap path");
        self.ranges.push(libc::iovec { iov_base: address as *mut _, iov_len: len });
    }

    /// Empties the list.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.failed.clear();
        self.untried = None;
    }

    /// Whether the last unmap left this page in place.
    pub(crate) fn has_failed(&self, address: usize) -> bool {
        if self.failed.is_empty() {
            return false;
        }
        let is_in =
            |range: &libc::iovec| (range.iov_base as usize..range.iov_base as usize + range.iov_len).contains(&address);
        self.failed.contains(&address)
            || self.untried.is_some_and(|(range, first)| {
                is_in(&self.ranges[range]) && address >= first || self.ranges[range + 1..].iter().any(is_in)
            })
    }

    /// Calls `drop` for the ranges from the given one on. If a call fails, calls it for each page of the range, since
    /// single pages go or stay as a whole. Returns the number of ranges tried. A range may have more pages than the
    /// list can note failures: once it has no space for another, the rest stays.
    pub(crate) fn drop_ranges(&mut self, from: usize, drop: impl Fn(usize, usize) -> bool) -> u64 {
        for index in from..self.ranges.len() {
            let (start, len) = (self.ranges[index].iov_base as usize, self.ranges[index].iov_len);
            if drop(start, len) {
                continue;
            }
            for address in (start..start + len).step_by(PAGE_BYTES) {
                if self.failed.len() == self.failed.capacity() {
                    self.untried = Some((index, address));
                    return (index + 1 - from) as u64;
                }
                if !drop(address, PAGE_BYTES) {
                    self.failed.push(address);
                }
            }
        }
        (self.ranges.len() - from.min(self.ranges.len())) as u64
    }
}

/// Unmaps lists of pages of this process.
pub(crate) struct Unmapper {
    this_process: Option<OwnedFd>,
    batched: AtomicBool,
    advice: libc::c_int,
}

impl Unmapper {
    /// Finds out whether one call unmaps scattered pages of the calling process (Linux 6.13), and whether the kernel
    /// unmaps pages that vmio or the program has locked (Linux 5.18). It uses each only if `features` allows.
    pub(crate) fn probe(features: KernelFeatures) -> Self {
        let this_process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        let mut unmapper =
            Unmapper { this_process, batched: AtomicBool::new(false), advice: libc::MADV_DONTNEED_LOCKED };
        let Ok(page) = crate::sys::reservation::Reservation::zeroed(PAGE_BYTES, PAGE_BYTES) else { return unmapper };
        if !features.allow(KernelFeature::UnmapLocked) || unmapper.madvise(page.base() as usize, PAGE_BYTES).is_err() {
            unmapper.advice = libc::MADV_DONTNEED;
        }
        if features.allow(KernelFeature::BatchedUnmap) {
            let iovec = libc::iovec { iov_base: page.base().cast(), iov_len: PAGE_BYTES };
            unmapper.batched = AtomicBool::new(unmapper.process_madvise(&[iovec]) == Ok(PAGE_BYTES));
        }
        unmapper
    }

    /// The descriptor by which it names the process, if it has one.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.this_process.as_ref().map(AsFd::as_fd)
    }

    /// Whether one call unmaps scattered pages.
    pub(crate) fn is_batched(&self) -> bool {
        self.batched.load(Ordering::Relaxed)
    }

    /// Whether it unmaps pages that are locked in memory.
    pub(crate) fn drops_locked(&self) -> bool {
        self.advice == libc::MADV_DONTNEED_LOCKED
    }

    /// Drops the contents of every page in the list, but for those that the list notes as failed. Returns the number of
    /// TLB shootdowns.
    ///
    /// # Safety
    /// Nobody may need the contents of these pages any more. Their owner must expect the next access to fault (a
    /// mapping registered with a userfaultfd).
    pub(crate) unsafe fn unmap(&self, list: &mut UnmapList) -> u64 {
        let mut shootdowns = 0;
        let mut at = 0;
        while at < list.ranges.len() && self.is_batched() {
            let end = list.ranges.len().min(at + IOV_MAX);
            let chunk = &list.ranges[at..end];
            shootdowns += 1;
            match self.process_madvise(chunk) {
                Ok(bytes) => at += whole_ranges(chunk, bytes),
                Err(libc::EINTR | libc::EAGAIN) => {}
                Err(libc::ENOSYS | libc::EPERM) => self.batched.store(false, Ordering::Relaxed),
                Err(_) => break,
            }
        }
        shootdowns + list.drop_ranges(at, |address, len| self.madvise(address, len).is_ok())
    }

    /// Takes a range out of this address space, with its page tables where it covers all that they map. A file mapped
    /// there keeps the contents. One TLB shootdown.
    ///
    /// # Safety
    /// The owner of the range must expect the next access to fault. If the range is private, nobody may need its
    /// contents.
    pub(crate) unsafe fn zap(&self, address: usize, len: usize) -> io::Result<()> {
        self.madvise(address, len)
    }

    fn madvise(&self, address: usize, len: usize) -> io::Result<()> {
        // SAFETY: our callers vouch for the effect of the advice on the range.
        let done = unsafe { libc::madvise(address as *mut _, len, self.advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn process_madvise(&self, ranges: &[libc::iovec]) -> Result<usize, libc::c_int> {
        let Some(pidfd) = &self.this_process else { return Err(libc::ENOSYS) };
        // SAFETY: the iovecs are valid for reading; our callers vouch for the effect of the advice on the ranges.
        let done = unsafe {
            libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), ranges.as_ptr(), ranges.len(), self.advice, 0)
        };
        if done >= 0 {
            Ok(done as usize)
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
        }
    }
}

/// The number of leading ranges that `bytes` covers. To advise a range again that was advised in part does no harm.
fn whole_ranges(ranges: &[libc::iovec], bytes: usize) -> usize {
    let mut left = bytes;
    ranges
        .iter()
        .take_while(|range| {
            let covered = range.iov_len <= left;
            left = left.saturating_sub(range.iov_len);
            covered
        })
        .count()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// If a page stays and is taken for gone, its old contents are seen for ever. If it is gone and taken for kept, its
    /// contents are lost.
    #[test]
    fn of_each_page_is_known_whether_it_has_gone() {
        let page = |number: usize| (1000 + number) * PAGE_BYTES;
        // More pages than the list can note failures, in two ranges.
        let pages: Vec<usize> = (0..40).chain(50..90).collect();
        let kinds: [fn(usize) -> bool; 3] = [|_| true, |number| !number.is_multiple_of(3), |number| number > 60];
        for stays in kinds {
            let mut list = UnmapList::with_capacity(8);
            pages.iter().for_each(|number| list.push_page(page(*number)));
            let gone = RefCell::new(Vec::new());
            list.drop_ranges(0, |start, len| {
                let mut numbers = (start..start + len).step_by(PAGE_BYTES).map(|address| address / PAGE_BYTES - 1000);
                let goes = !numbers.clone().any(stays);
                if goes {
                    gone.borrow_mut().extend(&mut numbers);
                }
                goes
            });
            for number in &pages {
                assert_eq!(list.has_failed(page(*number)), !gone.borrow().contains(number), "page {number}");
            }
            list.clear();
            assert!(!list.has_failed(page(0)) && !list.has_failed(page(89)));
        }
    }
}
