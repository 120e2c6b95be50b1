//! Paging: how faults reach the cache, and how pages get to their addresses and away from there.

use crate::engine::{FaultEngine, Frames};
use crate::options::FrameHint;
use crate::sys::unmap::Unmapper;

/// The kernel's side of a cache.
pub(crate) struct Paging {
    pub(crate) engine: Box<dyn FaultEngine>,
    /// Frames whose first store traps; regions may have others of their own.
    pub(crate) frames: Box<dyn Frames>,
    /// For page tables and page words.
    pub(crate) unmapper: Unmapper,
    /// What mappings get that do not say.
    pub(crate) frame_hint: FrameHint,
    /// Ranges are locked in memory.
    pub(crate) locks_memory: bool,
}
