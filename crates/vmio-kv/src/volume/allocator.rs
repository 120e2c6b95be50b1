//! The allocator of a segment: which allocation units and blocks are taken.
//!
//! A *pending* block was taken since the last commit, and is part of no commit yet. The bitmap on the device does not have it, so that it
//! is free again if its commit never comes. Chunks of the log are never pending; recovery finds them by their chain.

mod free_units;
mod part_units;
mod runs;
mod space;
mod unused;
mod unused_blocks;
mod write_fences;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::device::Newest;
use crate::error::Damage;
use crate::format::bitmap::{self, UNIT_WORDS, UnitBits};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::geometry::{
    ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BITMAP_UNITS, BLOCK_BYTES, Group, UNIT_TABLE_UNITS,
};
use crate::format::unit_table::{self, AllocationUnit, Purpose};
use crate::volume::free_reserve::OWN_UNITS;
use crate::volume::log_chunks::LogChunks;
use free_units::FreeUnits;
use part_units::PartUnits;
pub(crate) use runs::TakenRuns;
pub(crate) use unused_blocks::UnusedBlocks;

/// The least free blocks for which a unit is reused: with fewer, new blocks would not lie together.
const REUSE_BLOCKS_MIN: u64 = 128;

/// Where the next blocks are taken from, by a user that takes some at a time.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    unit: Option<u64>,
    next: u64,
}

/// Whether a cursor has moved to another unit to take blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It is in the same unit.
    No,
    /// It is in a unit that was free.
    New(u64),
    /// It is in a unit that was in use, of which these blocks were free, the taken ones included.
    Again(Vec<Freed>),
}

/// A block of the bitmap or of the unit table, which has two copies.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// The newest committed copy.
    copy: usize,
    epoch: u64,
    dirty: bool,
    /// False if it was not read, since no one has taken any of its units.
    is_known: bool,
}

/// The blocks of the allocator that a commit has to write.
pub(crate) struct Changed {
    /// Blocks with their places.
    pub(crate) blocks: Vec<(u64, Block)>,
    /// Blocks of units that no one has taken. Nothing was written there before.
    pub(crate) unused: Vec<UnusedBlocks>,
}

impl Pair {
    /// No copy was written yet.
    const NEW: Pair = Pair { copy: 1, epoch: 0, dirty: true, is_known: true };
    /// Whether and where it was written is unknown.
    const UNKNOWN: Pair = Pair { copy: 1, epoch: 0, dirty: false, is_known: false };

    fn is_new(&self) -> bool {
        self.is_known && self.epoch == 0
    }
}

struct GroupMap {
    group: Group,
    /// The units up to the last that was ever taken: those behind are free.
    units: Vec<AllocationUnit>,
    taken: Vec<UnitBits>,
    pending: Vec<UnitBits>,
    /// Which units are known to have space on the device, so that no write to them lacks it.
    has_space: Vec<bool>,
    bitmaps: Vec<Pair>,
    tables: Vec<Pair>,
}

/// The allocator of a segment.
pub(crate) struct Allocator {
    groups: Vec<GroupMap>,
    free: FreeUnits,
    /// How many units are free, beyond the write fence, and have no space.
    unused_units: u64,
    /// Units beyond the write fence are free up to here: a commit has them.
    usable_end: u64,
    /// How many of the free units with space are reserved.
    reserved: u64,
    /// The units that are taken in part.
    parts: PartUnits,
    /// Units that a cursor is in.
    in_use: BTreeSet<u64>,
    /// The units that this owner may write to: a durable superblock says so, and no other owner writes there.
    write_fence: Range<u64>,
    /// A unit was refused because it is beyond the write fence.
    hit_write_fence: bool,
    /// The units that are the log's.
    pub(crate) log_chunks: LogChunks,
}

impl GroupMap {
    fn new(group: Group, pair: Pair) -> Self {
        let mut map = GroupMap {
            group,
            units: vec![Self::own()],
            taken: vec![UnitBits::default()],
            pending: vec![UnitBits::default()],
            has_space: vec![false],
            bitmaps: vec![pair; group.bitmaps_in_use() as usize],
            tables: vec![pair; group.unit_tables_in_use() as usize],
        };
        map.taken[0] = [u64::MAX; UNIT_WORDS];
        map
    }

