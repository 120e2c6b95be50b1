//! Units that were never taken. They are free, and nothing is stored about them: memory and the reads of an opening depend on the write
//! fence, not on the volume's length.

use std::ops::Range;

use crate::device::Newest;
use crate::format::bitmap::UnitBits;
use crate::format::block::{Kind, Uuid, unseal};
use crate::format::geometry::{BITMAP_UNITS, Group, UNIT_TABLE_UNITS};
use crate::format::unit_table::AllocationUnit;
use crate::volume::allocator::unused_blocks::{UnusedBlocks, offsets};
use crate::volume::allocator::{Allocator, GroupMap, Pair};

/// A block whose newest copy is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnknownBlock {
    pub(crate) kind: Kind,
    /// The places of its copies.
    pub(crate) offsets: [u64; 2],
    group: usize,
    index: usize,
}

impl GroupMap {
    /// Makes the lists at least that many units long.
    pub(super) fn reach(&mut self, units: usize) {
        if self.units.len() < units {
            self.units.resize(units, AllocationUnit::default());
            self.taken.resize(units, UnitBits::default());
            self.pending.resize(units, UnitBits::default());
            self.has_space.resize(units, false);
        }
    }

    /// Whether none of a unit's blocks is taken.
    pub(super) fn is_free(&self, index: usize) -> bool {
        self.taken.get(index).is_none_or(|bits| *bits == UnitBits::default())
    }

    /// Blocks that were never written, of units beyond the write fence that have nothing. They count as written.
    pub(super) fn unused_blocks(&mut self, segment: Uuid, epoch: u64, write_fence: u64) -> Vec<UnusedBlocks> {
        let (group, known) = (self.group, self.units.len() as u64);
        let lists = [
            (Kind::Bitmap, &mut self.bitmaps, group.bitmaps_below(write_fence), known.div_ceil(BITMAP_UNITS)),
            (Kind::UnitTable, &mut self.tables, group.unit_tables_below(write_fence), known.div_ceil(UNIT_TABLE_UNITS)),
        ];
        let of_list = |(kind, pairs, write_fence, known): (Kind, &mut Vec<Pair>, u64, u64)| {
            // New blocks are behind all others.
            let new = pairs.iter().rev().take_while(|pair| pair.is_new() && pair.dirty).count() as u64;
            let end = pairs.len() as u64;
            let indexes = write_fence.max(known).max(end - new).min(end)..end;
            let written = Pair { copy: 0, epoch, dirty: false, is_known: true };
            pairs[indexes.start as usize..].fill(written);
            (!indexes.is_empty()).then_some(UnusedBlocks { segment, epoch, kind, group, indexes })
        };
        lists.into_iter().filter_map(of_list).collect()
    }

    /// The unknown blocks among the first ones of each kind, and those that have changed.
    fn unknown_blocks(&self, bitmaps: u64, tables: u64) -> impl Iterator<Item = (Kind, usize)> + '_ {
        let of_list = |kind: Kind, pairs: &[Pair], count: u64| {
            let is_wanted = |(index, pair): &(usize, &Pair)| !pair.is_known && (pair.dirty || (*index as u64) < count);
            let unknown: Vec<_> = pairs.iter().enumerate().filter(is_wanted).map(|(index, _)| (kind, index)).collect();
            unknown
        };
        of_list(Kind::Bitmap, &self.bitmaps, bitmaps).into_iter().chain(of_list(Kind::UnitTable, &self.tables, tables))
    }
}

impl Allocator {
    /// The place of a unit, whose lists are made long enough.
    pub(super) fn reach(&mut self, unit: u64) -> Option<(usize, usize)> {
        let (group, index) = self.place(unit)?;
        self.groups[group].reach(index + 1);
        Some((group, index))
    }

