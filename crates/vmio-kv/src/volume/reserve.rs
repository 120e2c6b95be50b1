//! What has to stay free so that a store that is full can still spill, commit, collect and delete.

use std::sync::atomic::{AtomicU64, Ordering};

/// Units that only the segment's own blocks get: so a commit finds room.
pub(crate) const OWN_UNITS: u64 = 1;
/// Chunks for what is moved out of others before these come free: the rest of one, and the one behind it.
const MOVE_UNITS: u64 = 2;
/// Chunks for deletions when puts are refused.
const DELETE_UNITS: u64 = 2;

/// What records are appended for: the first is refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// There will be more.
    Put,
    /// There will be less, later.
    Delete,
    /// Garbage collection makes room by it.
    Move,
}

/// How many units stay free.
#[derive(Default)]
pub(crate) struct Reserve {
    spill_units: AtomicU64,
}

impl Reserve {
    /// Sets what the largest spill may take.
    pub(crate) fn set_spill_units(&self, units: u64) {
        self.spill_units.store(units, Ordering::Relaxed);
    }

    /// How many units have to be free beside what is claimed.
    pub(crate) fn least_free(&self, claim: Claim) -> u64 {
        let for_moves = OWN_UNITS + self.spill_units.load(Ordering::Relaxed);
        match claim {
            Claim::Move => for_moves,
            Claim::Delete => for_moves + MOVE_UNITS,
            Claim::Put => for_moves + MOVE_UNITS + DELETE_UNITS,
        }
    }
}
