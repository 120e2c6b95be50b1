//! The lives of units as chunks of the log, and which entries of leaves point into one that is over.
//!
//! When a chunk is given up, its live records having been moved, older levels may still have entries that point into it. Newer
//! levels have the keys' newer entries, so nobody needs these; but what they point to must not be read once the unit holds
//! something else. They are recognised by two epochs, without reading anything:
//!
//! - the commit that ended the unit's former life. A leaf that is no newer was written before this life began;
//! - the commit that ended this life. Versions that are no older have a newer entry of each key. Older versions hold the reclamation epoch that
//!   keeps the unit from a new life, and read what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sparse_words::SparseWords;

/// The life goes on.
const NEVER: u64 = u64::MAX;

/// The life goes on, but all that was live there has been moved: newer levels have newer entries.
const EMPTIED: u64 = NEVER - 1;

/// For merges, in place of a version's epoch: entries that point into units that are emptied count as superseded, too.
pub(crate) const OF_MERGES: u64 = EMPTIED;

/// Of each unit of a volume, when its life as a chunk of the log began and ended. Of a unit that is no chunk the last one is over; of one
/// that never was, it was over before the first commit. Its segments share it, each for its own units.
#[derive(Clone)]
pub(crate) struct UnitLives(Arc<SparseWords>);

struct Life<'words> {
    /// The commit that ended the life before.
    former: &'words AtomicU64,
    /// The commit that has ended it.
    end: &'words AtomicU64,
}

impl UnitLives {
    /// Of units none of which is a chunk.
    pub(crate) fn new(units: u64) -> Self {
        UnitLives(Arc::new(SparseWords::new(2 * units)))
    }

    fn life(&self, unit: u64) -> Option<Life<'_>> {
        let first = unit.checked_mul(2)?;
        Some(Life { former: self.0.get(first)?, end: self.0.get(first + 1)? })
    }

    /// Says what a unit is when the segment is opened: a chunk, whose former life ended with that commit, or none.
    pub(crate) fn know(&self, unit: u64, former_of_chunk: Option<u64>, opened: u64) {
        if let Some(life) = self.life(unit) {
            life.former.store(former_of_chunk.unwrap_or(opened), Ordering::Release);
            life.end.store(former_of_chunk.map_or(opened, |_| NEVER), Ordering::Release);
        }
    }

    /// Begins another life of a unit; tells which commit ended the former one.
    pub(crate) fn begin(&self, unit: u64) -> u64 {
        let Some(life) = self.life(unit) else { return 0 };
        let former = life.end.load(Ordering::Acquire);
        debug_assert!(former < EMPTIED, "unit {unit} is a chunk already");
        // In this order: who sees that it goes on sees when it began.
        life.former.store(former, Ordering::Release);
        life.end.store(NEVER, Ordering::Release);
        former
    }

    /// All that was live in it has been moved. Readers find it there as long as its life goes on.
    pub(crate) fn empty(&self, unit: u64) {
        if let Some(life) = self.life(unit) {
            life.end.store(EMPTIED, Ordering::Release);
        }
    }

    /// A commit has ended a unit's life. Versions of that epoch or later come after this.
    pub(crate) fn end(&self, unit: u64, epoch: u64) {
        if let Some(life) = self.life(unit) {
            life.end.store(epoch, Ordering::Release);
        }
    }

    /// Whether an entry is superseded that points into a unit, stands in a leaf of `leaf_epoch`, and is looked at in a version of
    /// `version_epoch`. If it is not, what it points to can be read as long as the version is held.
    pub(crate) fn is_superseded(&self, unit: u64, leaf_epoch: u64, version_epoch: u64) -> bool {
        let Some(life) = self.life(unit) else { return false };
        // In this order: see `begin`.
        life.end.load(Ordering::Acquire) <= version_epoch || leaf_epoch <= life.former.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_life_that_is_over_are_superseded_for_later_versions_alone() {
        let lives = UnitLives::new(4);
        lives.know(2, Some(3), 9);
        assert!(lives.is_superseded(2, 3, 9), "the leaf is of the former life");
        assert!(!lives.is_superseded(2, 4, 9));
        lives.empty(2);
        assert!(!lives.is_superseded(2, 4, 19), "readers find it");
        assert!(lives.is_superseded(2, 4, OF_MERGES), "merges drop it");
        lives.end(2, 20);
        assert!(!lives.is_superseded(2, 4, 19), "that version holds it");
        assert!(lives.is_superseded(2, 4, 20));
        assert!(lives.is_superseded(2, 3, 19));
        assert_eq!(lives.begin(2), 20);
        assert!(lives.is_superseded(2, 20, 25));
        assert!(!lives.is_superseded(2, 21, 25));
    }

    #[test]
    fn what_points_to_a_unit_that_is_no_chunk_is_superseded() {
        let lives = UnitLives::new(4);
        lives.know(1, None, 9);
        assert!(lives.is_superseded(1, 9, 9));
        assert_eq!(lives.begin(1), 9);
        assert!(lives.is_superseded(1, 9, 30));
        assert!(!lives.is_superseded(1, 11, 30));
    }
}