    /// A group's free units beyond the write fence, in order, with or without space.
    fn beyond_of<'map>(&self, map: &'map GroupMap) -> impl Iterator<Item = u64> + use<'map> {
        let first = map.group.first_unit;
        self.range_beyond(map).filter(move |unit| map.is_free((unit - first) as usize))
    }

    /// A group's units beyond the write fence that are free by the last commit.
    fn range_beyond(&self, map: &GroupMap) -> Range<u64> {
        let start = map.group.first_unit.max(self.write_fence.end).max(self.write_fence.start);
        start..map.group.end().min(self.usable_end)
    }

    /// All free units beyond the write fence.
    pub(super) fn beyond(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups.iter().flat_map(|map| self.beyond_of(map))
    }

    /// Those of them without space.
    pub(super) fn unused(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups.iter().flat_map(|map| self.unused_of(map))
    }

    fn unused_of<'map>(&self, map: &'map GroupMap) -> impl Iterator<Item = u64> + use<'map> {
        let first = map.group.first_unit;
        self.beyond_of(map)
            .filter(move |unit| !map.has_space.get((unit - first) as usize).is_some_and(|has_space| *has_space))
    }

    /// Whether a unit is free, beyond the write fence, and without space.
    pub(super) fn is_unused(&self, unit: u64) -> bool {
        self.place(unit).is_some_and(|(group, index)| {
            let map = &self.groups[group];
            self.range_beyond(map).contains(&unit) && map.is_free(index) && !self.has_space(unit)
        })
    }

    /// Counts those units.
    pub(super) fn find_unused(&mut self) {
        let of_map = |map: &GroupMap| {
            // Behind the group's lists all units are free.
            let (known, beyond) = (map.group.first_unit + map.taken.len() as u64, self.range_beyond(map));
            let behind = beyond.end.saturating_sub(beyond.start.max(known));
            behind + self.unused_of(map).take_while(|unit| *unit < known).count() as u64
        };
        self.unused_units = self.groups.iter().map(of_map).sum();
    }

    /// Counts them again, after a unit has changed.
    pub(super) fn note_unused(&mut self, unit: u64) {
        if unit >= self.write_fence.end {
            self.find_unused();
        }
    }

    /// Blocks whose newest copies have to be known, with that write fence.
    pub(crate) fn unknown_blocks(&self, write_fence: u64) -> Vec<UnknownBlock> {
        let of_map = |(place, map): (usize, &GroupMap)| {
            let group = map.group;
            let wanted = (group.bitmaps_below(write_fence), group.unit_tables_below(write_fence));
            let unknown = map.unknown_blocks(wanted.0, wanted.1);
            unknown.map(move |found| Self::unknown(place, group, found)).collect::<Vec<_>>()
        };
        self.groups.iter().enumerate().flat_map(of_map).collect()
    }

    /// The last blocks of the last group: growth that was cut short may have left copies of them that tell of more units.
    pub(crate) fn last_unknown_blocks(&self) -> Vec<UnknownBlock> {
        let Some(map) = self.groups.last() else { return Vec::new() };
        let (bitmaps, tables) = (map.bitmaps.len(), map.tables.len());
        let is_last = |(kind, index): &(Kind, usize)| index + 1 == if *kind == Kind::Bitmap { bitmaps } else { tables };
        let unknown = map.unknown_blocks(u64::MAX, u64::MAX).filter(is_last);
        unknown.map(|found| Self::unknown(self.groups.len() - 1, map.group, found)).collect()
    }

    fn unknown(group: usize, of: Group, (kind, index): (Kind, usize)) -> UnknownBlock {
        UnknownBlock { kind, offsets: offsets(of, kind, index as u64), group, index }
    }

    /// Notes where the newest copy of a block is. If neither copy is whole, the next commit writes the block.
    pub(crate) fn know_newest(&mut self, block: UnknownBlock, newest: Option<&Newest>) {
        let map = &mut self.groups[block.group];
        let pairs = if block.kind == Kind::Bitmap { &mut map.bitmaps } else { &mut map.tables };
        let Some(pair) = pairs.get_mut(block.index).filter(|pair| !pair.is_known) else { return };
        let known = newest.and_then(|Newest { copy, block: found, other_is_newer }| {
            let epoch = unseal(&found.0, block.kind, block.offsets[*copy]).ok()?.epoch;
            Some(Pair { copy: *copy, epoch, dirty: pair.dirty || *other_is_newer, is_known: true })
        });
        *pair = known.unwrap_or(Pair::NEW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{GROUP_UNITS_MAX, groups};

    #[test]
    fn units_that_were_never_taken_are_free_and_take_no_memory() {
        let groups = groups(1, 100 * GROUP_UNITS_MAX);
        let mut allocator = Allocator::new(&groups);
        let free = 100 * GROUP_UNITS_MAX - 1 - 100;
        assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (0, free), "all but the groups' own");
        let write_fence = allocator.next_write_fence(true);
        assert_eq!(write_fence, 2 + 512);
        allocator.set_write_fence(write_fence);
        give_space_below(&mut allocator, write_fence);
        let chunks: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
        assert_eq!(chunks, (2..513).collect::<Vec<_>>(), "one is for commits");
        let kept: usize = allocator.groups.iter().map(|map| map.units.len()).sum();
        assert_eq!(kept, 513 + 99);
        assert_eq!(allocator.free_units_with_holes(), free - 511);
        let changed = allocator.changed(Uuid::from_bytes([1; 16]), 1, write_fence);
        let unused: u64 = changed.unused.iter().map(|unused| unused.indexes.end - unused.indexes.start).sum();
        let all: u64 = groups.iter().map(|group| group.bitmaps_in_use() + group.unit_tables_in_use()).sum();
        assert_eq!((changed.blocks.len() as u64, unused), (9 + 3 + 99 * 2, all - 9 - 3 - 99 * 2));
        assert!(allocator.changed(Uuid::from_bytes([1; 16]), 2, write_fence).blocks.is_empty());
    }

    fn give_space_below(allocator: &mut Allocator, end: u64) {
        while let Some(unit) = allocator.next_without_space(false).filter(|unit| *unit < end) {
            allocator.got_space(unit);
        }
    }

    #[test]
    fn a_unit_allocated_beyond_the_write_fence_counts_once_and_is_taken_once_within_it() {
        let mut allocator = Allocator::new(&groups(1, 2 * GROUP_UNITS_MAX));
        let free = allocator.free_units_with_holes();
        allocator.set_write_fence(4);
        give_space_below(&mut allocator, 7);
        assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (5, free));
        assert_eq!(allocator.take_chunk(|_| 0), Some(2));
        assert_eq!(allocator.take_chunk(|_| 0), None, "one is for commits, and the next is beyond the write fence");
        assert!(allocator.take_hit_write_fence() && !allocator.take_lacks_space());
        allocator.set_write_fence(9);
        assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (4, free - 1));
        assert_eq!(allocator.next_without_space(false), Some(7), "the others have it");
        let chunks: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
        assert_eq!(chunks, [3, 4, 5]);
        assert!(allocator.take_lacks_space() && !allocator.take_hit_write_fence());
        give_space_below(&mut allocator, 20);
        allocator.set_write_fence(3);
        assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (14, free - 4));
    }

    #[test]
    fn a_full_file_system_is_asked_for_space_for_few_units() {
        let mut allocator = Allocator::new(&groups(1, 100 * GROUP_UNITS_MAX));
        allocator.set_write_fence(12);
        let refuse_all = |allocator: &mut Allocator| {
            let next = || {
                let unit = allocator.next_without_space(true)?;
                allocator.got_no_space(unit);
                Some(unit)
            };
            std::iter::from_fn(next).collect::<Vec<u64>>()
        };
        assert_eq!(
            refuse_all(&mut allocator),
            (2..524).collect::<Vec<_>>(),
            "those within the write fence, and REFUSED_UNITS_MAX more"
        );
        allocator.set_write_fence(20);
        assert_eq!(refuse_all(&mut allocator), (524..532).collect::<Vec<_>>(), "none twice");
        assert_eq!(allocator.next_without_space(false), Some(2), "but when there may be space again");
    }

    #[test]
    fn a_write_fence_that_reaches_the_next_group_leaves_out_its_own_unit() {
        let groups = groups(1, 2 * GROUP_UNITS_MAX);
        let mut allocator = Allocator::new(&groups);
        let second = groups[1].first_unit;
        allocator.set_write_fence(second - 3);
        assert_eq!(allocator.next_write_fence(true), second + 1 + 509);
        allocator.set_write_fence(second + 3);
        give_space_below(&mut allocator, second + 3);
        let taken: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
        assert_eq!(taken[taken.len() - 4..], [second - 3, second - 2, second - 1, second + 1]);
    }
}
