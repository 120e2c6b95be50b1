//! Tests of the allocator: it takes each block once, and after a reopening it has all committed blocks.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::format::extents::Extent;
use crate::format::geometry::{GROUP_UNITS_MAX, unit_of};

const SEGMENT: Uuid = Uuid::from_bytes([3; 16]);

fn group(units: u64) -> Vec<Group> {
    vec![Group::new(1, units)]
}

/// Writes the changed blocks, and reads them back as a commit of that epoch.
fn reopen(device: &mut HashMap<u64, Block>, allocator: &mut Allocator, groups: &[Group], epoch: u64) -> Allocator {
    device.extend(allocator.changed(SEGMENT, epoch, u64::MAX).blocks);
    let newest = |kind: Kind, offsets: [u64; 2]| {
        let epoch_of = |copy: usize| {
            let block = device.get(&offsets[copy])?;
            let sealed = unseal(&block.0, kind, offsets[copy]).ok()?;
            (sealed.epoch <= epoch).then_some(sealed.epoch)
        };
        let copy = (0..2).max_by_key(|copy| epoch_of(*copy)).expect("there are two");
        Ok::<_, Damage>(Newest { copy, block: Box::new(device[&offsets[copy]]), other_is_newer: false })
    };
    let mut read = Allocator::read(groups, u64::MAX, u64::MAX, newest, |_, damage| damage).expect("whole");
    read.give_all_space();
    read.find_free_units();
    read
}

impl Allocator {
    /// How many blocks are taken.
    pub(crate) fn taken_blocks(&self) -> u64 {
        let bits = self.groups.iter().flat_map(|map| map.taken.iter().flatten());
        bits.map(|word| u64::from(word.count_ones())).sum()
    }
}

