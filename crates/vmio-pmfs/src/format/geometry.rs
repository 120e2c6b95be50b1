//! The places of a file system's parts.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::format::growth_slot::SLOT_BYTES;
use crate::format::inode::INODE_BYTES;
use crate::format::journal_entry::ENTRY_BYTES;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of an aligned extent, which a huge page maps.
pub const EXTENT_BYTES: u64 = 2 << 20;
/// Blocks of an aligned extent.
pub(crate) const EXTENT_BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;
/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Changed places of a file's map, above which the chain is written anew instead.
pub(crate) const MAP_CHANGES_MAX: usize = 200;
/// The fewest blocks of a journal: any change of a map fits.
const JOURNAL_BLOCKS_MIN: u32 = 14;
/// The most: a mount reads a journal as a whole.
const JOURNAL_BLOCKS_MAX: u32 = 4096;
/// The fewest blocks of saved data: a change of a range overwrites a part of a block at either end of it.
const SAVE_BLOCKS_MIN: u32 = 2;
/// The most blocks of saved data. A write has an entry for each aligned extent that it overwrites.
const SAVE_BLOCKS_MAX: u32 = 4096;
/// Blocks of an area's slots of growing files: 512 files of it grow at the same time.
const SLOT_BLOCKS: u64 = 8;
/// The most areas.
const AREAS_MAX: u32 = 1024;
/// The most blocks: extents name blocks of a file by 32 bits, and 16 PiB are enough.
const BLOCKS_MAX: u64 = 1 << 42;

const INODES_A_BLOCK: u64 = BLOCK_BYTES / INODE_BYTES as u64;
const SLOTS_A_BLOCK: u64 = BLOCK_BYTES / SLOT_BYTES as u64;
const ENTRIES_A_BLOCK: u64 = BLOCK_BYTES / ENTRY_BYTES as u64;

/// Entries of the largest transaction, a write. START and COMMIT are two. A changed place of the map takes two: itself, and the head of
/// its block of the chain. The inode takes fewer than one for each second word, an overwritten aligned extent takes one.
const ENTRIES_MAX: u64 =
    2 + 2 * MAP_CHANGES_MAX as u64 + INODE_BYTES as u64 / 16 + SAVE_BLOCKS_MAX as u64 / EXTENT_BLOCKS + 2;

const _: () = assert!(ENTRIES_MAX < JOURNAL_BLOCKS_MIN as u64 * ENTRIES_A_BLOCK / 2);

/// How a file system is laid out. It follows from a few numbers in its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the file system; a multiple of an extent's.
    pub blocks: u64,
    /// Areas: each has a journal, an inode table and a pool of its own.
    pub areas: u32,
    /// Inodes of an area; a multiple of a block's 16.
    pub inodes: u32,
    /// Blocks of an area's journal.
    pub journal_blocks: u32,
    /// Blocks in which an area keeps overwritten data until its transaction commits. A write has at most their bytes.
    pub save_blocks: u32,
}

impl Geometry {
    /// The layout of a medium of this length, with a number of areas: an inode for each 16 KiB, writes of up to 1 MiB.
    pub fn of(bytes: u64, areas: u32) -> Geometry {
        let blocks = bytes / EXTENT_BYTES * EXTENT_BLOCKS;
        let areas = areas.clamp(1, AREAS_MAX).min((blocks / (16 * EXTENT_BLOCKS)).max(1) as u32);
        let inodes = (blocks / 4 / u64::from(areas)).next_multiple_of(INODES_A_BLOCK).clamp(64, 1 << 28) as u32;
        Geometry { blocks, areas, inodes, journal_blocks: 16, save_blocks: 256 }
    }

    /// Whether a file system can be laid out like this. Then no other function here overflows or divides by zero.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`], [`Error::TooSmall`] and [`Error::TooLarge`].
    pub fn checked(self) -> Result<Geometry> {
        let possible = [
            ("blocks", self.blocks, self.blocks.is_multiple_of(EXTENT_BLOCKS)),
            ("areas", self.areas.into(), (1..=AREAS_MAX).contains(&self.areas)),
            (
                "inodes of an area",
                self.inodes.into(),
                self.inodes >= 2 && u64::from(self.inodes).is_multiple_of(INODES_A_BLOCK),
            ),
            (
                "blocks of a journal",
                self.journal_blocks.into(),
                (JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&self.journal_blocks),
            ),
            (
                "blocks of saved data",
                self.save_blocks.into(),
                (SAVE_BLOCKS_MIN..=SAVE_BLOCKS_MAX).contains(&self.save_blocks),
            ),
        ];
        if let Some((field, found, _)) = possible.into_iter().find(|(.., is_possible)| !is_possible) {
            return Err(Error::Layout { field, found });
        }
        if self.blocks > BLOCKS_MAX {
            return Err(Error::TooLarge { bytes: self.bytes(), most: BLOCKS_MAX * BLOCK_BYTES });
        }
        // An area has room for its own parts, and for an aligned extent besides.
        let least = u64::from(self.areas) * ((2 + self.own_blocks()).div_ceil(EXTENT_BLOCKS) + 1) * EXTENT_BLOCKS;
        if self.blocks < least {
            return Err(Error::TooSmall { bytes: self.bytes(), least: least * BLOCK_BYTES });
        }
        Ok(self)
    }

