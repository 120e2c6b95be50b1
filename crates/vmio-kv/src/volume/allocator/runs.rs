//! Runs of blocks, for large values.

use crate::format::bitmap::{UNIT_WORDS, free_runs};
use crate::format::extents::{Extent, PIECE_BLOCKS};
use crate::format::free_log::Freed;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BLOCK_BYTES, unit_of};
use crate::format::unit_table::{AllocationUnit, Purpose};
use crate::volume::allocator::{Allocator, GroupMap};

/// A free run of this many blocks is taken for a part of a value, though a new unit would have a longer one. So in the end a unit wastes
/// less than an eighth.
const SPLIT_BLOCKS: u64 = ALLOCATION_UNIT_BLOCKS / 8;

/// The blocks taken for a value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenRuns {
    /// For its bytes, in their order.
    pub(crate) extents: Vec<Extent>,
    /// For its head.
    pub(crate) head: Option<Extent>,
    /// Units among them that were free. No other value gets blocks of them before [`Allocator::share`].
    pub(crate) new_units: Vec<u64>,
}

/// The bits of `blocks` blocks from `first` on, as words and masks.
fn masks(first: u64, blocks: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = first + blocks;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (low, high) = (first.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
        let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        (word as usize, below(high) & !below(low))
    })
}

impl GroupMap {
    pub(super) fn set(&mut self, index: usize, first: u64, blocks: u64, pending: bool) {
        for (word, mask) in masks(first, blocks) {
            self.taken[index][word] |= mask;
            if pending {
                self.pending[index][word] |= mask;
            } else {
                self.pending[index][word] &= !mask;
            }
        }
        self.mark_bits(index);
    }

    pub(super) fn clear(&mut self, index: usize, first: u64, blocks: u64) {
        for (word, mask) in masks(first, blocks) {
            self.taken[index][word] &= !mask;
            self.pending[index][word] &= !mask;
        }
        self.mark_bits(index);
    }
}

impl Allocator {
    /// Takes blocks for a value and its head, all or none. They are pending. The head is one run, whose length `head_blocks` says for a
    /// number of extents. At most `new_units` free units are begun.
    pub(crate) fn take_runs(
        &mut self,
        keyspace: u32,
        blocks: u64,
        head_blocks: impl Fn(usize) -> u64,
        mut new_units: u64,
    ) -> Option<TakenRuns> {
        let mut taken = TakenRuns::default();
        let mut left = blocks;
        let is_done = loop {
            let (most, least) = match left {
                0 => (head_blocks(taken.extents.len()), u64::MAX),
                left => (left, PIECE_BLOCKS),
            };
            let run = self.take_run(keyspace, most, least.min(most), new_units > 0, &taken.new_units);
            let Some((extent, is_new)) = run else { break false };
            if is_new {
                new_units -= 1;
                taken.new_units.push(unit_of(extent.offset));
                self.in_use.insert(unit_of(extent.offset));
            }
            if left == 0 {
                taken.head = Some(extent);
                break true;
            }
            left -= extent.blocks;
            taken.extents.push(extent);
        };
        if is_done {
            return Some(taken);
        }
        self.share(&taken.new_units);
        taken.extents.into_iter().for_each(|extent| self.free(extent.into()));
        None
    }

    /// Lets other values have blocks of begun units.
    pub(crate) fn share(&mut self, units: &[u64]) {
        units.iter().for_each(|unit| _ = self.in_use.remove(unit));
    }

    /// Takes a run of at most `most` and at least `least` blocks. A run that is shorter than wanted is a whole number of pieces.
    fn take_run(
        &mut self,
        keyspace: u32,
        most: u64,
        least: u64,
        may_begin: bool,
        own: &[u64],
    ) -> Option<(Extent, bool)> {
        let wanted = most.min(ALLOCATION_UNIT_BLOCKS);
        let is_unit = wanted == ALLOCATION_UNIT_BLOCKS && may_begin;
        let found = if is_unit { None } else { self.longest_run(keyspace, wanted, least, own) };
        let (unit, first, blocks, is_new) = match found {
            Some((unit, first, blocks)) if blocks >= wanted.min(SPLIT_BLOCKS) || !may_begin => {
                (unit, first, blocks, false)
            }
            _ if may_begin => (self.pop_free_unit(Purpose::Extents)?, 0, wanted, true),
            _ => return None,
        };
        let blocks = if blocks < wanted { blocks - blocks % PIECE_BLOCKS } else { wanted };
        self.change(unit, |map, index| {
            if is_new {
                map.units[index] = AllocationUnit { purpose: Purpose::Extents, keyspace, ..AllocationUnit::default() };
                map.mark_unit(index);
            }
            map.set(index, first, blocks, true);
        })?;
        Some((Extent { offset: unit * ALLOCATION_UNIT_BYTES + first * BLOCK_BYTES as u64, blocks }, is_new))
    }

