//! The generations of units as chunks of the log, and which entries of leaves point into one that has ended.
//!
//! The collector gives a chunk up once it has moved the chunk's live records. Older levels may still have entries that point into it. Newer
//! levels have newer entries of the same keys, so nothing needs the old ones. But no reader may follow them once the unit holds something
//! else. Two epochs tell, without a read:
//!
//! - the commit that ended the unit's previous generation. A leaf that is no newer was written before this generation began;
//! - the commit that ended this generation. Versions that are no older have a newer entry of each key. Older versions hold the reclamation
//!   epoch that protects the unit from reuse, and read its contents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sparse_words::SparseWords;

/// The generation goes on.
const NEVER: u64 = u64::MAX;

/// The generation goes on, but its live records have all been moved: newer levels have newer entries.
const EMPTIED: u64 = NEVER - 1;

/// For merges, in place of a version's epoch: entries that point into emptied chunks count as superseded, too.
pub(crate) const OF_MERGES: u64 = EMPTIED;

/// Of each unit of a volume, when its generation as a chunk of the log began and ended. The last generation of a unit that is no chunk has
/// ended; that of a unit that never was one ended before the first commit. The volume's segments share it, each for its own units.
#[derive(Clone)]
pub(crate) struct ChunkGenerations(Arc<SparseWords>);

struct Generation<'words> {
    /// The commit that ended the generation before.
    previous: &'words AtomicU64,
    /// The commit that ended this one.
    end: &'words AtomicU64,
}

impl ChunkGenerations {
    /// For a number of units, none of which is a chunk.
    pub(crate) fn new(units: u64) -> Self {
        ChunkGenerations(Arc::new(SparseWords::new(2 * units)))
    }

    fn of(&self, unit: u64) -> Option<Generation<'_>> {
        let first = unit.checked_mul(2)?;
        Some(Generation { previous: self.0.get(first)?, end: self.0.get(first + 1)? })
    }

    /// Notes whether a unit is a chunk when the segment is opened, and if so, which commit ended its previous generation.
    pub(crate) fn know(&self, unit: u64, previous_of_chunk: Option<u64>, opened: u64) {
        if let Some(generation) = self.of(unit) {
            generation.previous.store(previous_of_chunk.unwrap_or(opened), Ordering::Release);
            generation.end.store(previous_of_chunk.map_or(opened, |_| NEVER), Ordering::Release);
        }
    }

    /// Begins the unit's next generation; returns which commit ended the previous one.
    pub(crate) fn begin(&self, unit: u64) -> u64 {
        let Some(generation) = self.of(unit) else { return 0 };
        let previous = generation.end.load(Ordering::Acquire);
        debug_assert!(previous < EMPTIED, "unit {unit} is a chunk already");
        // In this order: a reader that sees that it goes on sees when it began.
        generation.previous.store(previous, Ordering::Release);
        generation.end.store(NEVER, Ordering::Release);
        previous
    }

    /// Notes that all live records of the chunk have been moved. Readers find them there as long as the generation goes on.
    pub(crate) fn empty(&self, unit: u64) {
        if let Some(generation) = self.of(unit) {
            let end = generation.end.swap(EMPTIED, Ordering::Release);
            debug_assert!(end >= EMPTIED, "unit {unit} was given up by commit {end}, and is no chunk");
        }
    }

    /// Notes that a commit has ended the chunk's generation. Versions of that epoch or later come after this.
    pub(crate) fn end(&self, unit: u64, epoch: u64) {
        if let Some(generation) = self.of(unit) {
            debug_assert!(epoch < EMPTIED, "commit {epoch} is none");
            let end = generation.end.swap(epoch, Ordering::Release);
            debug_assert!(end >= EMPTIED, "unit {unit} was given up by commit {end} already");
        }
    }

    /// Whether an entry that points into a unit, in a leaf of `leaf_epoch`, is superseded for a version of `version_epoch`. If not, its
    /// record stays readable as long as the version is held.
    pub(crate) fn is_superseded(&self, unit: u64, leaf_epoch: u64, version_epoch: u64) -> bool {
        let Some(generation) = self.of(unit) else { return false };
        // In this order: see `begin`.
        generation.end.load(Ordering::Acquire) <= version_epoch
            || leaf_epoch <= generation.previous.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_an_ended_generation_are_superseded_for_later_versions_alone() {
        let generations = ChunkGenerations::new(4);
        generations.know(2, Some(3), 9);
        assert!(generations.is_superseded(2, 3, 9), "the leaf is of the previous generation");
        assert!(!generations.is_superseded(2, 4, 9));
        generations.empty(2);
        assert!(!generations.is_superseded(2, 4, 19), "readers find it");
        assert!(generations.is_superseded(2, 4, OF_MERGES), "merges drop it");
        generations.end(2, 20);
        assert!(!generations.is_superseded(2, 4, 19), "that version holds it");
        assert!(generations.is_superseded(2, 4, 20));
        assert!(generations.is_superseded(2, 3, 19));
        assert_eq!(generations.begin(2), 20);
        assert!(generations.is_superseded(2, 20, 25));
        assert!(!generations.is_superseded(2, 21, 25));
    }

    #[test]
    fn entries_that_point_to_a_unit_that_is_no_chunk_are_superseded() {
        let generations = ChunkGenerations::new(4);
        generations.know(1, None, 9);
        assert!(generations.is_superseded(1, 9, 9));
        assert_eq!(generations.begin(1), 9);
        assert!(generations.is_superseded(1, 9, 30));
        assert!(!generations.is_superseded(1, 11, 30));
    }
}