    /// The unit that has a group's own blocks.
    fn own() -> AllocationUnit {
        AllocationUnit { purpose: Purpose::Group, ..AllocationUnit::default() }
    }

    /// Makes the group longer, if `group` is.
    fn extend(&mut self, group: Group) {
        assert!(
            self.group.first_unit == group.first_unit && self.group.units <= group.units,
            "{group:?} has become shorter"
        );
        if self.group.units == group.units {
            return;
        }
        // Its last blocks tell of more units now.
        let last = self.group.units as usize - 1;
        self.mark_bits(last);
        self.mark_unit(last);
        let new = Self::new(group, Pair::NEW);
        self.group = group;
        self.bitmaps.extend_from_slice(&new.bitmaps[self.bitmaps.len()..]);
        self.tables.extend_from_slice(&new.tables[self.tables.len()..]);
    }

    fn mark_bits(&mut self, index: usize) {
        self.bitmaps[index / BITMAP_UNITS as usize].dirty = true;
    }

    fn mark_unit(&mut self, index: usize) {
        self.tables[index / UNIT_TABLE_UNITS as usize].dirty = true;
    }

    fn changed(&mut self, segment: Uuid, epoch: u64, blocks: &mut Vec<(u64, Block)>) {
        for (index, pair) in self.bitmaps.iter_mut().enumerate().filter(|(_, pair)| pair.dirty) {
            *pair = Pair { copy: 1 - pair.copy, epoch, dirty: false, is_known: true };
            let first = index * BITMAP_UNITS as usize;
            let units = first..(self.group.units as usize).min(first + BITMAP_UNITS as usize);
            let bits = |unit: usize| match (self.taken.get(unit), self.pending.get(unit)) {
                (Some(taken), Some(pending)) => std::array::from_fn(|word| taken[word] & !pending[word]),
                _ => UnitBits::default(),
            };
            let bits: Vec<UnitBits> = units.map(bits).collect();
            let offset = self.group.bitmaps(index as u64)[pair.copy];
            blocks.push((offset, bitmap::to_block(segment, &bits, offset, epoch)));
        }
        for (index, pair) in self.tables.iter_mut().enumerate().filter(|(_, pair)| pair.dirty) {
            *pair = Pair { copy: 1 - pair.copy, epoch, dirty: false, is_known: true };
            let first = index * UNIT_TABLE_UNITS as usize;
            let units = first..(self.group.units as usize).min(first + UNIT_TABLE_UNITS as usize);
            let units: Vec<AllocationUnit> =
                units.map(|unit| self.units.get(unit).copied().unwrap_or_default()).collect();
            let offset = self.group.unit_tables(index as u64)[pair.copy];
            blocks.push((offset, unit_table::to_block(segment, &units, offset, epoch)));
        }
    }
}

impl Allocator {
    /// An allocator in which only the groups' own blocks are taken.
    pub(crate) fn new(groups: &[Group]) -> Self {
        Self::of(groups.iter().map(|group| GroupMap::new(*group, Pair::NEW)).collect(), 0)
    }

    fn of(groups: Vec<GroupMap>, write_fence: u64) -> Self {
        let mut allocator = Allocator {
            groups,
            free: FreeUnits::default(),
            unused_units: 0,
            usable_end: 0,
            reserved: 0,
            parts: PartUnits::default(),
            in_use: BTreeSet::new(),
            write_fence: 0..write_fence,
            hit_write_fence: false,
            log_chunks: LogChunks::default(),
        };
        allocator.usable_end = allocator.end();
        allocator.find_unused();
        allocator.parts = allocator.find_parts();
        allocator
    }

    /// All units that are taken in part.
    fn find_parts(&self) -> PartUnits {
        let mut parts = PartUnits::new(self.write_fence.start);
        for map in &self.groups {
            let units = map.units.iter().zip(&map.taken).zip(map.group.first_unit..);
            units.for_each(|((of, bits), unit)| parts.insert(unit, *of, bits));
        }
        parts
    }

