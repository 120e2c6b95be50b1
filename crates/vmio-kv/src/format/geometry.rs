//! Where things lie: blocks, units, groups.
//!
//! A volume is an array of blocks of 4 KiB; 512 of them make a unit. Unit 0 is the volume's own. The others belong to
//! segments, in groups: a group's first unit holds what is known of all its units.

use crate::error::Damage;

/// The unit of allocation within a unit, and of reading.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// What a region takes from the allocator at a time, for one use: 2 MiB.
pub(crate) const UNIT_BYTES: u64 = 2 << 20;
/// Blocks of a unit.
pub(crate) const UNIT_BLOCKS: u64 = UNIT_BYTES / BLOCK_BYTES as u64;

/// Units whose blocks one bitmap block covers.
pub(crate) const BITMAP_UNITS: u64 = 63;
/// Units that one block of the unit table describes.
pub(crate) const UNIT_TABLE_UNITS: u64 = 252;
/// Units of the largest group, its first one included: 25 GiB.
pub(crate) const GROUP_UNITS_MAX: u64 = 12_852;
/// Bitmap blocks of a group; each lies there twice.
pub(crate) const GROUP_BITMAPS: u64 = GROUP_UNITS_MAX / BITMAP_UNITS;
/// Unit table blocks of a group; each lies there twice.
pub(crate) const GROUP_UNIT_TABLES: u64 = GROUP_UNITS_MAX / UNIT_TABLE_UNITS;

/// Blocks of a group's first unit: the superblock's two copies, then the bitmap's, then the unit table's.
const SUPERBLOCK_AT: u64 = 0;
const BITMAPS_AT: u64 = 2;
const UNIT_TABLES_AT: u64 = BITMAPS_AT + 2 * GROUP_BITMAPS;

const _: () = assert!(GROUP_BITMAPS * BITMAP_UNITS == GROUP_UNITS_MAX);
const _: () = assert!(GROUP_UNIT_TABLES * UNIT_TABLE_UNITS == GROUP_UNITS_MAX);
const _: () = assert!(UNIT_TABLES_AT + 2 * GROUP_UNIT_TABLES == UNIT_BLOCKS);

/// The smallest volume: its own unit, a group's first, and some to work with.
pub(crate) const VOLUME_UNITS_MIN: u64 = 16;
/// Byte offsets have 48 bits.
pub(crate) const VOLUME_BYTES_MAX: u64 = 1 << 48;

/// Epochs, generations and numbers of records are less. No volume lives that long: a greater one is damage, and may not be counted on
/// from.
const NUMBER_MAX: u64 = 1 << 62;

/// A number that is counted on from.
pub(crate) fn number(what: &'static str, found: u64) -> Result<u64, Damage> {
    if found < NUMBER_MAX { Ok(found) } else { Err(Damage::Value { what, found }) }
}

/// Some units in a row that belong to a segment; the first holds the bitmaps and the unit table of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The unit of the volume with which it begins.
    pub(crate) first_unit: u64,
    /// How many there are, the first included.
    pub(crate) units: u64,
}

impl Group {
    fn block_offset(self, block: u64) -> u64 {
        self.first_unit * UNIT_BYTES + block * BLOCK_BYTES as u64
    }

    /// Where the two copies of the superblock are, if the group is its segment's first.
    pub(crate) fn superblocks(self) -> [u64; 2] {
        [self.block_offset(SUPERBLOCK_AT), self.block_offset(SUPERBLOCK_AT + 1)]
    }

    /// Where the two copies of a bitmap block are.
    pub(crate) fn bitmaps(self, index: u64) -> [u64; 2] {
        assert!(index < GROUP_BITMAPS, "bitmap block {index} of a group");
        [self.block_offset(BITMAPS_AT + 2 * index), self.block_offset(BITMAPS_AT + 2 * index + 1)]
    }

    /// Where the two copies of a block of the unit table are.
    pub(crate) fn unit_tables(self, index: u64) -> [u64; 2] {
        assert!(index < GROUP_UNIT_TABLES, "unit table block {index} of a group");
        [self.block_offset(UNIT_TABLES_AT + 2 * index), self.block_offset(UNIT_TABLES_AT + 2 * index + 1)]
    }

    /// Bitmap blocks that cover units it has.
    pub(crate) fn bitmaps_in_use(self) -> u64 {
        self.units.div_ceil(BITMAP_UNITS)
    }

    /// Unit table blocks that describe units it has.
    pub(crate) fn unit_tables_in_use(self) -> u64 {
        self.units.div_ceil(UNIT_TABLE_UNITS)
    }
}

/// The unit of the volume in which a byte lies.
pub(crate) fn unit_of(offset: u64) -> u64 {
    offset / UNIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_first_unit_is_full_and_nothing_overlaps() {
        let group = Group { first_unit: 1, units: GROUP_UNITS_MAX };
        let mut all: Vec<u64> = group.superblocks().to_vec();
        all.extend((0..group.bitmaps_in_use()).flat_map(|index| group.bitmaps(index)));
        all.extend((0..group.unit_tables_in_use()).flat_map(|index| group.unit_tables(index)));
        let whole: Vec<u64> = (0..UNIT_BLOCKS).map(|block| UNIT_BYTES + block * BLOCK_BYTES as u64).collect();
        all.sort_unstable();
        assert_eq!(all, whole);
    }
}
