//! The reserve that lets a full store still compact, commit, collect and delete.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Units that only the segment's own blocks get, so that a commit finds space.
pub(crate) const OWN_UNITS: u64 = 1;
/// Chunks for records that the collector moves before it frees others: the rest of one, and the one behind it.
const MOVE_UNITS: u64 = 2;
/// Chunks for deletions when puts are refused.
const DELETE_UNITS: u64 = 2;
/// Background writes leave this many chunks more than puts do, and this share of the segment. So they take no space that other writes will
/// need, and do not make the volume grow.
const BACKGROUND_CHUNKS: u64 = 4;
const BACKGROUND_SHARE: u64 = 16;

/// Priority of a write for the last space: the first is refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePriority {
    /// Background writes, which no user has asked for.
    Background,
    /// Puts.
    Put,
    /// Deletions, which free space later.
    Delete,
    /// Moves by the garbage collector, which free space.
    Move,
}

/// How many units have to stay free.
#[derive(Default)]
pub(crate) struct FreeReserve {
    compaction_units: AtomicU64,
    /// Held during the computation of the units, so that the last result stays.
    reckoning: Mutex<()>,
}

impl FreeReserve {
    /// Sets how many units the largest compactions may take.
    pub(crate) fn set_compaction_units(&self, compute: impl FnOnce() -> u64) {
        let _reckoning = self.reckoning.lock().unwrap_or_else(PoisonError::into_inner);
        self.compaction_units.store(compute(), Ordering::Relaxed);
    }

    /// How many units have to stay free when a write of that priority is done, in a segment of that many units.
    pub(crate) fn least_free(&self, priority: SpacePriority, units_in_all: u64) -> u64 {
        let for_moves = OWN_UNITS + self.compaction_units.load(Ordering::Relaxed);
        let for_puts = for_moves + MOVE_UNITS + DELETE_UNITS;
        match priority {
            SpacePriority::Move => for_moves,
            SpacePriority::Delete => for_moves + MOVE_UNITS,
            SpacePriority::Put => for_puts,
            SpacePriority::Background => for_puts + BACKGROUND_CHUNKS + units_in_all / BACKGROUND_SHARE,
        }
    }
}
