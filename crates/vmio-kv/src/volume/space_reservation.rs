//! What has to stay free so that a store that is full can still compact, commit, collect and delete; and space that is somebody's before he
//! takes it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::volume::segment::Segment;

/// Units that only the segment's own blocks get: so a commit finds space.
pub(crate) const OWN_UNITS: u64 = 1;
/// Chunks for what is moved out of others before these come free: the rest of one, and the one behind it.
const MOVE_UNITS: u64 = 2;
/// Chunks for deletions when puts are refused.
const DELETE_UNITS: u64 = 2;
/// So many chunks beside what puts need, and such a share of the segment, are left where nobody has asked for a write: it takes no space that
/// others will want, nor has the volume grow.
const BACKGROUND_CHUNKS: u64 = 4;
const BACKGROUND_SHARE: u64 = 16;

/// What records are appended for: the first is refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePriority {
    /// Nobody has asked for it.
    Background,
    /// There will be more.
    Put,
    /// There will be less, later.
    Delete,
    /// Garbage collection makes space by it.
    Move,
}

/// How many units stay free.
#[derive(Default)]
pub(crate) struct FreeReserve {
    compaction_units: AtomicU64,
    /// Whoever reckons them holds it: what is set last was reckoned last.
    reckoning: Mutex<()>,
}

impl FreeReserve {
    /// Sets what the largest compaction may take to what is `reckoned`.
    pub(crate) fn set_compaction_units(&self, reckoned: impl FnOnce() -> u64) {
        let _reckoning = self.reckoning.lock().unwrap_or_else(PoisonError::into_inner);
        self.compaction_units.store(reckoned(), Ordering::Relaxed);
    }

    /// How many units have to be free beside what is claimed, of so many that the segment has.
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

/// Chunks that count as taken to all others: who has begun to write a batch finds them, whatever others take meanwhile. What is left is
/// free again with the end of it.
pub(crate) struct SpaceReservation<'segment> {
    segment: &'segment Segment,
    chunks: u64,
}

impl<'segment> SpaceReservation<'segment> {
    /// The segment's allocator has kept them.
    pub(super) fn new(segment: &'segment Segment, chunks: u64) -> Self {
        SpaceReservation { segment, chunks }
    }

    /// Takes one of them; returns where it begins.
    pub(crate) fn take_chunk(&mut self) -> Result<u64> {
        let unit = self.segment.take_reserved_unit(&mut self.chunks)?;
        self.segment.begin_chunk(unit)
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        if self.chunks > 0 {
            self.segment.allocator().cancel(self.chunks);
        }
    }
}
