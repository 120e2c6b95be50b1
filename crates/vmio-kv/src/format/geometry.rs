//! The geometry of a volume: blocks, allocation units, groups.
//!
//! A volume is an array of blocks of 4 KiB. 512 blocks make an allocation unit, here also called a unit. Unit 0 belongs to the volume. The
//! others belong to segments, in groups: a group's first unit holds the metadata of all its units.

use std::ops::Range;

use crate::error::Damage;

/// The smallest amount of space, and of reading.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Space that a keyspace takes from the allocator at a time, for one purpose: 2 MiB.
pub(crate) const ALLOCATION_UNIT_BYTES: u64 = 2 << 20;
/// Blocks in an allocation unit.
pub(crate) const ALLOCATION_UNIT_BLOCKS: u64 = ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;

/// Units whose blocks one bitmap block covers.
pub(crate) const BITMAP_UNITS: u64 = 63;
/// Units that one block of the unit table describes.
pub(crate) const UNIT_TABLE_UNITS: u64 = 252;
/// Units of the largest group, its first one included: 25 GiB.
pub(crate) const GROUP_UNITS_MAX: u64 = 12_852;
/// Bitmap blocks of a group; each is stored twice.
pub(crate) const GROUP_BITMAPS: u64 = GROUP_UNITS_MAX / BITMAP_UNITS;
/// Unit table blocks of a group; each is stored twice.
pub(crate) const GROUP_UNIT_TABLES: u64 = GROUP_UNITS_MAX / UNIT_TABLE_UNITS;

/// Blocks of a group's first unit: the superblock's two copies, then the bitmap's, then the unit table's.
const SUPERBLOCK_AT: u64 = 0;
const BITMAPS_AT: u64 = 2;
const UNIT_TABLES_AT: u64 = BITMAPS_AT + 2 * GROUP_BITMAPS;

const _: () = assert!(GROUP_BITMAPS * BITMAP_UNITS == GROUP_UNITS_MAX);
const _: () = assert!(GROUP_UNIT_TABLES * UNIT_TABLE_UNITS == GROUP_UNITS_MAX);
const _: () = assert!(UNIT_TABLES_AT + 2 * GROUP_UNIT_TABLES == ALLOCATION_UNIT_BLOCKS);

/// The smallest volume: its own unit, a group's first, and some to work with.
pub(crate) const VOLUME_UNITS_MIN: u64 = 16;
/// Byte offsets have 48 bits.
pub(crate) const VOLUME_BYTES_MAX: u64 = 1 << 48;

/// Epochs, generations and sequence numbers are less than this. No volume lives that long: a greater number is damage, and no count may go
/// on from it.
const NUMBER_MAX: u64 = 1 << 62;

/// Checks a number from which a count goes on.
pub(crate) fn number(what: &'static str, found: u64) -> Result<u64, Damage> {
    if found < NUMBER_MAX { Ok(found) } else { Err(Damage::Value { what, found }) }
}

/// Adjacent units of a segment; the first unit holds the bitmaps and the unit table of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The first unit, as a number in the volume.
    pub(crate) first_unit: u64,
    /// Number of units, including the first.
    pub(crate) units: u64,
    /// The unit with the group's metadata: the first, unless a new owner has moved it.
    pub(crate) own_unit: u64,
}

impl Group {
    /// A group whose metadata is in its first unit.
    pub(crate) fn new(first_unit: u64, units: u64) -> Self {
        Group { first_unit, units, own_unit: first_unit }
    }

    /// The unit after the last one.
    pub(crate) fn end(self) -> u64 {
        self.first_unit + self.units
    }

    /// Whether a unit belongs to the group.
    pub(crate) fn contains(self, unit: u64) -> bool {
        (self.first_unit..self.end()).contains(&unit)
    }

    fn block_offset(self, block: u64) -> u64 {
        self.own_unit * ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64
    }

    /// Places of the superblock's two copies, if the group is its segment's first.
    pub(crate) fn superblocks(self) -> [u64; 2] {
        [self.block_offset(SUPERBLOCK_AT), self.block_offset(SUPERBLOCK_AT + 1)]
    }

    /// Places of a bitmap block's two copies.
    pub(crate) fn bitmaps(self, index: u64) -> [u64; 2] {
        assert!(index < GROUP_BITMAPS, "bitmap block {index} of a group");
        [self.block_offset(BITMAPS_AT + 2 * index), self.block_offset(BITMAPS_AT + 2 * index + 1)]
    }

    /// Places of a unit table block's two copies.
    pub(crate) fn unit_tables(self, index: u64) -> [u64; 2] {
        assert!(index < GROUP_UNIT_TABLES, "unit table block {index} of a group");
        [self.block_offset(UNIT_TABLES_AT + 2 * index), self.block_offset(UNIT_TABLES_AT + 2 * index + 1)]
    }

    /// Bitmap blocks that cover units of the group.
    pub(crate) fn bitmaps_in_use(self) -> u64 {
        self.units.div_ceil(BITMAP_UNITS)
    }

    /// Bitmap blocks to read if no unit from `write_fence` on was ever written to. They cover the units below, and the first one covers the
    /// group's own unit. The others are as they were when the group was laid out.
    pub(crate) fn bitmaps_below(self, write_fence: u64) -> u64 {
        self.units_below(write_fence).div_ceil(BITMAP_UNITS).max(1)
    }

    /// The same for blocks of the unit table.
    pub(crate) fn unit_tables_below(self, write_fence: u64) -> u64 {
        self.units_below(write_fence).div_ceil(UNIT_TABLE_UNITS).max(1)
    }

