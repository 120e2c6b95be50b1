//! Which units and blocks of a segment are taken.
//!
//! What has been taken since the last commit, and is part of no commit yet, is *pending*: the device's bitmap does not have it,
//! so that it is free again if the commit never comes. Chunks of the log are never pending; recovery finds them by their chain.

use std::collections::BTreeSet;

use crate::device::Newest;
use crate::error::Damage;
use crate::format::bitmap::{self, UNIT_WORDS, UnitBits};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::free_log::Freed;
use crate::format::geometry::{BITMAP_UNITS, BLOCK_BYTES, Group, UNIT_BLOCKS, UNIT_BYTES, UNIT_TABLE_UNITS, unit_of};
use crate::format::superblock::AllocatorEpochs;
use crate::format::unit_table::{self, Purpose, Unit};
use crate::volume::reserve::OWN_UNITS;

/// A unit with fewer free blocks than this is not gone back to: what is written there would not lie together.
const REUSE_BLOCKS_MIN: u32 = 128;

/// Where somebody who takes blocks one by one goes on.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    unit: Option<u64>,
    next: u64,
}

/// Whether a cursor that took a block has come to another unit by it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It stands where it stood.
    No,
    /// It is in a unit that nobody had.
    New(u64),
    /// It is in a unit of which these blocks were free, the one that was taken among them.
    Again(Vec<Freed>),
}

/// A block of the bitmap or of the unit table, which lies there twice.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Which copy is the newest that was committed.
    copy: usize,
    epoch: u64,
    dirty: bool,
}

/// What a commit has to write of the allocator.
pub(crate) struct Changed {
    /// Blocks, and where they go.
    pub(crate) blocks: Vec<(u64, Block)>,
}

struct GroupMap {
    group: Group,
    units: Vec<Unit>,
    taken: Vec<UnitBits>,
    pending: Vec<UnitBits>,
    bitmaps: Vec<Pair>,
    tables: Vec<Pair>,
}

/// The allocator of a segment.
pub(crate) struct Allocator {
    groups: Vec<GroupMap>,
    free_units: BTreeSet<u64>,
    /// Units that a cursor stands in.
    in_use: BTreeSet<u64>,
}

impl GroupMap {
    fn new(group: Group) -> Self {
        let units = group.units as usize;
        let mut map = GroupMap {
            group,
            units: vec![Unit::default(); units],
            taken: vec![UnitBits::default(); units],
            pending: vec![UnitBits::default(); units],
            bitmaps: vec![Pair { copy: 1, epoch: 0, dirty: true }; group.bitmaps_in_use() as usize],
            tables: vec![Pair { copy: 1, epoch: 0, dirty: true }; group.unit_tables_in_use() as usize],
        };
        map.units[0].purpose = Purpose::Group;
        map.taken[0] = [u64::MAX; UNIT_WORDS];
        map
    }

    fn contains(&self, unit: u64) -> bool {
        (self.group.first_unit..self.group.first_unit + self.group.units).contains(&unit)
    }

    fn mark_bits(&mut self, index: usize) {
        self.bitmaps[index / BITMAP_UNITS as usize].dirty = true;
    }

    fn mark_unit(&mut self, index: usize) {
        self.tables[index / UNIT_TABLE_UNITS as usize].dirty = true;
    }

    fn changed(&mut self, segment: Uuid, epoch: u64, blocks: &mut Vec<(u64, Block)>) {
        for (index, pair) in self.bitmaps.iter_mut().enumerate().filter(|(_, pair)| pair.dirty) {
            *pair = Pair { copy: 1 - pair.copy, epoch, dirty: false };
            let first = index * BITMAP_UNITS as usize;
            let units = first..self.units.len().min(first + BITMAP_UNITS as usize);
            let bits = |unit: usize| std::array::from_fn(|word| self.taken[unit][word] & !self.pending[unit][word]);
            let bits: Vec<UnitBits> = units.map(bits).collect();
            let offset = self.group.bitmaps(index as u64)[pair.copy];
            blocks.push((offset, bitmap::to_block(segment, &bits, offset, epoch)));
        }
        for (index, pair) in self.tables.iter_mut().enumerate().filter(|(_, pair)| pair.dirty) {
            *pair = Pair { copy: 1 - pair.copy, epoch, dirty: false };
            let first = index * UNIT_TABLE_UNITS as usize;
            let units = first..self.units.len().min(first + UNIT_TABLE_UNITS as usize);
            let offset = self.group.unit_tables(index as u64)[pair.copy];
            blocks.push((offset, unit_table::to_block(segment, &self.units[units], offset, epoch)));
        }
    }
}

