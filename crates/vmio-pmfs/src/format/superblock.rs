//! The superblock. A copy of it is the last block.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry};

const MAGIC: [u8; 8] = *b"vmiopmfs";
/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes before those that the checksum covers.
const UNCHECKED: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    magic: [u8; 8],
    checksum: U32,
    version: U32,
    incompatible: U64,
    /// Written as 0; nothing reads it.
    compatible: U64,
    uuid: [u8; 16],
    blocks: U64,
    areas: U32,
    inodes: U32,
    journal_blocks: U32,
    save_blocks: U32,
}

const _: () = assert!(size_of::<Fields>() == 72);

/// A superblock's contents. It never changes once the file system is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random bytes that tell this file system from others.
    pub uuid: [u8; 16],
    /// Its layout.
    pub geometry: Geometry,
}

/// A block in memory.
pub(crate) type Block = [u8; BLOCK_BYTES as usize];

impl Superblock {
    pub(crate) fn to_block(self) -> Block {
        let Geometry { blocks, areas, inodes, journal_blocks, save_blocks } = self.geometry;
        let mut fields = Fields {
            magic: MAGIC,
            checksum: U32::ZERO,
            version: U32::new(VERSION),
            incompatible: U64::ZERO,
            compatible: U64::ZERO,
            uuid: self.uuid,
            blocks: U64::new(blocks),
            areas: U32::new(areas),
            inodes: U32::new(inodes),
            journal_blocks: U32::new(journal_blocks),
            save_blocks: U32::new(save_blocks),
        };
        let mut block = [0; BLOCK_BYTES as usize];
        block[..size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        fields.checksum = U32::new(crc32c::crc32c(&block[UNCHECKED..]));
        block[..size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        block
    }

    /// Reads a superblock that lies at byte `at`.
    pub(crate) fn from_block(block: &Block, at: u64) -> Result<Superblock> {
        let damaged = |damage| Error::Damaged { structure: "the superblock", at, damage };
        let length = |_| damaged(Damage::Field { field: "length", found: BLOCK_BYTES });
        let fields = Fields::read_from_prefix(block).map_err(|error| length(error.map_src(drop)))?.0;
        if fields.magic != MAGIC {
            return Err(Error::NoFileSystem { found: fields.magic });
        }
        let (stored, computed) = (fields.checksum.get(), crc32c::crc32c(&block[UNCHECKED..]));
        if stored != computed {
            return Err(damaged(Damage::Checksum { stored, computed }));
        }
        if fields.version.get() > VERSION {
            return Err(Error::NewerVersion { found: fields.version.get(), known: VERSION });
        }
        if fields.incompatible.get() != 0 {
            return Err(Error::UnknownFeatures { features: fields.incompatible.get() });
        }
        let geometry = Geometry {
            blocks: fields.blocks.get(),
            areas: fields.areas.get(),
            inodes: fields.inodes.get(),
            journal_blocks: fields.journal_blocks.get(),
            save_blocks: fields.save_blocks.get(),
        };
        geometry.checked().map_err(|error| match error {
            Error::Layout { field, found } => damaged(Damage::Field { field, found }),
            _ => damaged(Damage::Field { field: "number of blocks", found: geometry.blocks }),
        })?;
        Ok(Superblock { uuid: fields.uuid, geometry })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sealed(change: impl Fn(&mut Fields)) -> Block {
        let mut block = Superblock { uuid: [7; 16], geometry: Geometry::of(64 << 20, 2) }.to_block();
        let mut fields = Fields::read_from_prefix(&block).unwrap().0;
        change(&mut fields);
        block[..size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        let checksum = crc32c::crc32c(&block[UNCHECKED..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    #[test]
    fn each_fault_has_its_error() {
        let sound = Superblock::from_block(&sealed(|_| ()), 0).unwrap();
        assert_eq!(sound, Superblock { uuid: [7; 16], geometry: Geometry::of(64 << 20, 2) });
        let other = Superblock::from_block(&[0; BLOCK_BYTES as usize], 0);
        assert!(matches!(other, Err(Error::NoFileSystem { found: [0, ..] })));
        let newer = Superblock::from_block(&sealed(|fields| fields.version = U32::new(2)), 0);
        assert!(matches!(newer, Err(Error::NewerVersion { found: 2, known: 1 })));
        let features = Superblock::from_block(&sealed(|fields| fields.incompatible = U64::new(4)), 0);
        assert!(matches!(features, Err(Error::UnknownFeatures { features: 4 })));
        let areas = Superblock::from_block(&sealed(|fields| fields.areas = U32::ZERO), 0);
        assert!(matches!(areas, Err(Error::Damaged { .. })));
        let mut flipped = sealed(|_| ());
        flipped[100] ^= 1;
        let flipped = Superblock::from_block(&flipped, 0);
        assert!(matches!(flipped, Err(Error::Damaged { damage: Damage::Checksum { .. }, .. })));
    }
}