    /// Changes the taken blocks of a unit, or its purpose.
    fn change<Answer>(&mut self, unit: u64, change: impl FnOnce(&mut GroupMap, usize) -> Answer) -> Option<Answer> {
        let (group, index) = self.reach(unit)?;
        let map = &mut self.groups[group];
        self.parts.remove(unit, map.units[index], &map.taken[index]);
        let answer = change(map, index);
        self.parts.insert(unit, map.units[index], &map.taken[index]);
        Some(answer)
    }

    /// Makes groups longer and adds groups. Returns the new units, which are not taken before [`Self::use_units`].
    pub(crate) fn extend(&mut self, groups: &[Group]) -> Range<u64> {
        let end_of = |maps: &[GroupMap]| maps.last().map_or(0, |map| map.group.end());
        let old_end = end_of(&self.groups);
        for (index, group) in groups.iter().enumerate() {
            match self.groups.get_mut(index) {
                Some(map) => map.extend(*group),
                None => {
                    self.groups.push(GroupMap::new(*group, Pair::NEW));
                    self.parts.insert(group.first_unit, GroupMap::own(), &[u64::MAX; UNIT_WORDS]);
                }
            }
        }
        old_end..end_of(&self.groups)
    }

    /// Makes new units free.
    pub(crate) fn use_units(&mut self, units: Range<u64>) {
        self.usable_end = self.usable_end.max(units.end);
        (units.start..units.end.min(self.write_fence.end)).for_each(|unit| self.give_up_if_empty(unit));
        self.find_unused();
    }

    /// The number of units of all groups.
    pub(crate) fn units_in_all(&self) -> u64 {
        self.groups.iter().map(|map| map.group.units).sum()
    }

    /// Reads the committed state, with that write fence. `read` returns a block's newest copy that is no newer than the commit. It does not
    /// read blocks of units from `needed` on.
    pub(crate) fn read<E>(
        groups: &[Group],
        write_fence: u64,
        needed: u64,
        mut read: impl FnMut(Kind, [u64; 2]) -> Result<Newest, E>,
        damaged: impl Fn(u64, Damage) -> E,
    ) -> Result<Self, E> {
        let mut maps = Vec::new();
        for group in groups {
            let mut map = GroupMap::new(*group, Pair::UNKNOWN);
            map.reach(group.units_below(write_fence) as usize);
            for index in 0..group.bitmaps_below(needed) as usize {
                let offsets = group.bitmaps(index as u64);
                let Newest { copy, block, other_is_newer } = read(Kind::Bitmap, offsets)?;
                let bits = unseal(&block.0, Kind::Bitmap, offsets[copy])
                    .and_then(|sealed| Ok((sealed.epoch, bitmap::from_block(&sealed)?)));
                let (epoch, bits) = bits.map_err(|damage| damaged(offsets[copy], damage))?;
                let first = index * BITMAP_UNITS as usize;
                for (unit, bits) in (first..).zip(bits) {
                    if unit < map.taken.len() || bits != UnitBits::default() {
                        map.reach(unit + 1);
                        map.taken[unit] = bits;
                    }
                }
                map.bitmaps[index] = Pair { copy, epoch, dirty: other_is_newer, is_known: true };
            }
            for index in 0..group.unit_tables_below(needed) as usize {
                let offsets = group.unit_tables(index as u64);
                let Newest { copy, block, other_is_newer } = read(Kind::UnitTable, offsets)?;
                let units = unseal(&block.0, Kind::UnitTable, offsets[copy])
                    .and_then(|sealed| Ok((sealed.epoch, unit_table::from_block(&sealed)?)));
                let (epoch, units) = units.map_err(|damage| damaged(offsets[copy], damage))?;
                let first = index * UNIT_TABLE_UNITS as usize;
                for (place, unit) in (first..).zip(units) {
                    if place < map.units.len() || unit != AllocationUnit::default() {
                        map.reach(place + 1);
                        map.units[place] = unit;
                    }
                }
                map.tables[index] = Pair { copy, epoch, dirty: other_is_newer, is_known: true };
            }
            maps.push(map);
        }
        Ok(Self::of(maps, write_fence))
    }

