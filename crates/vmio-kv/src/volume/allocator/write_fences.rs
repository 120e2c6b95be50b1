//! Write fences: the range of units that an owner may write to. A new owner keeps to others, so that late writes of the former owner
//! overwrite nothing.
//!
//! The superblock has the fence's end, some units ahead of the need. Units beyond it were never written to. A new owner's fence begins
//! where all former ones end; it takes no unit before that, free or not.

use crate::format::bitmap::{UNIT_WORDS, UnitBits};
use crate::format::unit_table::{AllocationUnit, Purpose};
use crate::volume::allocator::{Allocator, Pair};
use crate::volume::free_reserve::OWN_UNITS;

/// By how many units the fence moves: a sixteenth of all, 512 (1 GiB) at most.
const STEP_UNITS: std::ops::RangeInclusive<u64> = 8..=512;

impl Allocator {
    /// Whether the first free unit is within the fence. For blocks that are not the segment's own, one more has to be, so that a commit
    /// finds space.
    pub(super) fn is_within_write_fence(&self, is_own: bool) -> bool {
        let more = self.free.ready.len().saturating_sub(1);
        let behind = if is_own { 0 } else { more.min(OWN_UNITS as usize) };
        self.free.ready.iter().nth(behind).is_some_and(|unit| *unit < self.write_fence.end)
    }

    /// The unit behind the last one.
    pub(crate) fn end(&self) -> u64 {
        self.groups.last().map_or(0, |map| map.group.end())
    }

    /// Whether a unit was refused, since the last call, because it is beyond the fence.
    pub(crate) fn take_hit_write_fence(&mut self) -> bool {
        std::mem::take(&mut self.hit_write_fence)
    }

    /// The end of the fence in the next commit: further than now if few units are left within it, or if the caller needs `more`.
    pub(crate) fn next_write_fence(&self, more: bool) -> u64 {
        let step = (self.units_in_all() / 16).clamp(*STEP_UNITS.start(), *STEP_UNITS.end()) as usize;
        // All hollow units are within the fence.
        let left = self.free.ready.range(..self.write_fence.end).take(step).count() + self.free.hollow.len();
        // Units that the volume has grown by are not free yet.
        let last = self.beyond().take(step).last().filter(|_| more || left < step / 2);
        last.map_or(self.write_fence.end, |unit| unit + 1).min(self.end())
    }

    /// Sets the end of the fence, which a durable superblock has.
    pub(crate) fn set_write_fence(&mut self, unit: u64) {
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

    /// Keeps off units before this one, which other owners may write to.
    pub(crate) fn keep_off(&mut self, unit: u64) {
        self.write_fence.start = unit;
        self.find_free_units();
    }

    /// Forgets former owners: frees all free units before the fence, and former own units of groups.
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

    /// Moves each group's own blocks to another unit; the next commit writes all of them. `None` if there is no space.
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
        allocator.set_write_fence(0);
        assert_eq!(allocator.take_chunk(|_| 0), None);
        assert!(allocator.take_hit_write_fence() && !allocator.take_hit_write_fence());
        assert_eq!(allocator.next_write_fence(false), 10, "eight besides the group's own");
        allocator.set_write_fence(10);
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
        allocator.set_write_fence(40);
        assert_eq!(allocator.free_units(), 81);
        let (at, _) = allocator.take_block(&mut cursor, Purpose::Leaves(1), 7).expect("space");
        assert_eq!(
            at / crate::format::geometry::ALLOCATION_UNIT_BYTES,
            20,
            "not in an earlier unit, free or with space"
        );
        assert_eq!(allocator.move_own_units(), Some(vec![21]));
        for offset in nodes {
            allocator.free(crate::format::free_log::Freed { offset, blocks: 1 });
        }
        assert_eq!(allocator.free_units(), 79, "blocks that come free there are not taken");
        assert_eq!(allocator.begin_discard(21, 0), vec![], "nor is anything beyond the write fence discarded");
        allocator.forget_former_owners();
        assert_eq!(allocator.free_units(), 98, "all but the node's and the group's units");
        assert_eq!(allocator.take_chunk(|_| 0), Some(1), "the group has left its first unit");
    }
}