    /// Length of the file system.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES)
    }

    /// All inodes, the one with number 0 among them, which nobody has.
    pub fn all_inodes(&self) -> u64 {
        u64::from(self.inodes) * u64::from(self.areas)
    }

    /// The most bytes of one write.
    pub fn write_bytes_max(&self) -> usize {
        self.save_blocks as usize * BLOCK_BYTES as usize
    }

    /// Blocks of an area's journal, saved data, slots of growing files and inodes.
    fn own_blocks(&self) -> u64 {
        let inodes = u64::from(self.inodes) / INODES_A_BLOCK;
        u64::from(self.journal_blocks) + u64::from(self.save_blocks) + SLOT_BLOCKS + inodes
    }

    /// The blocks of an area. It begins at an aligned extent.
    pub(crate) fn area(&self, area: u32) -> Range<u64> {
        let extents = self.blocks / EXTENT_BLOCKS;
        let start = |area: u32| extents * u64::from(area) / u64::from(self.areas) * EXTENT_BLOCKS;
        start(area)..start(area + 1)
    }

    /// The area that a block is in.
    pub(crate) fn area_of(&self, block: u64) -> u32 {
        let extents = self.blocks / EXTENT_BLOCKS;
        let guess = (block / EXTENT_BLOCKS * u64::from(self.areas) / extents) as u32;
        (guess..self.areas).find(|area| self.area(*area).contains(&block)).unwrap_or(guess)
    }

    /// The first block of an area's own parts. The superblock is the first block of the first area.
    fn own(&self, area: u32) -> u64 {
        self.area(area).start + u64::from(area == 0)
    }

    /// Where an area's journal begins, in bytes.
    pub(crate) fn journal_at(&self, area: u32) -> u64 {
        self.own(area) * BLOCK_BYTES
    }

    /// Entries of a journal.
    pub(crate) fn journal_entries(&self) -> u64 {
        u64::from(self.journal_blocks) * ENTRIES_A_BLOCK
    }

    /// Where an area keeps overwritten data, in bytes.
    pub(crate) fn saves_at(&self, area: u32) -> u64 {
        self.journal_at(area) + u64::from(self.journal_blocks) * BLOCK_BYTES
    }

    /// Where an area's slots of growing files begin, in bytes.
    pub(crate) fn slots_at(&self, area: u32) -> u64 {
        self.saves_at(area) + u64::from(self.save_blocks) * BLOCK_BYTES
    }

    /// The places of an area's slots of growing files, in bytes.
    pub(crate) fn slots(&self, area: u32) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let first = self.slots_at(area);
        (0..SLOT_BLOCKS * SLOTS_A_BLOCK).map(move |slot| first + slot * SLOT_BYTES as u64)
    }

    /// Where an inode is, in bytes.
    pub(crate) fn inode_at(&self, ino: u64) -> u64 {
        let (area, index) = ((ino / u64::from(self.inodes)) as u32, ino % u64::from(self.inodes));
        self.slots_at(area) + SLOT_BLOCKS * BLOCK_BYTES + index * INODE_BYTES as u64
    }

    /// The numbers of an area's inodes.
    pub(crate) fn inodes_of(&self, area: u32) -> Range<u64> {
        let first = u64::from(area) * u64::from(self.inodes);
        first.max(ROOT)..first + u64::from(self.inodes)
    }

    /// The blocks of an area that files and directories may have.
    pub(crate) fn pool(&self, area: u32) -> Range<u64> {
        // The last block of all is the superblock's copy.
        self.own(area) + self.own_blocks()..self.area(area).end - u64::from(area + 1 == self.areas)
    }

    /// Where the superblock's copy is, in bytes.
    pub(crate) fn copy_at(bytes: u64) -> Option<u64> {
        (bytes / EXTENT_BYTES * EXTENT_BYTES).checked_sub(BLOCK_BYTES)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_without_overlap() {
        for (bytes, areas) in [(64 << 20, 1), (64 << 20, 2), (1 << 30, 7), (3 << 30, 64)] {
            let geometry = Geometry::of(bytes, areas).checked().unwrap();
            let mut end = BLOCK_BYTES;
            for area in 0..geometry.areas {
                assert!(geometry.journal_at(area) >= end);
                assert!(geometry.saves_at(area) > geometry.journal_at(area));
                let slots = geometry.slots(area).collect::<Vec<_>>();
                assert!(slots[0] == geometry.slots_at(area) && slots[0] > geometry.saves_at(area));
                assert!(
                    slots[slots.len() - 1] + SLOT_BYTES as u64 <= geometry.inode_at(geometry.inodes_of(area).start)
                );
                let inodes = geometry.inodes_of(area);
                let last = geometry.inode_at(inodes.end - 1) + INODE_BYTES as u64;
                assert_eq!(last, geometry.pool(area).start * BLOCK_BYTES);
                assert!(geometry.pool(area).end - geometry.pool(area).start >= EXTENT_BLOCKS - 1);
                for block in [geometry.area(area).start, geometry.area(area).end - 1] {
                    assert_eq!(geometry.area_of(block), area);
                }
                end = geometry.area(area).end * BLOCK_BYTES;
            }
            assert_eq!(end, geometry.bytes());
        }
    }

    #[test]
    fn a_small_medium_is_refused() {
        assert!(matches!(Geometry::of(1 << 20, 1).checked(), Err(Error::TooSmall { .. })));
        assert!(Geometry::of(8 << 20, 4).checked().is_ok());
    }
}
