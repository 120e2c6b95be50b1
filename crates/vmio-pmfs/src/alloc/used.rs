//! The blocks in use, as a scan of all inodes finds them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Run;
use super::bits::{Bits, WORD_BITS, WORDS, masks};
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, Geometry};

/// The blocks in use. Threads add theirs at the same time.
pub(crate) struct Used {
    geometry: Geometry,
    /// A bit for each block of the medium.
    words: Vec<AtomicU64>,
}

impl Used {
    /// None.
    pub(crate) fn new(geometry: &Geometry) -> Used {
        let words = (0..geometry.blocks / WORD_BITS).map(|_| AtomicU64::new(0)).collect();
        Used { geometry: *geometry, words }
    }

    /// Adds blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if one of them has another owner, or is no file's.
    pub(crate) fn add(&self, run: Run) -> Result<()> {
        let damaged = |block: u64, damage| Error::Damaged {
            structure: "the extents of a file",
            at: block.saturating_mul(BLOCK_BYTES),
            damage,
        };
        let is_there = run.start < self.geometry.blocks;
        let pool = if is_there { self.geometry.pool(self.geometry.area_of(run.start)) } else { 0..0 };
        if !pool.contains(&run.start) {
            return Err(damaged(run.start, Damage::Field { field: "block", found: run.start }));
        }
        if run.end() > pool.end {
            return Err(damaged(run.start, Damage::Field { field: "last block", found: run.end() }));
        }
        for (word, mask) in masks(run.start..run.end()) {
            let twice = self.words[word].fetch_or(mask, Ordering::Relaxed) & mask;
            if twice != 0 {
                let block = word as u64 * WORD_BITS + u64::from(twice.trailing_zeros());
                return Err(damaged(run.start, Damage::TwoOwners { block }));
            }
        }
        Ok(())
    }

    /// Adds blocks that may have other owners, too, or be no file's.
    pub(crate) fn mark(&self, run: Run) {
        let end = run.start.saturating_add(run.count).min(self.geometry.blocks);
        for (word, mask) in masks(run.start.min(end)..end) {
            self.words[word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// The free blocks of an area: all of its pool but these, by aligned extent.
    pub(super) fn free_of(&self, area: u32) -> Vec<Bits> {
        let (blocks, pool) = (self.geometry.area(area), self.geometry.pool(area));
        let extents = (blocks.start..blocks.end).step_by(EXTENT_BLOCKS as usize);
        let free = |first: u64| {
            let mut bits = Bits::default();
            let (from, to) = (pool.start.max(first), pool.end.min(first + EXTENT_BLOCKS));
            if from < to {
                bits.set(from - first..to - first);
            }
            let words = &self.words[(first / WORD_BITS) as usize..][..WORDS];
            bits.without(words.iter().map(|word| word.load(Ordering::Relaxed)))
        };
        extents.map(free).collect()
    }
}
