//! Giving frames back: many scattered pages with one TLB shootdown.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::sys::PAGE_BYTES;

const IOV_MAX: usize = 1024;

/// Page-aligned address ranges to unmap, neighbours merged. Its capacity is fixed: pushing never allocates.
pub(crate) struct UnmapList {
    ranges: Vec<libc::iovec>,
}

// SAFETY: the iovecs are plain addresses that only `Unmapper::unmap`'s caller gives a meaning.
unsafe impl Send for UnmapList {}

impl UnmapList {
    /// Room for `capacity` separate ranges.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        UnmapList { ranges: Vec::with_capacity(capacity) }
    }

    /// Adds one page; must not be called more often than the capacity between clears.
    pub(crate) fn push_page(&mut self, address: usize) {
        if let Some(last) = self.ranges.last_mut()
            && last.iov_base as usize + last.iov_len == address
        {
            last.iov_len += PAGE_BYTES;
            return;
        }
        assert!(self.ranges.len() < self.ranges.capacity(), "an unmap list grew in the trap path");
        self.ranges.push(libc::iovec { iov_base: address as *mut _, iov_len: PAGE_BYTES });
    }

    /// Empties the list.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }
}

/// Unmaps lists of pages of this process.
pub(crate) struct Unmapper {
    this_process: Option<OwnedFd>,
    batched: AtomicBool,
}

impl Unmapper {
    /// Finds out whether the kernel unmaps scattered pages of the calling process in one call (Linux 6.13).
    pub(crate) fn probe() -> Self {
        let this_process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        let unmapper = Unmapper { batched: AtomicBool::new(this_process.is_some()), this_process };
        if unmapper.this_process.is_some() {
            let works = crate::sys::reservation::Reservation::zeroed(PAGE_BYTES, PAGE_BYTES).is_ok_and(|page| {
                let iovec = libc::iovec { iov_base: page.base().cast(), iov_len: PAGE_BYTES };
                unmapper.process_madvise(&[iovec], libc::MADV_DONTNEED) == Ok(PAGE_BYTES)
            });
            unmapper.batched.store(works, Ordering::Relaxed);
        }
        unmapper
    }

    /// Whether scattered pages go in one call.
    pub(crate) fn is_batched(&self) -> bool {
        self.batched.load(Ordering::Relaxed)
    }

    /// Drops the contents of every range in the list; returns how many TLB shootdowns that took.
    ///
    /// # Safety
    /// Nobody may need the contents of these pages any more, and they must be memory whose owner expects the next
    /// access to fault (a mapping registered with a userfaultfd).
    pub(crate) unsafe fn unmap(&self, list: &UnmapList, locked: bool) -> io::Result<u64> {
        let advice = if locked { libc::MADV_DONTNEED_LOCKED } else { libc::MADV_DONTNEED };
        let mut shootdowns = 0;
        let mut at = 0;
        while at < list.ranges.len() && self.is_batched() {
            let end = list.ranges.len().min(at + IOV_MAX);
            let chunk = &list.ranges[at..end];
            shootdowns += 1;
            match self.process_madvise(chunk, advice) {
                Ok(bytes) => at += whole_ranges(chunk, bytes),
                Err(libc::EINTR | libc::EAGAIN) => {}
                Err(_) => self.batched.store(false, Ordering::Relaxed),
            }
        }
        for range in &list.ranges[at..] {
            shootdowns += 1;
            // SAFETY: the caller vouches for the contents of the range.
            if unsafe { libc::madvise(range.iov_base, range.iov_len, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(shootdowns)
    }

    fn process_madvise(&self, ranges: &[libc::iovec], advice: libc::c_int) -> Result<usize, libc::c_int> {
        let Some(pidfd) = &self.this_process else { return Err(libc::EBADF) };
        // SAFETY: the iovecs are valid for reading; what the advice does to the ranges is vouched for by our callers.
        let done = unsafe {
            libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), ranges.as_ptr(), ranges.len(), advice, 0)
        };
        if done >= 0 {
            Ok(done as usize)
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
        }
    }
}

/// How many leading ranges `bytes` covers; a range advised in part is advised again, which is harmless.
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