    /// Finds the free units, once all blocks known as taken have their marks. A unit without taken blocks is free, whatever the table says:
    /// its blocks were of a commit that never came.
    pub(crate) fn find_free_units(&mut self) {
        let mut found = Vec::new();
        for map in &mut self.groups {
            for index in 0..map.units.len() {
                if map.taken[index] == UnitBits::default() {
                    if map.units[index].purpose != Purpose::Free {
                        map.units[index] = AllocationUnit::default();
                        map.mark_unit(index);
                    }
                    found.push(map.group.first_unit + index as u64);
                }
            }
        }
        self.free = FreeUnits::default();
        found.into_iter().for_each(|unit| self.add_free(unit));
        self.find_unused();
        self.parts = self.find_parts();
        self.log_chunks = LogChunks::default();
        let units = self.groups.iter().flat_map(|map| map.units.iter().zip(map.group.first_unit..));
        for (unit, number) in units.filter(|(unit, _)| unit.purpose == Purpose::Log) {
            self.log_chunks.begin(number, u64::from(unit.garbage));
        }
    }

    fn place(&self, unit: u64) -> Option<(usize, usize)> {
        let group = self.groups.iter().position(|map| map.group.contains(unit))?;
        Some((group, (unit - self.groups[group].group.first_unit) as usize))
    }

    /// Whether a unit may be a chunk of the log: it is one, or it is free and may have been taken since the last commit. A former own
    /// unit of a group may be one as well: it comes free when former owners are forgotten.
    pub(crate) fn may_be_chunk(&self, unit: u64) -> bool {
        self.place(unit).is_some_and(|(group, index)| {
            let map = &self.groups[group];
            let purpose = map.units.get(index).map_or(Purpose::Free, |unit| unit.purpose);
            let is_own = || self.groups.iter().any(|map| map.group.own_unit == unit);
            purpose == Purpose::Log
                || map.taken.get(index).is_none_or(|bits| *bits == UnitBits::default())
                || (purpose == Purpose::Group && !is_own())
        })
    }

    /// How many units are taken.
    pub(crate) fn taken_units(&self) -> u64 {
        self.parts.taken()
    }

