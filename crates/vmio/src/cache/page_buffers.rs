//! Buffers for reads of pages that are not visible yet.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// The longest read-ahead window in pages (128 KiB).
pub(crate) const WINDOW_PAGES_MAX: usize = 32;
const BUFFER_BYTES: usize = WINDOW_PAGES_MAX * PAGE_BYTES;
const BUFFERS: usize = 256;

/// A fixed set of buffers, taken without a lock. A core prefers the buffer that it used last, which is warm in its
/// cache.
pub(crate) struct PageBuffers {
    memory: Reservation,
    taken: Box<[AtomicBool]>,
    cores: usize,
}

impl PageBuffers {
    pub(crate) fn new(cores: usize) -> io::Result<Self> {
        let mut memory = Reservation::zeroed(BUFFERS * BUFFER_BYTES, PAGE_BYTES)?;
        // A fork during a read into a buffer must not leave the device's bytes with the child.
        memory.leave_out_on_fork()?;
        memory.small_pages_only()?;
        Ok(PageBuffers { memory, taken: (0..BUFFERS).map(|_| AtomicBool::new(false)).collect(), cores })
    }

    /// The addresses of the buffers that cores take first: two for each core, enough for one miss a core at a time and
    /// some more.
    pub(crate) fn preferred(&self) -> Range<usize> {
        let start = self.memory.base() as usize;
        start..start + BUFFERS.min(2 * self.cores) * BUFFER_BYTES
    }

    /// Takes a buffer. Yields the core while all buffers are taken.
    pub(crate) fn acquire(&self, core: usize) -> PageBuffer<'_> {
        loop {
            for step in 0..BUFFERS {
                let index = (core + step * self.cores) % BUFFERS;
                let index = if step * self.cores >= BUFFERS { step } else { index };
                if !self.taken[index].swap(true, Ordering::Acquire) {
                    return PageBuffer { owner: self, index };
                }
            }
            std::thread::yield_now();
        }
    }
}

/// A buffer of [`WINDOW_PAGES_MAX`] pages; dropping it gives it back.
pub(crate) struct PageBuffer<'a> {
    owner: &'a PageBuffers,
    index: usize,
}

impl PageBuffer<'_> {
    /// Its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the index is in bounds and taken by this value alone, so nobody else refers to these bytes.
        unsafe {
            let start = self.owner.memory.base().add(self.index * BUFFER_BYTES);
            std::slice::from_raw_parts_mut(start, BUFFER_BYTES)
        }
    }
}

impl Drop for PageBuffer<'_> {
    fn drop(&mut self) {
        self.owner.taken[self.index].store(false, Ordering::Release);
    }
}
