//! Blocks of the bitmap and the unit table that list units as free.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::device::Device;
use crate::error::Result;
use crate::format::bitmap::{self, UnitBits};
use crate::format::block::{Block, Kind, Uuid};
use crate::format::geometry::{BITMAP_UNITS, Group, UNIT_TABLE_UNITS};
use crate::format::unit_table::{self, AllocationUnit};

/// Blocks in a row, each followed by its other copy, that list units as free. They were never written before.
#[derive(Debug)]
pub(crate) struct UnusedBlocks {
    pub(super) segment: Uuid,
    pub(super) epoch: u64,
    pub(super) kind: Kind,
    pub(super) group: Group,
    pub(super) indexes: Range<u64>,
}

impl UnusedBlocks {
    /// Writes them, and voids their other copies.
    pub(crate) fn write(&self, device: &Device) -> Result<()> {
        let Some(first) = self.indexes.clone().next() else { return Ok(()) };
        let mut blocks = vec![Block::ZERO; 2 * (self.indexes.end - first) as usize];
        for (index, pair) in self.indexes.clone().zip(blocks.chunks_exact_mut(2)) {
            pair[0] = self.block(index);
        }
        device.write(self.offset(first), blocks.as_slice().as_bytes())
    }

    fn offset(&self, index: u64) -> u64 {
        offsets(self.group, self.kind, index)[0]
    }

    fn block(&self, index: u64) -> Block {
        let of_block = if self.kind == Kind::Bitmap { BITMAP_UNITS } else { UNIT_TABLE_UNITS };
        let units = of_block.min(self.group.units - index * of_block) as usize;
        let offset = self.offset(index);
        match self.kind {
            Kind::Bitmap => bitmap::to_block(self.segment, &vec![UnitBits::default(); units], offset, self.epoch),
            _ => unit_table::to_block(self.segment, &vec![AllocationUnit::default(); units], offset, self.epoch),
        }
    }
}

/// The places of a block of the bitmap or of the unit table.
pub(super) fn offsets(group: Group, kind: Kind, index: u64) -> [u64; 2] {
    if kind == Kind::Bitmap { group.bitmaps(index) } else { group.unit_tables(index) }
}
