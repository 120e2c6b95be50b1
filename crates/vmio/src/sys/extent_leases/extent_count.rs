//! How many extents the maps of this process have.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::fork::PerProcess;
use crate::sys::sparse_array::SparseArray;

/// The most extents of all maps, of Linux's default for the mappings of a process (65,530): a file that lies in more pieces is the kernel's. Half of it:
/// the count misses the end of an extent that has a new middle.
const EXTENTS_MAX: u64 = 32_000;
const BLOCKS_PER_WORD: usize = u64::BITS as usize;

/// A forked child has none of its parent's.
static OF_PROCESS: PerProcess<AtomicU64> = PerProcess::new();

/// The extents of a map. One thread at a time changes them.
pub(super) struct ExtentCount {
    /// A bit for each block of the map at which an extent begins.
    starts: SparseArray<AtomicU64>,
    /// No extent begins at this block, or behind it.
    end: AtomicUsize,
    of_process: &'static AtomicU64,
}

impl ExtentCount {
    /// A map of that many blocks, without extents. Allocates for the first map of a process.
    pub(super) fn none(blocks: usize) -> io::Result<ExtentCount> {
        let starts = SparseArray::new(blocks.div_ceil(BLOCKS_PER_WORD))?;
        Ok(ExtentCount { starts, end: AtomicUsize::new(0), of_process: OF_PROCESS.get()? })
    }

    /// An extent takes the place of what these blocks of the map have shown. False if the process has too many extents by now.
    pub(super) fn shows(&self, blocks: Range<usize>) -> bool {
        let replaced = self.forget(blocks.clone());
        self.starts
            .get(blocks.start / BLOCKS_PER_WORD)
            .fetch_or(1 << (blocks.start % BLOCKS_PER_WORD), Ordering::Relaxed);
        self.end.fetch_max(blocks.end, Ordering::Relaxed);
        let before = self.of_process.fetch_add(1, Ordering::Relaxed);
        self.of_process.fetch_sub(replaced, Ordering::Relaxed);
        (before + 1).saturating_sub(replaced) <= EXTENTS_MAX
    }

    /// The map has none from a block on any more.
    pub(super) fn ends_at(&self, block: usize) {
        let end = self.end.fetch_min(block, Ordering::Relaxed);
        let gone = if block < end { self.forget(block..end) } else { 0 };
        self.of_process.fetch_sub(gone, Ordering::Relaxed);
    }

    /// No extent begins at these blocks any more. Returns how many did.
    fn forget(&self, blocks: Range<usize>) -> u64 {
        let mut gone = 0;
        let mut next = blocks.start;
        while next < blocks.end {
            let (word, first) = (next / BLOCKS_PER_WORD, next % BLOCKS_PER_WORD);
            let bits = (blocks.end - next).min(BLOCKS_PER_WORD - first);
            let mask = (u64::MAX >> (BLOCKS_PER_WORD - bits)) << first;
            gone += u64::from((self.starts.get(word).fetch_and(!mask, Ordering::Relaxed) & mask).count_ones());
            next += bits;
        }
        gone
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of_process(count: &ExtentCount) -> u64 {
        count.of_process.load(Ordering::Relaxed)
    }

    #[test]
    fn a_child_counts_anew() {
        let blocks = EXTENTS_MAX as usize;
        let (most, one) = (ExtentCount::none(blocks).unwrap(), ExtentCount::none(1).unwrap());
        assert!((0..blocks).all(|block| most.shows(block..block + 1)) && !one.shows(0..1));
        // SAFETY: the child makes system calls, allocates a little, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_free = ExtentCount::none(1).is_ok_and(|own| own.shows(0..1));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_free)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        most.ends_at(0);
        assert!(one.shows(0..1));
        one.ends_at(0);
    }

    #[test]
    fn a_map_that_is_cut_and_grows_again_has_no_more_extents() {
        let count = ExtentCount::none(1024).unwrap();
        let before = of_process(&count);
        for _ in 0..3 {
            assert!(count.shows(0..512) && count.shows(512..600) && count.shows(600..601));
            assert_eq!(of_process(&count) - before, 3);
            // The first two blocks of the second one stay.
            count.ends_at(514);
            assert_eq!(of_process(&count) - before, 2);
        }
        // One in place of all of these.
        assert!(count.shows(0..1024));
        assert_eq!(of_process(&count) - before, 1);
        count.ends_at(0);
        count.ends_at(0);
        assert_eq!(of_process(&count), before);
    }
}
