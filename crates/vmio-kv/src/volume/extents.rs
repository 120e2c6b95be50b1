//! Space for large values.

use std::cell::Cell;
use std::sync::Arc;

use crate::error::Result;
use crate::format::extents::Extent;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BLOCK_BYTES, unit_of};
use crate::format::unit_table::Purpose;
use crate::volume::allocator::TakenRuns;
use crate::volume::free_reserve::SpacePriority;
use crate::volume::segment::{Segment, priority};

/// Blocks for a value that nothing refers to yet. A drop frees them unless [`Self::keep`] was called.
pub(crate) struct TakenExtents {
    segment: Arc<Segment>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) head: Extent,
    /// Units that were free.
    new_units: Vec<u64>,
    is_kept: Cell<bool>,
}

impl TakenExtents {
    /// Takes that many blocks, and a head whose length `head_blocks` says for a number of extents.
    pub(crate) fn new(
        segment: &Arc<Segment>,
        keyspace: u32,
        blocks: u64,
        head_blocks: impl Fn(usize) -> u64,
    ) -> Result<Self> {
        // Some of the value may go to units that are taken in part.
        segment.make_ready_for(SpacePriority::Put, blocks / ALLOCATION_UNIT_BLOCKS + 2)?;
        let taken = segment.take(|allocator| {
            let new_units = segment.units_besides(SpacePriority::Put, allocator);
            allocator.take_runs(keyspace, blocks, &head_blocks, new_units)
        })?;
        let Some(TakenRuns { extents, head: Some(head), new_units }) = taken else {
            return Err(segment.full((blocks * BLOCK_BYTES as u64).next_multiple_of(ALLOCATION_UNIT_BYTES)));
        };
        let taken = TakenExtents { segment: Arc::clone(segment), extents, head, new_units, is_kept: Cell::new(false) };
        for unit in &taken.new_units {
            segment.device.begin_unit(*unit, false, priority(Purpose::Extents))?;
        }
        segment.allocator().share(&taken.new_units);
        taken.all().try_for_each(|extent| segment.ensure_space(unit_of(extent.offset)))?;
        Ok(taken)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.iter().copied().chain([self.head])
    }

    /// Keeps the blocks: something refers to them now.
    pub(crate) fn keep(&self) {
        self.is_kept.set(true);
    }
}

impl Drop for TakenExtents {
    fn drop(&mut self) {
        // A child that was forked while the value's source was read leaves the parent's locks alone.
        if !self.is_kept.get() && self.segment.device.check_not_forked().is_ok() {
            let mut allocator = self.segment.allocator();
            allocator.share(&self.new_units);
            self.all().for_each(|extent| allocator.free(extent.into()));
        }
    }
}
