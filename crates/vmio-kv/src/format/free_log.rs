//! A block of the free log: blocks that a commit has taken out of use, which become free once the commit is durable.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::BLOCK_BYTES;

/// Rows in a block.
pub(crate) const ROWS: usize = (BLOCK_BYTES - START) / size_of::<FreeRow>();
const START: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FreeRow {
    first: U64,
    blocks: U64,
}

const _: () = assert!(size_of::<FreeRow>() == 16 && ROWS == 252);

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Freed {
    /// The run's place in the volume, in bytes.
    pub(crate) offset: u64,
    /// Number of blocks.
    pub(crate) blocks: u64,
}

/// Builds a block of the free log; `next` is the block after it, 0 for none.
pub(crate) fn to_block(segment: Uuid, freed: &[Freed], next: u64, offset: u64, epoch: u64) -> Block {
    assert!(freed.len() <= ROWS, "{} rows in a block of the free log", freed.len());
    let mut block = Block::ZERO;
    let row = |freed: &Freed| FreeRow { first: U64::new(freed.offset), blocks: U64::new(freed.blocks) };
    let rows: Vec<FreeRow> = freed.iter().map(row).collect();
    let bytes = rows.as_slice().as_bytes();
    block.0[START..START + bytes.len()].copy_from_slice(bytes);
    block.0[START - 8..START].copy_from_slice(&next.to_le_bytes());
    seal(&mut block.0, segment, Label { kind: Kind::FreeLog, keyspace: 0, offset, epoch }, freed.len() as u16);
    block
}

/// Returns the rows of a block, and the block after it.
pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<(Vec<Freed>, u64), Damage> {
    if sealed.count > ROWS {
        return Err(Damage::Count { found: sealed.count, most: ROWS });
    }
    let next = U64::read_from_bytes(&sealed.bytes[START - 8..START]).map_err(|_| Damage::Length)?;
    let bytes = &sealed.bytes[START..START + sealed.count * size_of::<FreeRow>()];
    let rows = <[FreeRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
    let freed = rows.iter().map(|row| Freed { offset: row.first.get(), blocks: row.blocks.get() });
    Ok((freed.collect(), next.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    #[test]
    fn rows_come_back() {
        let freed: Vec<Freed> = (0..252).map(|row| Freed { offset: row * 4096, blocks: row + 1 }).collect();
        let block = to_block(Uuid::from_bytes([1; 16]), &freed, 40960, 8192, 4);
        let sealed = unseal(&block.0, Kind::FreeLog, 8192).expect("whole");
        assert_eq!(from_block(&sealed).expect("whole"), (freed, 40960));
    }
}
