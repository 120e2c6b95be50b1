//! Blocks of extents, for files that have more of them than fit the inode.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Damage, Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::{Extent, RawExtent};
use crate::format::superblock::Block;

/// Extents of a block.
pub(crate) const CHAIN_EXTENTS: usize = 255;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    checksum: U32,
    reserved: U32,
    next: U64,
    extents: [RawExtent; CHAIN_EXTENTS],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES as usize);

/// The checksum of a block of an inode's chain.
fn checksum(ino: u64, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &block[4..])
}

/// Builds a block of an inode's chain, with as many extents as there are.
pub(crate) fn to_block(ino: u64, next: u64, extents: &[Extent]) -> Block {
    let mut raw = Raw::new_zeroed();
    raw.next = U64::new(next);
    for (place, extent) in raw.extents.iter_mut().zip(extents) {
        *place = (*extent).into();
    }
    raw.checksum = U32::new(checksum(ino, raw.as_bytes()));
    let mut block = [0; BLOCK_BYTES as usize];
    block.copy_from_slice(raw.as_bytes());
    block
}

/// The next block and the extents that a block of a chain holds, whatever these are.
pub(crate) fn unverified(block: &Block) -> (u64, Vec<Extent>) {
    let mut raw = Raw::new_zeroed();
    raw.as_mut_bytes().copy_from_slice(block);
    (raw.next.get(), raw.extents.into_iter().map(Extent::from).collect())
}

/// Reads a block of an inode's chain, which lies at byte `at`: the next block and the extents.
pub(crate) fn from_block(ino: u64, block: &Block, at: u64) -> Result<(u64, Vec<Extent>)> {
    let stored = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    let computed = checksum(ino, block);
    if stored != computed {
        let damage = Damage::Checksum { stored, computed };
        return Err(Error::Damaged { structure: "a block of extents", at, damage });
    }
    Ok(unverified(block))
}