    /// The shortest free run of the keyspace's units that is long enough, or the longest one that has `least` blocks. It leaves out units
    /// that other values have begun and not shared yet.
    fn longest_run(&self, keyspace: u32, wanted: u64, least: u64, own: &[u64]) -> Option<(u64, u64, u64)> {
        let owner = (Purpose::Extents, keyspace);
        let is_shared =
            |unit: &u64| self.write_fence.contains(unit) && (!self.in_use.contains(unit) || own.contains(unit));
        let enough = self.parts.with_space(owner, wanted..).map(|(_, unit)| unit).find(is_shared);
        let longest = || self.parts.with_space(owner, least..).rev().map(|(_, unit)| unit).find(is_shared);
        let unit = enough.or_else(longest)?;
        let (group, index) = self.place(unit)?;
        let runs = || free_runs(&self.groups[group].taken[index]);
        let run = runs().find(|(_, blocks)| *blocks >= wanted).or_else(|| runs().max_by_key(|(_, blocks)| *blocks));
        run.map(|(first, blocks)| (unit, first, blocks))
    }

    /// Marks blocks as taken, and pending, that a record of the log refers to. Returns false if they are not free.
    pub(crate) fn take_found_run(&mut self, extent: Extent, keyspace: u32) -> bool {
        let unit = unit_of(extent.offset);
        let Some((group, index)) = self.reach(unit) else { return false };
        let first = extent.offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        // The unit may have been a former owner's, which is gone: see `forget_former_owners`.
        let is_own = self.groups.iter().any(|map| map.group.own_unit == unit);
        let map = &mut self.groups[group];
        if map.units[index].purpose == Purpose::Group && !is_own {
            map.taken[index] = [0; UNIT_WORDS];
        }
        if map.taken[index] == [0; UNIT_WORDS] {
            self.free.remove(unit);
        }
        let is_taken = self.change(unit, |map, index| {
            // Without a taken block, the table's row of the unit is of a commit that never came.
            if map.taken[index] == [0; UNIT_WORDS] {
                map.units[index] = AllocationUnit { purpose: Purpose::Extents, keyspace, ..AllocationUnit::default() };
                map.mark_unit(index);
            }
            let of = map.units[index];
            let is_free = masks(first, extent.blocks).all(|(word, mask)| map.taken[index][word] & mask == 0);
            let is_taken = of.purpose == Purpose::Extents && of.keyspace == keyspace && is_free;
            if is_taken {
                map.set(index, first, extent.blocks, true);
            }
            is_taken
        });
        let is_taken = is_taken == Some(true);
        if is_taken {
            self.note_unused(unit);
        }
        is_taken
    }

    /// Makes blocks part of the next commit.
    pub(crate) fn commit_run(&mut self, extent: Extent) {
        let first = extent.offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        self.change(unit_of(extent.offset), |map, index| {
            debug_assert!(
                masks(first, extent.blocks).all(|(word, mask)| map.taken[index][word] & mask == mask),
                "{extent:?} is committed, and is not taken"
            );
            map.set(index, first, extent.blocks, false);
        });
    }

    /// The purpose of the unit that a byte is in.
    pub(crate) fn purpose_of(&self, offset: u64) -> Purpose {
        let unit = self.place(unit_of(offset)).and_then(|(group, index)| self.groups[group].units.get(index));
        unit.map_or(Purpose::Free, |unit| unit.purpose)
    }

