//! The ranges of a mapping that the program has pinned.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sys::fork::Generation;

/// Ranges of pages, one for each pin.
pub(super) struct PinnedRanges {
    ranges: Mutex<Vec<Range<u64>>>,
    generation: Generation,
}

impl PinnedRanges {
    pub(super) fn none(generation: Generation) -> Self {
        PinnedRanges { ranges: Mutex::default(), generation }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a pin.
    pub(super) fn add(&self, pages: Range<u64>) {
        self.lock().push(pages);
    }

    /// How many pins hold a page.
    pub(super) fn holding(&self, page: u64) -> u32 {
        self.lock().iter().filter(|pinned| pinned.contains(&page)).count() as u32
    }

    /// Forgets one pin of these pages.
    pub(super) fn remove(&self, pages: &Range<u64>) {
        // In a forked child, another thread of the parent may have held the lock when it was copied.
        if !self.generation.is_current() {
            return;
        }
        let mut ranges = self.lock();
        // The latest pins usually go first.
        if let Some(at) = ranges.iter().rposition(|pinned| pinned == pages) {
            ranges.swap_remove(at);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Seconds after which a test takes its child to hang.
    const HANGS_AFTER_SECS: u32 = 10;

    #[test]
    fn pins_are_counted_by_page() {
        let pinned = PinnedRanges::none(Generation::of_this_process().unwrap());
        [0..4, 2..6, 2..6].into_iter().for_each(|pages| pinned.add(pages));
        pinned.remove(&(2..6));
        pinned.remove(&(2..5));
        assert_eq!([0, 2, 5, 6].map(|page| pinned.holding(page)), [1, 2, 1, 0]);
    }

    #[test]
    fn a_child_drops_a_pin_while_another_thread_of_its_parent_pins() {
        let pinned = PinnedRanges::none(Generation::of_this_process().unwrap());
        pinned.add(0..1);
        let held = pinned.lock();
        // SAFETY: the child makes system calls alone, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes no pointers; the signal ends the child.
            unsafe { libc::alarm(HANGS_AFTER_SECS) };
            pinned.remove(&(0..1));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "it hangs");
        drop(held);
        assert_eq!(pinned.lock().len(), 1);
        pinned.remove(&(0..1));
        assert!(pinned.lock().is_empty());
    }
}
