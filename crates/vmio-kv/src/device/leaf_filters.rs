//! Bloom filters of leaves in which look-ups found nothing: the next look-up of an absent key need not read the leaf. A leaf has at most
//! one filter, in memory only. A store that is opened again learns them again.

use std::sync::OnceLock;

use crossbeam_utils::atomic::AtomicCell;

use crate::format::geometry::BLOCK_BYTES;

/// Words of a filter: 8.8 bits a key for a full leaf. It lets 1.5 % of absent keys pass.
const WORDS: usize = 23;
/// Bits that a key sets.
const PROBES: u64 = 6;

/// Which keys a leaf does not have.
#[derive(Clone, Copy)]
pub(crate) struct LeafFilter {
    bits: [u64; WORDS],
}

impl LeafFilter {
    /// The filter of a leaf whose keys have these hashes.
    pub(crate) fn new(hashes: impl Iterator<Item = u32>) -> Self {
        let mut bits = [0; WORDS];
        hashes.flat_map(places).for_each(|(word, bit)| bits[word] |= bit);
        LeafFilter { bits }
    }

    fn may_have(&self, hash: u32) -> bool {
        places(hash).all(|(word, bit)| self.bits[word] & bit != 0)
    }
}

/// The bits of a key: its word and the bit there.
fn places(hash: u32) -> impl Iterator<Item = (usize, u64)> {
    let mixed = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (first, step) = (mixed >> 32, mixed & 0xffff_ffff | 1);
    (0..PROBES).map(move |probe| {
        let place = (((first + probe * step) & 0xffff_ffff) * (64 * WORDS as u64)) >> 32;
        (place as usize / 64, 1 << (place % 64))
    })
}

/// A filter and its leaf: 192 bytes.
#[derive(Clone, Copy)]
struct Learnt {
    /// Where the leaf is, in bytes; no leaf is at 0.
    leaf: u64,
    filter: LeafFilter,
}

/// As many filters as there is memory for. A leaf's filter has one possible place, which it shares with other leaves.
pub(crate) struct LeafFilters {
    places: usize,
    /// Allocated when the first filter is learnt.
    learnt: OnceLock<Box<[AtomicCell<Learnt>]>>,
}

impl LeafFilters {
    /// As many filters as fit into `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Self {
        LeafFilters { places: bytes as usize / size_of::<AtomicCell<Learnt>>(), learnt: OnceLock::new() }
    }

    /// Whether there is memory for any.
    pub(crate) fn are_kept(&self) -> bool {
        self.places > 0
    }

    fn place(&self, leaf: u64) -> usize {
        let mixed = (leaf / BLOCK_BYTES as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * self.places as u128) >> 64) as usize
    }

    /// Whether a published leaf is known not to have a key of that hash.
    pub(crate) fn exclude(&self, leaf: u64, hash: u32) -> bool {
        let Some(learnt) = self.learnt.get() else { return false };
        let there = learnt[self.place(leaf)].load();
        there.leaf == leaf && !there.filter.may_have(hash)
    }

    /// Keeps a leaf's filter. The caller holds the version that refers to the leaf.
    pub(crate) fn learn(&self, leaf: u64, filter: LeafFilter) {
        if !self.are_kept() {
            return;
        }
        let none = Learnt { leaf: 0, filter: LeafFilter::new(std::iter::empty()) };
        let learnt = self.learnt.get_or_init(|| (0..self.places).map(|_| AtomicCell::new(none)).collect());
        learnt[self.place(leaf)].store(Learnt { leaf, filter });
    }

    /// Forgets the filter of a block that gets other contents. Until these are published, nothing reads the block or learns a filter of it.
    pub(super) fn forget(&self, block: u64) {
        let Some(learnt) = self.learnt.get() else { return };
        let place = &learnt[self.place(block)];
        let there = place.load();
        if there.leaf == block {
            place.store(Learnt { leaf: 0, ..there });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = 7 * BLOCK_BYTES as u64;

    fn hash(number: u32) -> u32 {
        crc32c::crc32c(&number.to_le_bytes())
    }

    #[test]
    fn a_filter_excludes_most_absent_keys_and_no_present_one() {
        let filters = LeafFilters::new(1 << 20);
        assert!(!filters.exclude(LEAF, hash(0)), "nothing is known yet");
        filters.learn(LEAF, LeafFilter::new((0..168).map(hash)));
        assert!((0..168).all(|number| !filters.exclude(LEAF, hash(number))));
        let excluded = (168..100_168).filter(|number| filters.exclude(LEAF, hash(*number))).count();
        assert!((97_500..99_500).contains(&excluded), "{excluded} of 100000");
        assert!(!filters.exclude(LEAF + BLOCK_BYTES as u64, hash(1000)), "of another leaf nothing is known");
    }

    #[test]
    fn a_block_with_new_contents_loses_its_filter() {
        let filters = LeafFilters::new(192);
        filters.learn(LEAF, LeafFilter::new(std::iter::empty()));
        assert!(filters.exclude(LEAF, 1));
        // There is one place.
        filters.forget(2 * LEAF);
        assert!(filters.exclude(LEAF, 1));
        filters.forget(LEAF);
        assert!(!filters.exclude(LEAF, 1));
        filters.learn(LEAF, LeafFilter::new(std::iter::empty()));
        filters.learn(2 * LEAF, LeafFilter::new(std::iter::empty()));
        assert!(!filters.exclude(LEAF, 1) && filters.exclude(2 * LEAF, 1));
    }

    #[test]
    fn without_memory_nothing_is_learnt() {
        let filters = LeafFilters::new(100);
        filters.learn(LEAF, LeafFilter::new(std::iter::empty()));
        filters.forget(LEAF);
        assert!(!filters.are_kept() && !filters.exclude(LEAF, 1));
    }
}
