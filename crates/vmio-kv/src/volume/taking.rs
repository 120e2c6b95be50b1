//! Taking allocation units and blocks of a segment, for the log and for nodes.

use crate::error::Result;
use crate::format::extents::Extent;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::unit_table::Purpose;
use crate::volume::allocator::{Allocator, Cursor, Entered};
use crate::volume::committed::Changes;
use crate::volume::segment::{Segment, priority};

impl Segment {
    /// Takes something from the allocator. Where it needs units beyond the write fence, or units with space, it provides those first.
    pub(super) fn take<Taken>(&self, mut take: impl FnMut(&mut Allocator) -> Option<Taken>) -> Result<Option<Taken>> {
        let mut has_tried_all = false;
        loop {
            let (taken, hit_write_fence, lacks_space, ready) = {
                let mut allocator = self.allocator();
                let taken = take(&mut allocator);
                (taken, allocator.take_hit_write_fence(), allocator.take_lacks_space(), allocator.free_units())
            };
            if taken.is_some() || has_tried_all || !(hit_write_fence || lacks_space) {
                return Ok(taken);
            }
            if hit_write_fence {
                self.commit(Changes { extend_write_fence: true, ..Changes::default() }, &[])?;
            } else {
                // If no other unit gets space, the rest of partly taken units will do.
                has_tried_all = !self.make_ready(ready + 1)?;
            }
        }
    }

    /// Takes a unit for a chunk of the log.
    pub(crate) fn take_chunk(&self) -> Result<u64> {
        let taken = self.take(|allocator| allocator.take_chunk(|unit| self.chunk_generations.begin(unit)))?;
        self.begin_chunk(taken.ok_or_else(|| self.full(ALLOCATION_UNIT_BYTES))?)
    }

    /// Takes a reserved unit; `reserved` counts those that are left.
    pub(super) fn take_reserved_unit(&self, reserved: &mut u64) -> Result<u64> {
        let taken = self.take(|allocator| {
            let left = reserved.checked_sub(1)?;
            let unit = allocator.take_reserved_chunk(|unit| self.chunk_generations.begin(unit))?;
            *reserved = left;
            Some(unit)
        })?;
        taken.ok_or_else(|| self.full(ALLOCATION_UNIT_BYTES))
    }

    /// Begins a chunk of the log in a unit that was taken. Returns its place.
    pub(super) fn begin_chunk(&self, unit: u64) -> Result<u64> {
        self.device.begin_unit(unit, false, priority(Purpose::Log))?;
        Ok(unit * ALLOCATION_UNIT_BYTES)
    }

    /// Takes up to `most` blocks in a row for nodes. They are pending until a commit has them.
    pub(crate) fn take_nodes(&self, cursor: &mut Cursor, purpose: Purpose, keyspace: u32, most: u64) -> Result<Extent> {
        let taken = self.take(|allocator| allocator.take_blocks(cursor, purpose, keyspace, most))?;
        let (taken, entered) = taken.ok_or_else(|| self.full(ALLOCATION_UNIT_BYTES))?;
        let begun = match entered {
            Entered::No => Ok(()),
            Entered::New(unit) => self.device.begin_unit(unit, true, priority(purpose)),
            // The device's blocks there are no nodes, or retired ones: nothing may read them.
            Entered::Again(free) => self.ensure_space(unit_of(taken.offset)).and_then(|()| {
                free.into_iter().try_for_each(|freed| self.device.forget_blocks(freed.offset, freed.blocks))
            }),
        };
        if begun.is_err() {
            // Other threads may share the cursor.
            self.allocator().leave(cursor);
            self.abandon(std::iter::once(taken.into()));
        }
        begun.map(|()| taken)
    }
}
