//! The free blocks of an aligned extent, a bit each.

use std::ops::Range;

use crate::format::geometry::EXTENT_BLOCKS;

pub(super) const WORD_BITS: u64 = u64::BITS as u64;
pub(super) const WORDS: usize = (EXTENT_BLOCKS / WORD_BITS) as usize;

/// The free blocks of an aligned extent: a bit that is set is a free block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits([u64; WORDS]);

/// The bits of a range, by words.
pub(super) fn masks(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = range.start / WORD_BITS..range.end.div_ceil(WORD_BITS);
    words.map(move |word| {
        let first = word * WORD_BITS;
        let (from, to) = (range.start.saturating_sub(first), (range.end - first).min(WORD_BITS));
        (word as usize, (u64::MAX << from) & (u64::MAX >> (WORD_BITS - to)))
    })
}

impl Bits {
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Makes blocks free.
    pub(super) fn set(&mut self, range: Range<u64>) {
        for (word, mask) in masks(range) {
            debug_assert_eq!(self.0[word] & mask, 0, "a block is free twice");
            self.0[word] |= mask;
        }
    }

    /// Takes free blocks.
    pub(super) fn clear(&mut self, range: Range<u64>) {
        for (word, mask) in masks(range) {
            debug_assert_eq!(self.0[word] & mask, mask, "a block is taken twice");
            self.0[word] &= !mask;
        }
    }

    /// Those that are in none of these words.
    pub(super) fn without(mut self, used: impl Iterator<Item = u64>) -> Bits {
        self.0.iter_mut().zip(used).for_each(|(word, used)| *word &= !used);
        self
    }

    /// The first block from this one on that is free, or that is not; the end if there is none.
    fn next(&self, from: u64, is_free: bool) -> u64 {
        let mut at = from;
        while at < EXTENT_BLOCKS {
            let word = self.0[(at / WORD_BITS) as usize];
            let rest = (if is_free { word } else { !word }) & (u64::MAX << (at % WORD_BITS));
            if rest != 0 {
                return at / WORD_BITS * WORD_BITS + u64::from(rest.trailing_zeros());
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        EXTENT_BLOCKS
    }

    /// The runs of free blocks.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true);
            at = self.next(start, false);
            (start < EXTENT_BLOCKS).then_some(start..at)
        })
    }

    /// The length of the longest run.
    pub(super) fn longest(&self) -> u64 {
        self.runs().map(|run| run.end - run.start).max().unwrap_or(0)
    }

    /// The shortest run that has this many blocks, else the longest.
    pub(super) fn best(&self, count: u64) -> Option<Range<u64>> {
        self.runs().min_by_key(|run| {
            let length = run.end - run.start;
            if length >= count { (0, length) } else { (1, EXTENT_BLOCKS - length) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_single_bits() {
        let mut bits = Bits::default();
        assert_eq!((bits.best(1), bits.longest()), (None, 0));
        let free = [0..3, 60..68, 127..128, 130..320, 511..512];
        free.iter().for_each(|run| bits.set(run.clone()));
        assert_eq!(bits.runs().collect::<Vec<_>>(), free);
        assert_eq!(bits.count(), free.iter().map(|run| run.end - run.start).sum::<u64>());
        assert_eq!(bits.longest(), 190);
        let best = [1, 2, 3, 4, 9, 300].map(|count| bits.best(count));
        assert_eq!(best, [127..128, 0..3, 0..3, 60..68, 130..320, 130..320].map(Some));
        bits.clear(64..68);
        bits.clear(130..320);
        assert_eq!(bits.runs().collect::<Vec<_>>(), [0..3, 60..64, 127..128, 511..512]);
        bits = Bits::default();
        bits.set(0..EXTENT_BLOCKS);
        assert_eq!(bits.longest(), EXTENT_BLOCKS);
    }
}
