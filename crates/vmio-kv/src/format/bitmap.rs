//! A block of the bitmap: which blocks of 63 allocation units are taken, one bit each.

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, BITMAP_UNITS, BLOCK_BYTES};

/// Words of 64 bits for the blocks of a unit.
pub(crate) const UNIT_WORDS: usize = (ALLOCATION_UNIT_BLOCKS / 64) as usize;
const START: usize = BLOCK_BYTES - BITMAP_UNITS as usize * UNIT_WORDS * 8;

const _: () = assert!(START == HEADER_BYTES + 16);

/// The bits of a unit; a set bit is a taken block.
pub(crate) type UnitBits = [u64; UNIT_WORDS];

/// The free runs of a unit: their first blocks and their lengths.
pub(crate) fn free_runs(bits: &UnitBits) -> impl Iterator<Item = (u64, u64)> + '_ {
    let is_free = |block: &u64| bits[*block as usize / 64] >> (block % 64) & 1 == 0;
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = (next..ALLOCATION_UNIT_BLOCKS).find(is_free)?;
        next = (first..ALLOCATION_UNIT_BLOCKS).find(|block| !is_free(block)).unwrap_or(ALLOCATION_UNIT_BLOCKS);
        Some((first, next - first))
    })
}

/// Builds a block of the bitmap for `units`.
pub(crate) fn to_block(segment: Uuid, units: &[UnitBits], offset: u64, epoch: u64) -> Block {
    assert!(units.len() <= BITMAP_UNITS as usize, "{} units in a bitmap block", units.len());
    let mut block = Block::ZERO;
    for (place, word) in block.0[START..].chunks_exact_mut(8).zip(units.as_flattened()) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut block.0, segment, Label { kind: Kind::Bitmap, keyspace: 0, offset, epoch }, units.len() as u16);
    block
}

/// Reads a block of the bitmap.
pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Vec<UnitBits>, Damage> {
    if sealed.count > BITMAP_UNITS as usize {
        return Err(Damage::Count { found: sealed.count, most: BITMAP_UNITS as usize });
    }
    let (units, _) = sealed.bytes[START..].as_chunks::<{ UNIT_WORDS * 8 }>();
    let bits = |unit: &[u8; UNIT_WORDS * 8]| {
        let mut bits = UnitBits::default();
        for (place, word) in bits.iter_mut().zip(unit.as_chunks::<8>().0) {
            *place = u64::from_le_bytes(*word);
        }
        bits
    };
    Ok(units[..sealed.count].iter().map(bits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    #[test]
    fn bits_come_back() {
        let units: Vec<UnitBits> = (0..63).map(|unit| [unit, 2, 3, 4, 5, 6, 7, u64::MAX]).collect();
        let block = to_block(Uuid::from_bytes([1; 16]), &units, 8192, 4);
        let sealed = unseal(&block.0, Kind::Bitmap, 8192).expect("whole");
        assert_eq!(from_block(&sealed).expect("whole"), units);
    }
}