    /// Units of the group below a unit of the volume.
    pub(crate) fn units_below(self, write_fence: u64) -> u64 {
        write_fence.saturating_sub(self.first_unit).min(self.units)
    }

    /// Unit table blocks that describe units of the group.
    pub(crate) fn unit_tables_in_use(self) -> u64 {
        self.units.div_ceil(UNIT_TABLE_UNITS)
    }
}

/// Groups for the units `first_unit..end` of the volume.
pub(crate) fn groups(first_unit: u64, end: u64) -> Vec<Group> {
    (first_unit..end)
        .step_by(GROUP_UNITS_MAX as usize)
        .map(|first_unit| Group::new(first_unit, GROUP_UNITS_MAX.min(end - first_unit)))
        // A group's first unit holds metadata: a group of one unit would be of no use.
        .filter(|group| group.units > 1)
        .collect()
}

/// The groups of a segment that gets the units `new` of the volume in addition to its own. The last group becomes longer if it ends where
/// they begin.
pub(crate) fn grown(groups: &[Group], new: Range<u64>) -> Vec<Group> {
    let mut grown = groups.to_vec();
    let mut next = new.start;
    if let Some(last) = grown.last_mut().filter(|last| last.end() == new.start) {
        last.units = last.units.max(GROUP_UNITS_MAX.min(new.end.saturating_sub(last.first_unit)));
        next = last.end();
    }
    grown.extend(self::groups(next, new.end));
    grown
}

/// Units of the groups from the volume's unit `unit` on.
pub(crate) fn units_from(groups: &[Group], unit: u64) -> u64 {
    groups.iter().map(|group| group.end().saturating_sub(unit.max(group.first_unit))).sum()
}

/// The unit after the first `units` units of the groups from `unit` on; `None` if there are fewer.
pub(crate) fn unit_behind(groups: &[Group], unit: u64, mut units: u64) -> Option<u64> {
    for group in groups {
        let first = unit.max(group.first_unit);
        let of_group = group.end().saturating_sub(first);
        if units <= of_group {
            return Some(if units == 0 { unit } else { first + units });
        }
        units -= of_group;
    }
    None
}

/// Units of the groups.
pub(crate) fn units_of(groups: &[Group]) -> u64 {
    groups.iter().map(|group| group.units).sum()
}

/// The first `units` units of the groups, or all for 0; `None` if there are fewer.
pub(crate) fn first_units(groups: &[Group], units: u64) -> Option<Vec<Group>> {
    let all = units_of(groups);
    let mut left = if units == 0 { all } else { units };
    if left > all {
        return None;
    }
    let mut first = Vec::new();
    for group in groups {
        let units = group.units.min(left);
        left -= units;
        first.extend((units > 0).then_some(Group { units, ..*group }));
    }
    Some(first)
}

/// The unit of the volume that contains a byte.
pub(crate) fn unit_of(offset: u64) -> u64 {
    offset / ALLOCATION_UNIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_grow_to_their_full_length_and_others_follow() {
        let small = groups(1, 20);
        assert_eq!(small, [Group::new(1, 19)]);
        let large = grown(&small, 20..2 * GROUP_UNITS_MAX + 9);
        assert_eq!(large, groups(1, 2 * GROUP_UNITS_MAX + 9));
        assert_eq!(large.iter().map(|group| group.units).collect::<Vec<_>>(), [GROUP_UNITS_MAX, GROUP_UNITS_MAX, 8]);
        // A single unit is no group until there is another.
        let alone = grown(&small, 20..GROUP_UNITS_MAX + 2);
        assert_eq!(alone, [Group::new(1, GROUP_UNITS_MAX)]);
        assert_eq!(grown(&alone, GROUP_UNITS_MAX + 1..2 * GROUP_UNITS_MAX + 9), large);
        assert_eq!(first_units(&large, 19), Some(small));
        assert_eq!(first_units(&large, units_of(&alone)), Some(alone.clone()));
        assert_eq!(first_units(&large, 0), Some(large));
        assert_eq!(first_units(&alone, GROUP_UNITS_MAX + 1), None);
    }

    #[test]
    fn groups_that_cannot_grow_are_followed_by_new_ones() {
        let small = groups(1, 20);
        let two = grown(&small, 50..60);
        assert_eq!(two, [Group::new(1, 19), Group::new(50, 10)]);
        assert_eq!(grown(&two, 60..61), [Group::new(1, 19), Group::new(50, 11)]);
        assert_eq!(grown(&two, 61..62), two, "a single unit is no group");
        assert_eq!([0, 5, 20, 40, 55, 70].map(|unit| units_from(&two, unit)), [29, 25, 10, 10, 5, 0]);
        let behind = |unit, units| unit_behind(&two, unit, units);
        assert_eq!([behind(5, 15), behind(5, 16), behind(5, 25), behind(5, 26)], [Some(20), Some(51), Some(60), None]);
        assert_eq!([behind(30, 1), behind(30, 0), behind(70, 1)], [Some(51), Some(30), None]);
    }

    #[test]
    fn a_groups_first_unit_is_full_and_nothing_overlaps() {
        let group = Group::new(1, GROUP_UNITS_MAX);
        let mut all: Vec<u64> = group.superblocks().to_vec();
        all.extend((0..group.bitmaps_in_use()).flat_map(|index| group.bitmaps(index)));
        all.extend((0..group.unit_tables_in_use()).flat_map(|index| group.unit_tables(index)));
        let whole: Vec<u64> =
            (0..ALLOCATION_UNIT_BLOCKS).map(|block| ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64).collect();
        all.sort_unstable();
        assert_eq!(all, whole);
    }
}
