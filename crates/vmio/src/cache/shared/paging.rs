//! Paging: how faults reach the cache, and how pages are mapped and unmapped.

use crate::engine::{FaultEngine, Frames};
use crate::options::FrameHint;
use crate::sys::unmap::Unmapper;

/// The kernel's side of a cache.
pub(crate) struct Paging {
    pub(crate) engine: Box<dyn FaultEngine>,
    /// Frames whose first store traps. A region may have frames of its own instead.
    pub(crate) frames: Box<dyn Frames>,
    /// Unmaps page tables, page words, and the memory of huge pages.
    pub(crate) unmapper: Unmapper,
    /// The frames of mappings whose options choose none.
    pub(crate) frame_hint: FrameHint,
    /// Whether the ranges of mappings are locked in memory.
    pub(crate) locks_memory: bool,
}
