//! A count that every core changes and few threads read.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_utils::CachePadded;

/// A number, in parts by core.
pub(crate) struct SpreadCount {
    parts: Box<[CachePadded<AtomicI64>]>,
}

impl SpreadCount {
    /// Zero, for this many cores.
    pub(crate) fn new(cores: usize) -> Self {
        SpreadCount { parts: (0..cores.max(1)).map(|_| CachePadded::default()).collect() }
    }

    /// Adds to the count, or subtracts; `core` is a hint.
    #[inline]
    pub(crate) fn add(&self, core: usize, change: i64) {
        self.parts[core % self.parts.len()].fetch_add(change, Ordering::Relaxed);
    }

    /// The sum of the parts. While cores change it, the sum is approximate.
    pub(crate) fn sum(&self) -> u32 {
        let sum: i64 = self.parts.iter().map(|part| part.load(Ordering::Relaxed)).sum();
        sum.clamp(0, i64::from(u32::MAX)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_core_adds_another_may_take_away() {
        let count = SpreadCount::new(2);
        count.add(0, 5);
        count.add(3, -2);
        assert_eq!(count.sum(), 3);
        count.add(1, -4);
        assert_eq!(count.sum(), 0, "below zero for a moment");
    }
}