impl Allocator {
    /// Of groups in which nothing is taken but what the groups need themselves.
    pub(crate) fn new(groups: &[Group]) -> Self {
        let mut allocator = Allocator {
            groups: groups.iter().copied().map(GroupMap::new).collect(),
            free_units: BTreeSet::new(),
            in_use: BTreeSet::new(),
        };
        allocator.find_free_units();
        allocator
    }

    /// As it was committed: `read` gives the newest copy of a block, of those not newer than the commit.
    pub(crate) fn read<E>(
        groups: &[Group],
        mut read: impl FnMut(Kind, [u64; 2]) -> Result<Newest, E>,
        damaged: impl Fn(u64, Damage) -> E,
    ) -> Result<Self, E> {
        let mut maps = Vec::new();
        for group in groups {
            let mut map = GroupMap::new(*group);
            for index in 0..map.bitmaps.len() {
                let offsets = group.bitmaps(index as u64);
                let Newest { copy, block, other_is_newer } = read(Kind::Bitmap, offsets)?;
                let bits = unseal(&block.0, Kind::Bitmap, offsets[copy])
                    .and_then(|sealed| Ok((sealed.epoch, bitmap::from_block(&sealed)?)));
                let (epoch, bits) = bits.map_err(|damage| damaged(offsets[copy], damage))?;
                let first = index * BITMAP_UNITS as usize;
                for (place, bits) in map.taken[first..].iter_mut().zip(bits) {
                    *place = bits;
                }
                map.bitmaps[index] = Pair { copy, epoch, dirty: other_is_newer };
            }
            for index in 0..map.tables.len() {
                let offsets = group.unit_tables(index as u64);
                let Newest { copy, block, other_is_newer } = read(Kind::UnitTable, offsets)?;
                let units = unseal(&block.0, Kind::UnitTable, offsets[copy])
                    .and_then(|sealed| Ok((sealed.epoch, unit_table::from_block(&sealed)?)));
                let (epoch, units) = units.map_err(|damage| damaged(offsets[copy], damage))?;
                let first = index * UNIT_TABLE_UNITS as usize;
                for (place, unit) in map.units[first..].iter_mut().zip(units) {
                    *place = unit;
                }
                map.tables[index] = Pair { copy, epoch, dirty: other_is_newer };
            }
            maps.push(map);
        }
        Ok(Allocator { groups: maps, free_units: BTreeSet::new(), in_use: BTreeSet::new() })
    }

    /// Finds out which units are free, once all that is known to be taken is marked. A unit without a block that is taken is,
    /// whatever the table says: its blocks were of a commit that never came.
    pub(crate) fn find_free_units(&mut self) {
        self.free_units.clear();
        for map in &mut self.groups {
            for index in 0..map.units.len() {
                if map.taken[index] == UnitBits::default() {
                    if map.units[index].purpose != Purpose::Free {
                        map.units[index] = Unit::default();
                        map.mark_unit(index);
                    }
                    self.free_units.insert(map.group.first_unit + index as u64);
                }
            }
        }
    }

    fn place(&self, unit: u64) -> Option<(usize, usize)> {
        let group = self.groups.iter().position(|map| map.contains(unit))?;
        Some((group, (unit - self.groups[group].group.first_unit) as usize))
    }

    /// Whether a unit is the log's, or free for it to have been taken since the last commit.
    pub(crate) fn may_be_chunk(&self, unit: u64) -> bool {
        self.place(unit).is_some_and(|(group, index)| {
            let map = &self.groups[group];
            map.units[index].purpose == Purpose::Log || map.taken[index] == UnitBits::default()
        })
    }

