//! How far the collection of a segment's garbage has come.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::pace::Pace;
use crate::volume::merges::Moment;

/// A segment's collection of garbage.
#[derive(Default)]
pub(crate) struct Collector {
    /// Locked by the thread that collects.
    pub(super) state: Mutex<Collecting>,
    pub(crate) pace: Pace,
    /// The last look found nothing to gain.
    pub(super) gains_nothing: AtomicBool,
    /// Since the store was opened: chunks freed, and bytes of records moved for that.
    pub(crate) chunks: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
}

/// The state of the collecting thread.
#[derive(Default)]
pub(crate) struct Collecting {
    /// Chunks without a live record, and when the last record left them.
    pub(super) emptied: Vec<(u64, Moment)>,
    /// The state in which a collection found nothing to gain.
    pub(super) gained_nothing_at: Option<SpaceState>,
}

/// While this has not changed, another collection finds no more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpaceState {
    /// The sequence number at the end of the log.
    pub(super) log_end: u64,
    pub(super) free_units: u64,
}
