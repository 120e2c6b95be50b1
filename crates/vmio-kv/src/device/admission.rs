//! Decides which pages of the log are worth a place in the cache.
//!
//! In a log much larger than the cache, look-ups want most pages once, or not again for long. To map such a page and to evict it costs more
//! than to copy it. So the first read of a page bypasses the cache. A second read brings the page in, if it comes within as many misses as
//! a quarter of the cache has pages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// The window of misses is the cache's pages divided by this. There is a slot for each page of the cache, so few pages of the window share a
/// slot.
const WINDOW_SHARE: u64 = 4;
/// A slot has a page's number in the upper bits and the number of the miss in the lower ones.
const MISS_BITS: u32 = 28;
const MISS_MASK: u64 = (1 << MISS_BITS) - 1;
/// Misses between two checks of whether the cache has space.
const LOOKS_APART: u64 = 64;

/// The pages that were missed lately.
pub(super) struct Admission {
    slots: Box<[AtomicU64]>,
    /// Counted by all threads: on a line of its own, so that the other fields stay in the threads' own caches.
    misses: CachePadded<AtomicU64>,
    has_space: AtomicBool,
}

impl Admission {
    /// For a cache of `cache_pages` pages.
    pub(super) fn new(cache_pages: u64) -> Self {
        let slots = (0..cache_pages.clamp(WINDOW_SHARE, 1 << (MISS_BITS - 1))).map(|_| AtomicU64::new(0)).collect();
        Admission { slots, misses: CachePadded::new(AtomicU64::new(0)), has_space: AtomicBool::new(true) }
    }

    /// Whether a missed page is to come into the cache: the cache has space, or the page was missed lately.
    pub(super) fn admits(&self, page: u64, cache_has_space: impl Fn() -> bool) -> bool {
        let miss = self.misses.fetch_add(1, Ordering::Relaxed);
        if miss.is_multiple_of(LOOKS_APART) {
            self.has_space.store(cache_has_space(), Ordering::Relaxed);
        }
        let before = self.slot(page).swap(Self::entry(page, miss), Ordering::Relaxed);
        let ago = miss.wrapping_sub(before) & MISS_MASK;
        let is_back = before >> MISS_BITS == Self::name(page) && ago <= self.slots.len() as u64 / WINDOW_SHARE;
        is_back || self.has_space.load(Ordering::Relaxed)
    }

    /// Notes that a page is on its way into the cache, so that the next reader waits for it there.
    pub(super) fn expect(&self, page: u64) {
        self.slot(page).store(Self::entry(page, self.misses.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Never 0, which stands for an empty slot.
    fn name(page: u64) -> u64 {
        (page + 1) & (u64::MAX >> MISS_BITS)
    }

    fn entry(page: u64, miss: u64) -> u64 {
        Self::name(page) << MISS_BITS | miss & MISS_MASK
    }

    fn slot(&self, page: u64) -> &AtomicU64 {
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.slots[((u128::from(hash) * self.slots.len() as u128) >> 64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_in_when_it_is_missed_again_within_the_window() {
        let admission = Admission::new(4096);
        let misses = |page| admission.admits(page, || false);
        assert!(!misses(7));
        assert!(misses(7));
        assert!(!misses(8));
        (100..1000).for_each(|page| assert!(!misses(page)));
        assert!(misses(8), "900 misses are less than a quarter of 4096");
        assert!(!misses(9));
        (1000..2100).for_each(|page| assert!(!misses(page)));
        assert!(!misses(9), "1100 are more");
        admission.expect(10);
        assert!(misses(10));
    }

    #[test]
    fn a_cache_that_has_space_admits_every_page() {
        let admission = Admission::new(4096);
        (0..1000).for_each(|page| assert!(admission.admits(page, || true)));
        let refused = (1000..1200).filter(|page| !admission.admits(*page, || false)).count();
        assert!(refused >= 200 - LOOKS_APART as usize, "{refused}");
    }
}