    /// All units that may have been taken, with their purposes.
    pub(crate) fn units(&self) -> impl Iterator<Item = (u64, AllocationUnit)> + '_ {
        self.groups.iter().flat_map(|map| {
            map.units.iter().enumerate().map(move |(index, unit)| (map.group.first_unit + index as u64, *unit))
        })
    }

    /// Reserves free units, to be taken later. There are as many.
    pub(crate) fn reserve(&mut self, units: u64) {
        debug_assert!(units <= self.free_units(), "{units} of {} units", self.free_units());
        self.reserved += units.min(self.free_units());
    }

    /// Gives reserved units up.
    pub(crate) fn cancel(&mut self, units: u64) {
        debug_assert!(units <= self.reserved, "{units} of {} reserved units", self.reserved);
        self.reserved -= units;
    }

    /// Takes a free unit that is not reserved. The last ones are kept for the segment's own blocks.
    fn pop_free_unit(&mut self, purpose: Purpose) -> Option<u64> {
        let is_own = purpose == Purpose::Segment;
        let kept = if is_own { 0 } else { OWN_UNITS };
        if self.free_units() <= kept {
            self.free.lacks_space = self.hollow_units() > 0;
            return None;
        }
        self.pop_writable_unit(is_own)
    }

    fn pop_writable_unit(&mut self, is_own: bool) -> Option<u64> {
        if !self.is_within_write_fence(is_own) {
            self.hit_write_fence = true;
            return None;
        }
        let unit = self.free.ready.first().copied()?;
        self.free.remove(unit);
        Some(unit)
    }

    /// Takes a whole unit for a chunk of the log; it is not pending. `former` says which commit ended the unit's previous generation.
    pub(crate) fn take_chunk(&mut self, former: impl FnOnce(u64) -> u64) -> Option<u64> {
        let unit = self.pop_free_unit(Purpose::Log)?;
        self.take_found_chunk(unit, former(unit));
        Some(unit)
    }

    /// Takes a reserved unit for a chunk of the log. There is one.
    pub(crate) fn take_reserved_chunk(&mut self, former: impl FnOnce(u64) -> u64) -> Option<u64> {
        let unit = self.pop_writable_unit(false)?;
        debug_assert!(self.reserved > 0, "unit {unit} was not reserved");
        self.reserved -= 1;
        self.take_found_chunk(unit, former(unit));
        Some(unit)
    }

    /// Marks a unit as a chunk that was found in the chain of the log. If no commit has it as a chunk, `former` or an earlier commit
    /// ended its previous generation.
    pub(crate) fn take_found_chunk(&mut self, unit: u64, former: u64) {
        let is_new = self.change(unit, |map, index| {
            let is_new = map.units[index].purpose != Purpose::Log;
            if is_new {
                map.units[index] =
                    AllocationUnit { purpose: Purpose::Log, former_epoch: former, ..AllocationUnit::default() };
            }
            map.taken[index] = [u64::MAX; UNIT_WORDS];
            map.pending[index] = UnitBits::default();
            map.mark_unit(index);
            map.mark_bits(index);
            is_new
        });
        let Some(is_new) = is_new else { return };
        self.free.remove(unit);
        if is_new {
            self.log_chunks.begin(unit, 0);
        }
        self.note_unused(unit);
    }

    /// Takes a block, which is pending; behind the cursor's last one if that is free.
    pub(crate) fn take_block(
        &mut self,
        cursor: &mut Cursor,
        purpose: Purpose,
        keyspace: u32,
    ) -> Option<(u64, Entered)> {
        let (taken, entered) = self.take_blocks(cursor, purpose, keyspace, 1)?;
        Some((taken.offset, entered))
    }

    /// Takes up to `most` blocks in a row, which are pending.
    pub(crate) fn take_blocks(
        &mut self,
        cursor: &mut Cursor,
        purpose: Purpose,
        keyspace: u32,
        most: u64,
    ) -> Option<(Extent, Entered)> {
        if let Some(unit) = cursor.unit {
            if let Some(taken) = self.take_blocks_of(unit, &mut cursor.next, most) {
                return Some((taken, Entered::No));
            }
            self.leave(cursor);
        }
        let (unit, entered) = match self.unit_to_reuse(purpose, keyspace) {
            Some(unit) => (unit, Entered::Again(self.free_blocks(unit))),
            None => {
                let unit = self.pop_free_unit(purpose)?;
                self.change(unit, |map, index| {
                    map.units[index] = AllocationUnit { purpose, keyspace, ..AllocationUnit::default() };
                    map.mark_unit(index);
                })?;
                (unit, Entered::New(unit))
            }
        };
        self.in_use.insert(unit);
        *cursor = Cursor { unit: Some(unit), next: 0 };
        let taken = self.take_blocks_of(unit, &mut cursor.next, most)?;
        Some((taken, entered))
    }

    /// The free blocks of a unit, as runs.
    fn free_blocks(&self, unit: u64) -> Vec<Freed> {
        let Some(bits) = self.place(unit).and_then(|(group, index)| self.groups[group].taken.get(index)) else {
            return Vec::new();
        };
        let mut free: Vec<Freed> = Vec::new();
        for block in (0..ALLOCATION_UNIT_BLOCKS).filter(|block| bits[*block as usize / 64] >> (block % 64) & 1 == 0) {
            let offset = unit * ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64;
            match free.last_mut() {
                Some(last) if last.offset + last.blocks * BLOCK_BYTES as u64 == offset => last.blocks += 1,
                _ => free.push(Freed { offset, blocks: 1 }),
            }
        }
        free
    }

    fn take_blocks_of(&mut self, unit: u64, next: &mut u64, most: u64) -> Option<Extent> {
        let (group, index) = self.reach(unit)?;
        let bits = &self.groups[group].taken[index];
        let is_free = |block: &u64| bits[*block as usize / 64] >> (block % 64) & 1 == 0;
        let first = (*next..ALLOCATION_UNIT_BLOCKS).find(is_free)?;
        let blocks = (first..ALLOCATION_UNIT_BLOCKS).take(most as usize).take_while(is_free).count() as u64;
        self.change(unit, |map, index| map.set(index, first, blocks, true))?;
        *next = first + blocks;
        Some(Extent { offset: unit * ALLOCATION_UNIT_BYTES + first * BLOCK_BYTES as u64, blocks })
    }

    fn unit_to_reuse(&self, purpose: Purpose, keyspace: u32) -> Option<u64> {
        // The segment's own blocks are few; and when space is short any unit will do.
        let any_will_do = purpose == Purpose::Segment || self.free_units_with_holes() <= OWN_UNITS;
        let least = if any_will_do { 1 } else { REUSE_BLOCKS_MIN };
        let is_there = |unit: &u64| self.write_fence.contains(unit) && !self.in_use.contains(unit);
        let by_space = self.parts.with_space((purpose, keyspace), least..).rev().map(|(_, unit)| unit);
        by_space.into_iter().find(is_there)
    }

    /// Takes a cursor out of its unit.
    pub(crate) fn leave(&mut self, cursor: &mut Cursor) {
        if let Some(unit) = cursor.unit.take() {
            self.in_use.remove(&unit);
            self.give_up_if_empty(unit);
        }
    }

    /// Frees blocks.
    pub(crate) fn free(&mut self, freed: Freed) {
        let first = freed.offset / BLOCK_BYTES as u64;
        let blocks = first..first + freed.blocks;
        for unit in first / ALLOCATION_UNIT_BLOCKS..blocks.end.div_ceil(ALLOCATION_UNIT_BLOCKS) {
            let of_unit = |block: u64| {
                block.clamp(unit * ALLOCATION_UNIT_BLOCKS, (unit + 1) * ALLOCATION_UNIT_BLOCKS)
                    - unit * ALLOCATION_UNIT_BLOCKS
            };
            let (from, to) = (of_unit(blocks.start), of_unit(blocks.end));
            self.change(unit, |map, index| map.clear(index, from, to - from));
            self.give_up_if_empty(unit);
        }
    }

    fn give_up_if_empty(&mut self, unit: u64) {
        let Some((group, index)) = self.reach(unit) else { return };
        let map = &self.groups[group];
        if map.taken[index] != UnitBits::default() || self.in_use.contains(&unit) {
            return;
        }
        if map.units[index].purpose != Purpose::Free {
            self.change(unit, |map, index| {
                map.units[index] = AllocationUnit::default();
                map.mark_unit(index);
            });
            self.log_chunks.end(unit);
        }
        self.add_free(unit);
        self.note_unused(unit);
    }

    /// Counts bytes of a unit as garbage.
    pub(crate) fn add_garbage(&mut self, unit: u64, bytes: u32) {
        if let Some((group, index)) = self.reach(unit) {
            let map = &mut self.groups[group];
            // After a crash some bytes are counted again.
            map.units[index].garbage = map.units[index].garbage.saturating_add(bytes).min(ALLOCATION_UNIT_BYTES as u32);
            map.mark_unit(index);
            self.log_chunks.add_garbage(unit, u64::from(bytes));
        }
    }

    /// The epochs of the newest copies of the allocator's blocks, without those that tell only of units beyond `write_fence`.
    pub(crate) fn epochs(&self, write_fence: u64) -> impl Iterator<Item = u64> + '_ {
        let pairs = self.groups.iter().flat_map(move |map| {
            let bitmaps = map.bitmaps.iter().take(map.group.bitmaps_below(write_fence) as usize);
            bitmaps.chain(map.tables.iter().take(map.group.unit_tables_below(write_fence) as usize))
        });
        pairs.map(|pair| pair.epoch)
    }

    /// The changes since the last commit, as blocks of the next one, with that write fence. They count as written.
    pub(crate) fn changed(&mut self, segment: Uuid, epoch: u64, write_fence: u64) -> Changed {
        let (mut blocks, mut unused) = (Vec::new(), Vec::new());
        for map in &mut self.groups {
            unused.extend(map.unused_blocks(segment, epoch, write_fence));
            map.changed(segment, epoch, &mut blocks);
        }
        Changed { blocks, unused }
    }
}

#[cfg(test)]
mod tests;