proptest! {
    #[test]
        fn blocks_are_taken_once_and_committed_ones_are_read_back(steps in proptest::collection::vec(0_u8..6, 1..200)) {
        let groups = group(12);
        let mut allocator = Allocator::with_space(&groups);
        let mut device = HashMap::new();
        let (mut cursors, mut epoch) = ([Cursor::default(), Cursor::default()], 0);
                // Blocks by offset, and whether a commit has them.
        let mut taken: BTreeMap<u64, bool> = BTreeMap::new();
        let mut units: BTreeSet<u64> = BTreeSet::new();
        for step in steps {
            match step {
                0 | 1 => {
                    let (cursor, purpose) = (&mut cursors[usize::from(step)], Purpose::Leaves(step));
                    for most in 1..20 {
                        let Some((run, _)) = allocator.take_blocks(cursor, purpose, 1, most) else { break };
                        prop_assert!((1..=most).contains(&run.blocks), "{run:?}");
                        prop_assert!(!units.contains(&unit_of(run.offset)));
                        for block in 0..run.blocks {
                            let offset = run.offset + block * BLOCK_BYTES as u64;
                            prop_assert_eq!(unit_of(offset), unit_of(run.offset));
                            prop_assert!(taken.insert(offset, false).is_none(), "{} was taken", offset);
                        }
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
                        allocator.free(Freed { offset: unit * ALLOCATION_UNIT_BYTES, blocks: ALLOCATION_UNIT_BLOCKS });
                    }
                }
                _ => {
                    let new: Vec<u64> = taken.iter().filter(|(_, is)| !**is).map(|(offset, _)| *offset).collect();
                    let some: Vec<u64> = new.into_iter().step_by(2).collect();
                    some.iter().for_each(|offset| allocator.commit_run(Extent { offset: *offset, blocks: 1 }));
                    some.iter().for_each(|offset| { taken.insert(*offset, true); });
                    epoch += 1;
                    let read = reopen(&mut device, &mut allocator, &groups, epoch);
                    for (unit, _) in read.units().skip(1) {
                        let (group, index) = read.place(unit).expect("it is of the group");
                        let bits = read.groups[group].taken[index];
                        for block in 0..ALLOCATION_UNIT_BLOCKS {
                            let offset = unit * ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64;
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
    let mut allocator = Allocator::with_space(&group(4));
    assert_eq!(allocator.free_units(), 3);
    let mut cursor = Cursor::default();
    let offsets: Vec<u64> =
        (0..600).map_while(|_| allocator.take_block(&mut cursor, Purpose::Leaves(1), 7)).map(|(at, _)| at).collect();
    assert_eq!((offsets.len(), allocator.free_units()), (600, 1));
    for offset in offsets {
        allocator.free(Freed { offset, blocks: 1 });
    }
    assert_eq!(allocator.free_units(), 2, "the cursor stands in the other");
    allocator.leave(&mut cursor);
    assert_eq!(allocator.free_units(), 3);
}

#[test]
fn a_segment_grows_within_its_group_and_beyond() {
    let small = group(70);
    let large = crate::format::geometry::grown(&small, small[0].end()..GROUP_UNITS_MAX + 10);
    let (mut device, mut allocator) = (HashMap::new(), Allocator::with_space(&small));
    let before: Vec<u64> = (0..60).filter_map(|_| allocator.take_chunk(|_| 0)).collect();
    drop(reopen(&mut device, &mut allocator, &small, 1));
    let new = allocator.extend(&large);
    assert_eq!(new, 71..GROUP_UNITS_MAX + 10);
    assert_eq!(allocator.free_units(), 70 - 1 - 60, "no new unit is taken before it is committed");
    let read = reopen(&mut device, &mut allocator, &large, 2);
    allocator.use_units(new);
    allocator.give_all_space();
    // All but the groups' own units and the taken ones; the second group has 9.
    for mut allocator in [allocator, read] {
        assert_eq!(allocator.free_units(), GROUP_UNITS_MAX + 9 - 2 - 60);
        let after: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
        let mut all: Vec<u64> = before.iter().chain(&after).copied().collect();
        all.sort_unstable();
        let mut wanted: Vec<u64> = (2..GROUP_UNITS_MAX + 10).filter(|unit| *unit != GROUP_UNITS_MAX + 1).collect();
        wanted.truncate(all.len());
        assert_eq!(all, wanted, "the last one is the segment's own");
    }
}

#[test]
fn discarded_units_cannot_be_taken_meanwhile() {
    let mut allocator = Allocator::with_space(&group(41));
    assert_eq!(allocator.begin_discard(41, 0), []);
    assert_eq!(allocator.begin_discard(20, 21), [], "21 are to be kept");
    let runs = allocator.begin_discard(20, 20);
    assert_eq!(runs.iter().cloned().flatten().collect::<Vec<_>>(), (22..42).collect::<Vec<_>>());
    assert_eq!(allocator.free_units(), 20, "units that are being discarded do not count");
    let taken: Vec<u64> = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).collect();
    assert_eq!(taken, (2..21).collect::<Vec<_>>(), "the last one is the segment's own");
    allocator.end_discard(runs);
    assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (1, 21));
    assert_eq!(allocator.begin_discard(2, 0), [], "once is enough");
    allocator.give_all_space();
    assert_eq!(allocator.free_units(), 21);
    for unit in [2, 3, 5] {
        allocator.free(Freed { offset: unit * ALLOCATION_UNIT_BYTES, blocks: ALLOCATION_UNIT_BLOCKS });
    }
    assert_eq!(allocator.begin_discard(4, 0), [21..22, 5..6, 2..4]);
}

#[test]
fn units_of_other_purposes_are_no_chunks() {
    let mut allocator = Allocator::with_space(&group(4));
    let log = allocator.take_chunk(|_| 0).expect("a unit");
    let (node, _) = allocator.take_block(&mut Cursor::default(), Purpose::Leaves(1), 1).expect("a block");
    let may_be: Vec<u64> = (0..9).filter(|unit| allocator.may_be_chunk(*unit)).collect();
    assert_eq!((log, unit_of(node), may_be), (2, 3, vec![2, 4]), "unit 0 is the volume's, and 1 the group's own");
}

#[test]
fn reserved_units_cannot_be_taken_by_others() {
    let mut allocator = Allocator::with_space(&group(41));
    allocator.reserve(10);
    assert_eq!(allocator.free_units(), 30);
    assert_eq!(allocator.begin_discard(31, 0), [], "reserved units stay");
    assert_eq!(allocator.begin_discard(4, 27), [], "and so do the kept ones");
    let chunks = std::iter::from_fn(|| allocator.take_chunk(|_| 0)).count();
    assert_eq!(chunks, 29, "the last one is the segment's own");
    assert!(allocator.take_block(&mut Cursor::default(), Purpose::Leaves(1), 1).is_none());
    assert!(allocator.take_runs(1, 20, |_| 1, u64::MAX).is_none());
    // A commit takes the last one, and no more.
    let mut cursor = Cursor::default();
    let own = (0..ALLOCATION_UNIT_BLOCKS + 1)
        .filter(|_| allocator.take_block(&mut cursor, Purpose::Segment, 0).is_some())
        .count();
    assert_eq!((own as u64, allocator.free_units()), (ALLOCATION_UNIT_BLOCKS, 0));
    allocator.cancel(3);
    assert_eq!(allocator.free_units(), 3);
    assert_eq!(std::iter::from_fn(|| allocator.take_chunk(|_| 0)).count(), 2);
    let reserved = (0..7).filter(|_| allocator.take_reserved_chunk(|_| 0).is_some()).count();
    assert_eq!((reserved, allocator.free_units()), (7, 1), "the reservation gets all of its units");
}

#[test]
fn the_write_fence_covers_reserved_units_to_the_last() {
    let mut allocator = Allocator::with_space(&group(12));
    allocator.set_write_fence(3);
    allocator.reserve(11);
    for _ in 0..11 {
        let mut taken = allocator.take_reserved_chunk(|_| 0);
        if taken.is_none() {
            assert!(allocator.take_hit_write_fence());
            allocator.set_write_fence(allocator.next_write_fence(true));
            taken = allocator.take_reserved_chunk(|_| 0);
        }
        assert!(taken.is_some(), "one extension is enough");
    }
    assert_eq!(allocator.free_units(), 0);
}

#[test]
fn a_full_segment_refuses_blocks() {
    let mut allocator = Allocator::with_space(&group(3));
    assert!(allocator.take_chunk(|_| 0).is_some());
    assert!(allocator.take_chunk(|_| 0).is_none());
    assert!(allocator.take_block(&mut Cursor::default(), Purpose::Leaves(1), 1).is_none());
    assert!(allocator.take_block(&mut Cursor::default(), Purpose::Segment, 0).is_some(), "for commits there is space");
}

#[test]
fn units_without_space_are_not_taken() {
    let mut allocator = Allocator::new(&group(6));
    allocator.set_write_fence(u64::MAX);
    assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (0, 5));
    assert!(allocator.take_chunk(|_| 0).is_none());
    assert!(allocator.take_lacks_space() && !allocator.take_lacks_space());
    for _ in 0..3 {
        let unit = allocator.next_without_space(false).expect("a unit");
        allocator.got_space(unit);
    }
    assert_eq!(allocator.take_chunk(|_| 0), Some(2));
    // The file system is full: one unit is known to be a hole, and the other may have space.
    allocator.got_no_space(5);
    assert_eq!(allocator.next_without_space(true), Some(6));
    allocator.know_if_full(true);
    assert_eq!((allocator.free_units(), allocator.free_units_with_holes()), (2, 2));
    allocator.got_space(6);
    assert_eq!((allocator.next_without_space(true), allocator.next_without_space(false)), (None, Some(5)));
    // A unit that comes free keeps its space until it is discarded.
    allocator.free(Freed { offset: 2 * ALLOCATION_UNIT_BYTES, blocks: ALLOCATION_UNIT_BLOCKS });
    assert_eq!(allocator.free_units(), 4);
    let runs = allocator.begin_discard(1, 3);
    allocator.end_discard(runs);
    assert_eq!((allocator.free_units(), allocator.next_without_space(true)), (3, None));
}

#[test]
fn counts_follow_what_is_taken_and_freed() {
    let mut allocator = Allocator::with_space(&[Group::new(1, 40)]);
    let as_walked = |allocator: &Allocator| allocator.units().filter(|(_, unit)| unit.purpose != Purpose::Free).count();
    let mut cursor = Cursor::default();
    let taken: Vec<u64> =
        (0..1300).map(|_| allocator.take_block(&mut cursor, Purpose::Leaves(1), 1).unwrap().0).collect();
    let value = allocator.take_runs(1, 700, |_| 1, u64::MAX).unwrap();
    let chunk = allocator.take_chunk(|_| 0).unwrap();
    assert_eq!(allocator.taken_units() as usize, as_walked(&allocator));
    assert_eq!((allocator.parts.blocks_of_extents(), &allocator.parts), (701, &allocator.find_parts()));
    let first = |offset: &u64| Freed { offset: *offset, blocks: 1 };
    taken.iter().step_by(3).map(first).for_each(|freed| allocator.free(freed));
    allocator.share(&value.new_units);
    value.extents.into_iter().for_each(|extent| allocator.free(extent.into()));
    allocator.free(Freed { offset: chunk * ALLOCATION_UNIT_BYTES, blocks: ALLOCATION_UNIT_BLOCKS });
    allocator.leave(&mut cursor);
    assert_eq!(&allocator.parts, &allocator.find_parts());
    allocator.extend(&[Group::new(1, 60)]);
    allocator.use_units(41..61);
    allocator.move_own_units().unwrap();
    assert_eq!((&allocator.parts, allocator.taken_units() as usize), (&allocator.find_parts(), as_walked(&allocator)));
}
