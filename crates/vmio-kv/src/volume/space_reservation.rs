//! Reservations of chunks for a write.

use crate::error::Result;
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::volume::allocator::Allocator;
use crate::volume::free_reserve::SpacePriority;
use crate::volume::segment::Segment;

/// Chunks that other writes cannot take: a batch that has begun finds them, whatever else is written. Those that are left come free on drop.
pub(crate) struct SpaceReservation<'segment> {
    segment: &'segment Segment,
    chunks: u64,
}

impl<'segment> SpaceReservation<'segment> {
    /// Chunks that the segment's allocator has reserved.
    pub(super) fn new(segment: &'segment Segment, chunks: u64) -> Self {
        SpaceReservation { segment, chunks }
    }

    /// Takes one of the chunks; returns its place.
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

impl Segment {
    /// How many units have to be free, with space, for a write of that priority that takes `chunks`, and whether they are.
    fn units_for(&self, priority: SpacePriority, chunks: u64, allocator: &Allocator) -> (u64, bool) {
        let least = |priority| self.free_reserve.least_free(priority, allocator.units_in_all()) + chunks;
        match priority {
            // Background writes give no units space that have to stay free for others.
            SpacePriority::Background => {
                let wanted = least(SpacePriority::Put);
                let has_much = allocator.free_units_with_holes() >= least(priority);
                (if has_much { wanted } else { u64::MAX }, has_much && allocator.free_units() >= wanted)
            }
            _ => (least(priority), allocator.free_units() >= least(priority)),
        }
    }

    /// How many units a write of that priority may take.
    pub(super) fn units_besides(&self, priority: SpacePriority, allocator: &Allocator) -> u64 {
        allocator.free_units().saturating_sub(self.free_reserve.least_free(priority, allocator.units_in_all()))
    }

    /// Gives that many units space for a write of that priority, as far as there is any.
    pub(super) fn make_ready_for(&self, priority: SpacePriority, units: u64) -> Result<()> {
        let (wanted, is_there) = self.units_for(priority, units, &self.allocator());
        if !is_there && wanted < u64::MAX {
            self.make_ready(wanted)?;
        }
        Ok(())
    }

    /// Fails if a write of that priority may not take that many chunks now. It does not reserve them.
    pub(crate) fn check_space(&self, priority: SpacePriority, chunks: u64) -> Result<()> {
        let (wanted, is_there) = self.units_for(priority, chunks, &self.allocator());
        if is_there || (wanted < u64::MAX && self.make_ready(wanted)?) {
            return Ok(());
        }
        Err(self.full(chunks.max(1) * ALLOCATION_UNIT_BYTES))
    }

    /// Reserves that many chunks for a write of that priority, or fails.
    pub(crate) fn reserve(&self, priority: SpacePriority, chunks: u64) -> Result<SpaceReservation<'_>> {
        loop {
            let wanted = {
                let mut allocator = self.allocator();
                let (wanted, is_there) = self.units_for(priority, chunks, &allocator);
                if is_there {
                    allocator.reserve(chunks);
                    return Ok(SpaceReservation::new(self, chunks));
                }
                wanted
            };
            if wanted == u64::MAX || !self.make_ready(wanted)? {
                return Err(self.full(chunks.max(1) * ALLOCATION_UNIT_BYTES));
            }
        }
    }

    /// A reservation of no chunk.
    pub(crate) fn reserve_none(&self) -> SpaceReservation<'_> {
        SpaceReservation::new(self, 0)
    }
}
