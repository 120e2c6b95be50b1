//! Which units an owner may write to. A new owner keeps to others, so that late writes of the one before hit nothing of his.
//!
//! Units are granted from the front, some ahead of what is needed, by a number in the superblock: what was never granted, nobody has
//! written to. A new owner is granted none that was granted before him, whether it is free or not.

use crate::format::bitmap::{UNIT_WORDS, UnitBits};
use crate::format::unit_table::{Purpose, AllocationUnit};
use crate::volume::allocator::{Allocator, Pair};
use crate::volume::space_reservation::OWN_UNITS;

/// Units that are granted at a time: a sixteenth of all, but no more than a GiB.
const STEP_UNITS: std::ops::RangeInclusive<u64> = 8..=512;

impl Allocator {
    /// Whether the first free unit is given out; one more, if there is one and that is not for the segment's own blocks: a commit finds space.
    pub(super) fn is_within_write_fence(&self, is_own: bool) -> bool {
        let more = self.free.ready.len().saturating_sub(1);
        let behind = if is_own { 0 } else { more.min(OWN_UNITS as usize) };
        self.free.ready.iter().nth(behind).is_some_and(|unit| *unit < self.write_fence.end)
    }

    /// The unit behind the last one.
    pub(crate) fn end(&self) -> u64 {
        self.groups.last().map_or(0, |map| map.group.end())
    }

    /// Whether a unit was refused since this was last asked because it is not granted.
    pub(crate) fn take_hit_write_fence(&mut self) -> bool {
        std::mem::take(&mut self.hit_write_fence)
    }

    /// Up to which unit the next commit is to grant them: further than now if few are left, or if somebody needs `more`.
    pub(crate) fn next_write_fence(&self, more: bool) -> u64 {
        let step = (self.units_in_all() / 16).clamp(*STEP_UNITS.start(), *STEP_UNITS.end()) as usize;
        // All that are hollow are granted.
        let left = self.free.ready.range(..self.write_fence.end).take(step).count() + self.free.hollow.len();
        // What a volume has grown by is no free unit yet.
        let last = self.beyond().take(step).last().filter(|_| more || left < step / 2);
        last.map_or(self.write_fence.end, |unit| unit + 1).min(self.end())
    }

    /// Units up to this one are granted: a superblock that is durable says so.
    pub(crate) fn extend_write_fence(&mut self, unit: u64) {
        let before = std::mem::replace(&mut self.write_fence.end, unit);
        let beyond_fence = self.free.hollow.split_off(&unit);
        beyond_fence.iter().for_each(|unit| _ = self.free.discardable.remove(unit));
        let mut new = Vec::new();
        for map in &mut self.groups {
            let (first, end) = (map.group.first_unit, map.group.end());
            map.reach(map.group.units_below(unit) as usize);
            let write_fence = before.max(first)..unit.min(end);
            new.extend(write_fence.filter(|unit| map.is_free((unit - first) as usize)));
        }
        let refused_end = self.free.refused_end;
        new.retain(|unit| !self.in_use.contains(unit));
        for unit in new {
            self.add_free(unit);
            if unit < refused_end && !self.has_space(unit) {
                self.free.discardable.remove(&unit);
            }
        }
        self.find_unused();
    }

    /// Keeps off units that another owner was granted before, who may still be there.
    pub(crate) fn keep_off(&mut self, unit: u64) {
        self.write_fence.start = unit;
        self.find_free_units();
    }

    /// There is no other owner any more: has all units that are free be free, and those that were groups' own.
    pub(crate) fn forget_former_owners(&mut self) {
        let before = std::mem::take(&mut self.write_fence.start);
        let own: Vec<u64> = self.groups.iter().map(|map| map.group.own_unit).collect();
        for map in &mut self.groups {
            for index in 0..map.units.len() {
                let unit = map.group.first_unit + index as u64;
                if map.units[index].purpose == Purpose::Group && !own.contains(&unit) {
                    map.taken[index] = UnitBits::default();
                    map.mark_bits(index);
                }
            }
        }
        self.parts = self.find_parts();
        self.use_units(0..before);
    }

    /// Has each group's own blocks be in another unit, all of which the next commit writes. `None` if there is no space.
    pub(crate) fn move_own_units(&mut self) -> Option<Vec<u64>> {
        let mut own_units = Vec::new();
        for group in 0..self.groups.len() {
            let unit = self.pop_free_unit(Purpose::Group)?;
            self.change(unit, |map, index| {
                map.units[index] = AllocationUnit { purpose: Purpose::Group, ..AllocationUnit::default() };
                map.taken[index] = [u64::MAX; UNIT_WORDS];
            })?;
            let map = &mut self.groups[group];
            map.group.own_unit = unit;
            map.bitmaps.iter_mut().chain(&mut map.tables).for_each(|pair| *pair = Pair::NEW);
            own_units.push(unit);
        }
        Some(own_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::Group;
    use crate::volume::allocator::Cursor;

    #[test]
    fn only_units_within_the_write_fence_are_taken_and_one_is_kept_for_commits() {
        let mut allocator = Allocator::with_space(&[Group::new(1, 100)]);
        allocator.extend_write_fence(0);
        assert_eq!(allocator.take_chunk(|_| 0), None);
        assert!(allocator.take_hit_write_fence() && !allocator.take_hit_write_fence());
        assert_eq!(allocator.next_write_fence(false), 10, "eight beside the group's own");
        allocator.extend_write_fence(10);
        let taken: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
        assert_eq!(taken, (2..9).collect::<Vec<_>>());
        assert!(allocator.take_hit_write_fence());
        let own = allocator.take_block(&mut Cursor::default(), Purpose::Segment, 0).expect("it is kept for that");
        assert_eq!(own.0 / crate::format::geometry::ALLOCATION_UNIT_BYTES, 9);
        assert_eq!(allocator.next_write_fence(false), 18);
    }

    #[test]
    fn a_new_owner_takes_nothing_within_former_write_fences() {
        let mut allocator = Allocator::with_space(&[Group::new(1, 100)]);
        let (mut nodes, mut cursor) = (Vec::new(), Cursor::default());
        for _ in 0..700 {
            nodes.push(allocator.take_block(&mut cursor, Purpose::Leaves(1), 7).expect("space").0);
        }
        allocator.leave(&mut cursor);
        allocator.keep_off(20);
        allocator.extend_write_fence(40);
        assert_eq!(allocator.free_units(), 81);
        let (at, _) = allocator.take_block(&mut cursor, Purpose::Leaves(1), 7).expect("space");
        assert_eq!(at / crate::format::geometry::ALLOCATION_UNIT_BYTES, 20, "not in a unit with space, nor in one that is free");
        assert_eq!(allocator.move_own_units(), Some(vec![21]));
        for offset in nodes {
            allocator.free(crate::format::free_log::Freed { offset, blocks: 1 });
        }
        assert_eq!(allocator.free_units(), 79, "what comes free there is given to nobody");
        assert_eq!(allocator.begin_discard(21, 0), vec![], "nor is anything beyond the write fence discarded");
        allocator.forget_former_owners();
        assert_eq!(allocator.free_units(), 98, "all but what the node and the group have");
        assert_eq!(allocator.take_chunk(|_| 0), Some(1), "which has left its first unit");
    }
}
