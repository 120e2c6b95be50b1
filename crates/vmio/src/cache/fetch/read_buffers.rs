//! The buffers that a thread reads fetched pages into: as many pages as may be under way at a time.

use std::io;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// Pages of memory, in runs.
pub(super) struct ReadBuffers {
    memory: Reservation,
    taken: Vec<bool>,
    free: u32,
}

/// Neighbouring pages of the buffers, for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) pages: u32,
}

impl ReadBuffers {
    pub(super) fn new(pages: u32) -> io::Result<Self> {
        let mut memory = Reservation::zeroed(pages as usize * PAGE_BYTES, PAGE_BYTES)?;
        // A fork during a read into a buffer must not leave the device's bytes with the child.
        memory.leave_out_on_fork()?;
        memory.small_pages_only()?;
        Ok(ReadBuffers { memory, taken: vec![false; pages as usize], free: pages })
    }

    /// The longest of the first free runs of up to this many pages; `None` if all are taken.
    pub(super) fn find(&self, most: u32) -> Option<Run> {
        let mut longest: Option<Run> = None;
        let mut at = 0;
        while self.free > 0 && longest.is_none_or(|run| run.pages < most) {
            let Some(first) = (at..self.taken.len()).find(|page| !self.taken[*page]) else { break };
            let end = (first + most as usize).min(self.taken.len());
            let end = (first..end).find(|page| self.taken[*page]).unwrap_or(end);
            let run = Run { first: first as u32, pages: (end - first) as u32 };
            if longest.is_none_or(|longest| longest.pages < run.pages) {
                longest = Some(run);
            }
            at = end;
        }
        longest
    }

    /// Takes a free run.
    pub(super) fn take(&mut self, run: Run) {
        self.mark(run, true);
        self.free -= run.pages;
    }

    /// Gives a run back.
    pub(super) fn release(&mut self, run: Run) {
        self.mark(run, false);
        self.free += run.pages;
    }

    /// The number of pages.
    pub(super) fn pages(&self) -> u32 {
        self.taken.len() as u32
    }

    /// The number of taken pages.
    pub(super) fn taken(&self) -> u32 {
        self.pages() - self.free
    }

    /// Whether no page is taken.
    pub(super) fn are_free(&self) -> bool {
        self.free as usize == self.taken.len()
    }

    fn mark(&mut self, run: Run, taken: bool) {
        for page in &mut self.taken[run.first as usize..][..run.pages as usize] {
            assert!(*page != taken, "a buffer was taken twice, or not at all");
            *page = taken;
        }
    }

    /// The bytes of all buffers.
    pub(super) fn all(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.memory.base(), self.taken.len() * PAGE_BYTES)
    }

    /// The bytes of a run. Only a caller that has taken the run may dereference the pointer.
    pub(super) fn bytes(&self, run: Run) -> *mut [u8] {
        let start = self.memory.base().wrapping_add(run.first as usize * PAGE_BYTES);
        std::ptr::slice_from_raw_parts_mut(start, run.pages as usize * PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let mut buffers = ReadBuffers::new(10).unwrap();
        let run = |first, pages| Run { first, pages };
        assert_eq!(buffers.find(4), Some(run(0, 4)));
        buffers.take(run(2, 3));
        assert_eq!(buffers.find(2), Some(run(0, 2)));
        assert_eq!(buffers.find(3), Some(run(5, 3)));
        assert_eq!(buffers.find(32), Some(run(5, 5)));
        buffers.take(run(5, 5));
        buffers.take(run(0, 2));
        assert_eq!(buffers.find(1), None);
        assert!(!buffers.are_free());
        buffers.release(run(5, 5));
        assert_eq!(buffers.find(32), Some(run(5, 5)));
        buffers.release(run(0, 2));
        buffers.release(run(2, 3));
        assert!(buffers.are_free());
    }
}