    /// The number of blocks of large values.
    pub(crate) fn blocks_of_extents(&self) -> u64 {
        self.parts.blocks_of_extents()
    }
}

impl From<Extent> for Freed {
    fn from(Extent { offset, blocks }: Extent) -> Self {
        Freed { offset, blocks }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::geometry::Group;

    fn allocator(units: u64) -> Allocator {
        Allocator::with_space(&[Group::new(1, units)])
    }

    fn overlap(left: &Extent, right: &Extent) -> bool {
        left.offset < right.offset + right.bytes() && right.offset < left.offset + left.bytes()
    }

    proptest! {
        #[test]
                fn runs_are_whole_and_do_not_overlap(steps in proptest::collection::vec((1_u64..1500, 0_usize..4), 1..60)) {
            let mut allocator = allocator(10);
            let mut values: Vec<TakenRuns> = Vec::new();
            for (blocks, end) in steps {
                let before = allocator.blocks_of_extents();
                match allocator.take_runs(1, blocks, |extents| 1 + extents as u64 / 2, u64::MAX) {
                    Some(taken) => {
                        prop_assert_eq!(taken.extents.iter().map(|extent| extent.blocks).sum::<u64>(), blocks);
                        prop_assert!(taken.extents.iter().rev().skip(1).all(|extent| extent.blocks % PIECE_BLOCKS == 0));
                        allocator.share(&taken.new_units);
                        values.push(taken);
                    }
                    None => prop_assert_eq!(allocator.blocks_of_extents(), before, "all or none"),
                }
                let all: Vec<Extent> = values.iter().flat_map(|taken| taken.extents.iter().copied().chain(taken.head)).collect();
                for (index, extent) in all.iter().enumerate() {
                    prop_assert!(unit_of(extent.offset) == unit_of(extent.offset + extent.bytes() - 1));
                    prop_assert!(all[..index].iter().all(|other| !overlap(extent, other)));
                }
                if end > 0 && values.len() > end {
                    let gone = values.swap_remove(end);
                    gone.extents.into_iter().chain(gone.head).for_each(|extent| allocator.free(extent.into()));
                }
            }
            prop_assert_eq!(&allocator.parts, &allocator.find_parts());
            for gone in values {
                gone.extents.into_iter().chain(gone.head).for_each(|extent| allocator.free(extent.into()));
            }
            prop_assert_eq!(allocator.free_units(), 9);
        }
    }

    #[test]
    fn no_more_units_are_begun_than_allowed() {
        let mut allocator = allocator(10);
        assert_eq!(allocator.take_runs(1, 600, |_| 1, 1), None);
        assert_eq!(allocator.free_units(), 9);
        let taken = allocator.take_runs(1, 600, |_| 1, 2).expect("space");
        assert_eq!((taken.extents.len(), taken.new_units.len()), (2, 2));
        assert_eq!(allocator.take_runs(1, 300, |_| 1, 0), None, "they have just been begun");
        allocator.share(&taken.new_units);
        assert!(allocator.take_runs(1, 300, |_| 1, 0).is_some(), "there is space in the second");
        assert_eq!(allocator.take_runs(2, 100, |_| 1, 0), None, "another keyspace has no unit");
    }

    #[test]
    fn extents_that_the_log_refers_to_are_taken_once() {
        let mut allocator = allocator(10);
        let extent = Extent { offset: 4 * ALLOCATION_UNIT_BYTES + 7 * 4096, blocks: 100 };
        assert!(allocator.take_found_run(extent, 1));
        assert!(!allocator.take_found_run(Extent { offset: extent.offset + 99 * 4096, blocks: 1 }, 1));
        assert!(
            !allocator.take_found_run(Extent { offset: 4 * ALLOCATION_UNIT_BYTES, blocks: 1 }, 2),
            "another keyspace's unit"
        );
        assert!(
            !allocator.take_found_run(Extent { offset: ALLOCATION_UNIT_BYTES + 4096, blocks: 1 }, 1),
            "the group's own"
        );
        assert!(!allocator.take_found_run(Extent { offset: 40 * ALLOCATION_UNIT_BYTES, blocks: 1 }, 1));
        allocator.find_free_units();
        assert_eq!(allocator.free_units(), 8);
    }
}
