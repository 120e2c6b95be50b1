//! The common header of metadata blocks: nodes of trees, and the blocks that are stored twice.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::geometry::BLOCK_BYTES;
pub(crate) use uuid::Uuid;

const MAGIC: [u8; 4] = *b"vmkv";
/// Bytes before those that the checksum covers: the magic number and the checksum itself.
const UNCHECKED: usize = 8;

/// A block in memory, where direct I/O can read it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK_BYTES]);

impl Block {
    /// All zeros.
    pub(crate) const ZERO: Block = Block([0; BLOCK_BYTES]);
}

/// The kind of a block's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    VolumeHeader = 1,
    SegmentTable = 2,
    Superblock = 3,
    Bitmap = 4,
    UnitTable = 5,
    FreeLog = 6,
    Catalogue = 7,
    Leaf = 8,
    Branch = 9,
    Pivot = 10,
    Owner = 11,
    Creation = 12,
}

/// The header of a block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BlockHeader {
    magic: [u8; 4],
    checksum: U32,
    kind: u8,
    reserved: u8,
    count: U16,
    keyspace: U32,
    offset: U64,
    epoch: U64,
    uuid: [u8; 16],
}

/// Length of the header.
pub(crate) const HEADER_BYTES: usize = size_of::<BlockHeader>();

const _: () = assert!(HEADER_BYTES == 48);
const _: () = assert!(size_of::<Block>() == BLOCK_BYTES && align_of::<Block>() == BLOCK_BYTES);

/// Makes a random identifier (version 4) of a volume or a segment. It is part of every checksum, so a block of another volume or segment
/// never passes for one of this.
pub(crate) fn random_uuid() -> std::io::Result<Uuid> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// The identity of a block, as its header states it and as its reader expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: Kind,
    /// The keyspace it belongs to; 0 for none.
    pub(crate) keyspace: u32,
    /// The block's place in the volume, in bytes.
    pub(crate) offset: u64,
    /// The epoch that the block belongs to.
    pub(crate) epoch: u64,
}

/// Writes the header of a block whose contents are complete.
pub(crate) fn seal(block: &mut [u8; BLOCK_BYTES], uuid: Uuid, label: Label, count: u16) {
    let header = BlockHeader {
        magic: MAGIC,
        checksum: U32::ZERO,
        kind: label.kind as u8,
        reserved: 0,
        count: U16::new(count),
        keyspace: U32::new(label.keyspace),
        offset: U64::new(label.offset),
        epoch: U64::new(label.epoch),
        uuid: uuid.into_bytes(),
    };
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let checksum = crc32c::crc32c(&block[UNCHECKED..]);
    block[4..UNCHECKED].copy_from_slice(&checksum.to_le_bytes());
}

/// A block that is whole, with the fields of its header.
pub(crate) struct Sealed<'block> {
    pub(crate) bytes: &'block [u8; BLOCK_BYTES],
    pub(crate) epoch: u64,
    pub(crate) keyspace: u32,
    pub(crate) count: usize,
    pub(crate) uuid: Uuid,
}

fn header(block: &[u8; BLOCK_BYTES]) -> &BlockHeader {
    let Ok((header, _)) = BlockHeader::ref_from_prefix(block) else {
        unreachable!("the type has no alignment, and a block is longer");
    };
    header
}

/// Whether a block of the volume, of any kind, is whole and where its header says: the check of a mapping's verifier.
pub(crate) fn is_whole(block: &[u8; BLOCK_BYTES], offset: u64) -> bool {
    let header = header(block);
    header.magic == MAGIC
        && header.offset.get() == offset
        && header.checksum.get() == crc32c::crc32c(&block[UNCHECKED..])
}

/// Checks a block's checksum and its header, except the epoch and the keyspace.
pub(crate) fn unseal(block: &[u8; BLOCK_BYTES], kind: Kind, offset: u64) -> Result<Sealed<'_>, Damage> {
    let sealed = unseal_checked(block, kind, offset)?;
    if header(block).checksum.get() != crc32c::crc32c(&block[UNCHECKED..]) {
        return Err(Damage::Checksum);
    }
    Ok(sealed)
}

/// The same, without the checksum, for a block that was verified on arrival.
pub(crate) fn unseal_checked(block: &[u8; BLOCK_BYTES], kind: Kind, offset: u64) -> Result<Sealed<'_>, Damage> {
    let header = header(block);
    if header.magic != MAGIC {
        return Err(Damage::Magic);
    }
    if header.kind != kind as u8 {
        return Err(Damage::Kind { found: header.kind, wanted: kind as u8 });
    }
    if header.offset.get() != offset {
        return Err(Damage::Misplaced { says: header.offset.get() });
    }
    Ok(Sealed {
        bytes: block,
        epoch: header.epoch.get(),
        keyspace: header.keyspace.get(),
        count: usize::from(header.count.get()),
        uuid: Uuid::from_bytes(header.uuid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label { kind: Kind::Leaf, keyspace: 3, offset: 8192, epoch: 7 };

    fn sealed() -> Block {
        let mut block = Block::ZERO;
        block.0[100] = 1;
        seal(&mut block.0, Uuid::from_bytes([9; 16]), LABEL, 5);
        block
    }

    #[test]
    fn a_sealed_block_names_its_kind_keyspace_and_epoch() {
        let block = sealed();
        let read = unseal(&block.0, Kind::Leaf, 8192).expect("it is whole");
        assert_eq!((read.epoch, read.keyspace, read.count, read.uuid), (7, 3, 5, Uuid::from_bytes([9; 16])));
        assert!(is_whole(&block.0, 8192));
    }

    #[test]
    fn each_flipped_bit_is_detected() {
        for bit in 0..BLOCK_BYTES * 8 {
            let mut block = sealed();
            block.0[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal(&block.0, Kind::Leaf, 8192).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_block_of_another_place_or_kind_is_detected() {
        let block = sealed();
        assert!(matches!(unseal(&block.0, Kind::Leaf, 4096), Err(Damage::Misplaced { says: 8192 })));
        assert!(matches!(unseal(&block.0, Kind::Branch, 8192), Err(Damage::Kind { found: 8, wanted: 9 })));
        assert!(matches!(unseal(&Block::ZERO.0, Kind::Leaf, 0), Err(Damage::Magic)));
    }
}