    /// All units and what they are for.
    pub(crate) fn units(&self) -> impl Iterator<Item = (u64, Unit)> + '_ {
        self.groups.iter().flat_map(|map| {
            map.units.iter().enumerate().map(move |(index, unit)| (map.group.first_unit + index as u64, *unit))
        })
    }

    /// How many units nobody has.
    pub(crate) fn free_units(&self) -> u64 {
        self.free_units.len() as u64
    }

    /// A free unit, but for those that are the segment's own.
    fn pop_free_unit(&mut self, purpose: Purpose) -> Option<u64> {
        let is_own = purpose == Purpose::Segment;
        if is_own || self.free_units() > OWN_UNITS { self.free_units.pop_first() } else { None }
    }

    /// Takes a whole unit for a chunk of the log, nothing of which is pending. `former` says which commit ended its former life.
    pub(crate) fn take_chunk(&mut self, former: impl FnOnce(u64) -> u64) -> Option<u64> {
        let unit = self.pop_free_unit(Purpose::Log)?;
        self.take_found_chunk(unit, former(unit));
        Some(unit)
    }

    /// Marks a whole unit as a chunk that was found in the chain of the log. If no commit has it as that, then `former` or an
    /// earlier one ended its former life.
    pub(crate) fn take_found_chunk(&mut self, unit: u64, former: u64) {
        let Some((group, index)) = self.place(unit) else { return };
        self.free_units.remove(&unit);
        let map = &mut self.groups[group];
        if map.units[index].purpose != Purpose::Log {
            map.units[index] = Unit { purpose: Purpose::Log, former_epoch: former, ..Unit::default() };
        }
        map.taken[index] = [u64::MAX; UNIT_WORDS];
        map.pending[index] = UnitBits::default();
        map.mark_unit(index);
        map.mark_bits(index);
    }

    /// Takes a block, which is pending; behind the cursor's last one if there is room.
    pub(crate) fn take_block(&mut self, cursor: &mut Cursor, purpose: Purpose, region: u32) -> Option<(u64, Entered)> {
        if let Some(unit) = cursor.unit {
            if let Some(offset) = self.take_block_of(unit, &mut cursor.next) {
                return Some((offset, Entered::No));
            }
            self.leave(cursor);
        }
        let (unit, entered) = match self.unit_to_reuse(purpose, region) {
            Some(unit) => (unit, Entered::Again(self.free_blocks(unit))),
            None => {
                let unit = self.pop_free_unit(purpose)?;
                let (group, index) = self.place(unit)?;
                let map = &mut self.groups[group];
                map.units[index] = Unit { purpose, region, ..Unit::default() };
                map.mark_unit(index);
                (unit, Entered::New(unit))
            }
        };
        self.in_use.insert(unit);
        *cursor = Cursor { unit: Some(unit), next: 0 };
        let offset = self.take_block_of(unit, &mut cursor.next)?;
        Some((offset, entered))
    }

    /// The free blocks of a unit, neighbours together.
    fn free_blocks(&self, unit: u64) -> Vec<Freed> {
        let Some((group, index)) = self.place(unit) else { return Vec::new() };
        let bits = &self.groups[group].taken[index];
        let mut free: Vec<Freed> = Vec::new();
        for block in (0..UNIT_BLOCKS).filter(|block| bits[*block as usize / 64] >> (block % 64) & 1 == 0) {
            let offset = unit * UNIT_BYTES + block * BLOCK_BYTES as u64;
            match free.last_mut() {
                Some(last) if last.offset + last.blocks * BLOCK_BYTES as u64 == offset => last.blocks += 1,
                _ => free.push(Freed { offset, blocks: 1 }),
            }
        }
        free
    }

    fn take_block_of(&mut self, unit: u64, next: &mut u64) -> Option<u64> {
        let (group, index) = self.place(unit)?;
        let map = &mut self.groups[group];
        let block =
            (*next..UNIT_BLOCKS).find(|block| map.taken[index][*block as usize / 64] >> (block % 64) & 1 == 0)?;
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        map.taken[index][word] |= bit;
        map.pending[index][word] |= bit;
        map.mark_bits(index);
        *next = block + 1;
        Some(unit * UNIT_BYTES + block * BLOCK_BYTES as u64)
    }

    fn unit_to_reuse(&self, purpose: Purpose, region: u32) -> Option<u64> {
        // The segment's own blocks are few, and when room is short any will do.
        let any_will_do = purpose == Purpose::Segment || self.free_units() <= OWN_UNITS;
        let least = if any_will_do { 1 } else { REUSE_BLOCKS_MIN };
        let free = |bits: &UnitBits| UNIT_BLOCKS as u32 - bits.iter().map(|word| word.count_ones()).sum::<u32>();
        let candidates = self.groups.iter().flat_map(|map| {
            let first = map.group.first_unit;
            let units = map.units.iter().zip(&map.taken).enumerate();
            units.map(move |(index, (unit, bits))| (first + index as u64, unit, bits))
        });
        candidates
            .filter(|(unit, of, _)| of.purpose == purpose && of.region == region && !self.in_use.contains(unit))
            .map(|(unit, _, bits)| (free(bits), unit))
            .filter(|(free, _)| *free >= least)
            .max()
            .map(|(_, unit)| unit)
    }

    /// Has a cursor stand nowhere.
    pub(crate) fn leave(&mut self, cursor: &mut Cursor) {
        if let Some(unit) = cursor.unit.take() {
            self.in_use.remove(&unit);
            self.give_up_if_empty(unit);
        }
    }

    /// Blocks that are part of the next commit.
    pub(crate) fn commit_blocks(&mut self, offsets: &[u64]) {
        for offset in offsets {
            let Some((group, index)) = self.place(unit_of(*offset)) else { continue };
            let block = offset % UNIT_BYTES / BLOCK_BYTES as u64;
            let map = &mut self.groups[group];
            map.pending[index][block as usize / 64] &= !(1 << (block % 64));
            map.mark_bits(index);
        }
    }

    /// Gives blocks back.
    pub(crate) fn free(&mut self, freed: Freed) {
        let first = freed.offset / BLOCK_BYTES as u64;
        let blocks = first..first + freed.blocks;
        for block in blocks.clone() {
            let Some((group, index)) = self.place(block / UNIT_BLOCKS) else { continue };
            let map = &mut self.groups[group];
            let (word, bit) = ((block % UNIT_BLOCKS) as usize / 64, 1_u64 << (block % 64));
            map.taken[index][word] &= !bit;
            map.pending[index][word] &= !bit;
            map.mark_bits(index);
        }
        for unit in first / UNIT_BLOCKS..blocks.end.div_ceil(UNIT_BLOCKS) {
            self.give_up_if_empty(unit);
        }
    }

    fn give_up_if_empty(&mut self, unit: u64) {
        let Some((group, index)) = self.place(unit) else { return };
        let map = &mut self.groups[group];
        if map.taken[index] != UnitBits::default() || self.in_use.contains(&unit) {
            return;
        }
        if map.units[index].purpose != Purpose::Free {
            map.units[index] = Unit::default();
            map.mark_unit(index);
        }
        self.free_units.insert(unit);
    }

    /// Counts bytes of a unit that nobody refers to any longer.
    pub(crate) fn add_garbage(&mut self, unit: u64, bytes: u32) {
        if let Some((group, index)) = self.place(unit) {
            let map = &mut self.groups[group];
            // After a crash some is counted again.
            map.units[index].garbage = map.units[index].garbage.saturating_add(bytes).min(UNIT_BYTES as u32);
            map.mark_unit(index);
        }
    }

    /// Of which epochs the newest copies of its blocks are.
    pub(crate) fn epochs(&self) -> AllocatorEpochs {
        let pairs = self.groups.iter().flat_map(|map| map.bitmaps.iter().chain(&map.tables));
        AllocatorEpochs::of(pairs.map(|pair| pair.epoch))
    }

    /// What has changed since the last commit, as blocks of the next one. They count as written.
    pub(crate) fn changed(&mut self, segment: Uuid, epoch: u64) -> Changed {
        let mut blocks = Vec::new();
        for map in &mut self.groups {
            map.changed(segment, epoch, &mut blocks);
        }
        Changed { blocks }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;

    use super::*;

    const SEGMENT: Uuid = Uuid([3; 16]);

    fn group(units: u64) -> Vec<Group> {
        vec![Group { first_unit: 1, units }]
    }

    /// Writes what has changed, and reads it back as a commit of that epoch.
    fn reopen(device: &mut HashMap<u64, Block>, allocator: &mut Allocator, groups: &[Group], epoch: u64) -> Allocator {
        device.extend(allocator.changed(SEGMENT, epoch).blocks);
        let newest = |kind: Kind, offsets: [u64; 2]| {
            let epoch_of = |copy: usize| {
                let block = device.get(&offsets[copy])?;
                let sealed = unseal(&block.0, kind, offsets[copy]).ok()?;
                (sealed.epoch <= epoch).then_some(sealed.epoch)
            };
            let copy = (0..2).max_by_key(|copy| epoch_of(*copy)).expect("there are two");
            Ok::<_, Damage>(Newest { copy, block: Box::new(device[&offsets[copy]]), other_is_newer: false })
        };
        let mut read = Allocator::read(groups, newest, |_, damage| damage).expect("whole");
        read.find_free_units();
        read
    }

    proptest! {
        #[test]
        fn what_is_taken_is_taken_once_and_what_was_committed_comes_back(steps in proptest::collection::vec(0_u8..6, 1..200)) {
            let groups = group(12);
            let mut allocator = Allocator::new(&groups);
            let mut device = HashMap::new();
            let (mut cursors, mut epoch) = ([Cursor::default(), Cursor::default()], 0);
            // Block by offset, and whether a commit has it.
            let mut taken: BTreeMap<u64, bool> = BTreeMap::new();
            let mut units: BTreeSet<u64> = BTreeSet::new();
            for step in steps {
                match step {
                    0 | 1 => {
                        let (cursor, purpose) = (&mut cursors[usize::from(step)], Purpose::Leaves(step));
                        for _ in 0..200 {
                            let Some((offset, _)) = allocator.take_block(cursor, purpose, 1) else { break };
                            prop_assert!(taken.insert(offset, false).is_none(), "{offset} was taken");
                            prop_assert!(!units.contains(&unit_of(offset)));
                        }
                    }
                    2 => {
                        if let Some(unit) = allocator.take_chunk(|_| 7) {
                            prop_assert!(units.insert(unit));
                            prop_assert!(taken.keys().all(|offset| unit_of(*offset) != unit));
                        }
                    }
                    3 => {
                        let some: Vec<u64> = taken.keys().copied().step_by(3).collect();
                        for offset in some {
                            allocator.free(Freed { offset, blocks: 1 });
                            taken.remove(&offset);
                        }
                    }
                    4 => {
                        if let Some(unit) = units.pop_first() {
                            allocator.free(Freed { offset: unit * UNIT_BYTES, blocks: UNIT_BLOCKS });
                        }
                    }
                    _ => {
                        let new: Vec<u64> = taken.iter().filter(|(_, is)| !**is).map(|(offset, _)| *offset).collect();
                        let some: Vec<u64> = new.into_iter().step_by(2).collect();
                        allocator.commit_blocks(&some);
                        some.iter().for_each(|offset| { taken.insert(*offset, true); });
                        epoch += 1;
                        let read = reopen(&mut device, &mut allocator, &groups, epoch);
                        for (unit, _) in read.units().skip(1) {
                            let (group, index) = read.place(unit).expect("it is of the group");
                            let bits = read.groups[group].taken[index];
                            for block in 0..UNIT_BLOCKS {
                                let offset = unit * UNIT_BYTES + block * BLOCK_BYTES as u64;
                                let is_taken = bits[block as usize / 64] >> (block % 64) & 1 == 1;
                                let expected = units.contains(&unit) || taken.get(&offset) == Some(&true);
                                prop_assert_eq!(is_taken, expected, "block {} of unit {}", block, unit);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn units_come_free_when_their_last_block_does() {
        let mut allocator = Allocator::new(&group(4));
        assert_eq!(allocator.free_units(), 3);
        let mut cursor = Cursor::default();
        let offsets: Vec<u64> = (0..600)
            .map_while(|_| allocator.take_block(&mut cursor, Purpose::Leaves(1), 7))
            .map(|(at, _)| at)
            .collect();
        assert_eq!((offsets.len(), allocator.free_units()), (600, 1));
        for offset in offsets {
            allocator.free(Freed { offset, blocks: 1 });
        }
        assert_eq!(allocator.free_units(), 2, "the cursor stands in the other");
        allocator.leave(&mut cursor);
        assert_eq!(allocator.free_units(), 3);
    }

    #[test]
    fn what_something_else_has_is_no_chunk() {
        let mut allocator = Allocator::new(&group(4));
        let log = allocator.take_chunk(|_| 0).expect("a unit");
        let (node, _) = allocator.take_block(&mut Cursor::default(), Purpose::Leaves(1), 1).expect("a block");
        let may_be: Vec<u64> = (0..9).filter(|unit| allocator.may_be_chunk(*unit)).collect();
        assert_eq!((log, unit_of(node), may_be), (2, 3, vec![2, 4]), "unit 0 is the volume's, and 1 the group's own");
    }

    #[test]
    fn a_full_segment_says_so() {
        let mut allocator = Allocator::new(&group(3));
        assert!(allocator.take_chunk(|_| 0).is_some());
        assert!(allocator.take_chunk(|_| 0).is_none());
        assert!(allocator.take_block(&mut Cursor::default(), Purpose::Leaves(1), 1).is_none());
        assert!(
            allocator.take_block(&mut Cursor::default(), Purpose::Segment, 0).is_some(),
            "for commits there is room"
        );
    }
}
