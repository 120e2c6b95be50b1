//! A large value: extents with its bytes, a head with their places and checksums, and a log record that names both.
//!
//! The head has the format and kind of a log record; leaves point to it. The log record names the places of the head and the extents, so that
//! opening knows the taken blocks without reading them. Once the head is in a tree, the log record is no longer needed.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::format::pointer::Pointer;
use crate::format::record::{KEY_BYTES_MAX, VALUE_BYTES_MAX, record_bytes};

/// The longest value.
pub(crate) const LARGE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a value with a checksum of their own; pieces begin at multiples of this.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// All extents of a value but the last have a multiple of this: no piece lies in two extents.
pub(crate) const PIECE_BLOCKS: u64 = (PIECE_BYTES / BLOCK_BYTES) as u64;

const BLOCK_NUMBER_BITS: u32 = 40;

/// A run of blocks within a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    /// The extent's place in the volume, in bytes.
    pub(crate) offset: u64,
    /// Number of blocks.
    pub(crate) blocks: u64,
}

impl Extent {
    pub(crate) fn bytes(self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }

    fn check(self) -> Result<Self, Damage> {
        let first = self.offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        let is_within = self.offset.is_multiple_of(BLOCK_BYTES as u64) && first + self.blocks <= ALLOCATION_UNIT_BLOCKS;
        // Unit 0 belongs to the volume.
        if self.offset < ALLOCATION_UNIT_BYTES || self.blocks == 0 || !is_within {
            return Err(Damage::Value { what: "an extent's place", found: self.offset });
        }
        Ok(self)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ListRow {
    value_bytes: U64,
    extents: U32,
    reserved: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadRow {
    offset: U64,
    bytes: U32,
    number: U32,
}

/// An extent: the number of its first block, and above that the number of blocks.
type ExtentRow = U64;

/// Extents of the longest value if no two of its pieces are adjacent.
const EXTENTS_MAX: usize = (LARGE_BYTES_MAX / PIECE_BYTES as u64) as usize;
/// The longest head's list and checksums.
const HEAD_VALUE_BYTES_MAX: usize =
    size_of::<ListRow>() + EXTENTS_MAX * size_of::<ExtentRow>() + EXTENTS_MAX * size_of::<U32>();

const _: () = assert!(size_of::<ListRow>() == 16 && size_of::<HeadRow>() == 16 && size_of::<ExtentRow>() == 8);
const _: () = assert!(HEAD_VALUE_BYTES_MAX <= VALUE_BYTES_MAX);
const _: () = assert!(record_bytes(KEY_BYTES_MAX, HEAD_VALUE_BYTES_MAX) as u64 <= ALLOCATION_UNIT_BYTES);
const _: () = assert!(PIECE_BLOCKS == 16 && ALLOCATION_UNIT_BLOCKS.is_multiple_of(PIECE_BLOCKS));

/// Heads' numbers are less than this: they fit into the bits of a head's place that are zero, because heads begin at a block.
pub(crate) const HEAD_NUMBERS: u32 = BLOCK_BYTES as u32;

/// Number of pieces of a value.
pub(crate) fn pieces(value_bytes: u64) -> usize {
    value_bytes.div_ceil(PIECE_BYTES as u64) as usize
}

/// Blocks of a value's head, for a key of `key_bytes` bytes and `extents` extents.
pub(crate) fn head_blocks(key_bytes: usize, value_bytes: u64, extents: usize) -> u64 {
    let list = size_of::<ListRow>() + extents * size_of::<ExtentRow>();
    let bytes = record_bytes(key_bytes, list + pieces(value_bytes) * size_of::<U32>());
    bytes.div_ceil(BLOCK_BYTES) as u64
}

/// Places of a value's bytes, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentList {
    pub(crate) value_bytes: u64,
    pub(crate) extents: Vec<Extent>,
}

impl ExtentList {
    fn write(&self, bytes: &mut Vec<u8>) {
        let row = ListRow {
            value_bytes: U64::new(self.value_bytes),
            extents: U32::new(self.extents.len() as u32),
            reserved: U32::ZERO,
        };
        bytes.extend_from_slice(row.as_bytes());
        for extent in &self.extents {
            let row = (extent.offset / BLOCK_BYTES as u64) | (extent.blocks << BLOCK_NUMBER_BITS);
            bytes.extend_from_slice(&row.to_le_bytes());
        }
    }

    /// Reads the list at the front of `bytes`, and returns the rest.
    fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Damage> {
        let (row, rest) = ListRow::ref_from_prefix(bytes).map_err(|_| Damage::Length)?;
        let (value_bytes, count) = (row.value_bytes.get(), row.extents.get() as usize);
        if value_bytes > LARGE_BYTES_MAX {
            return Err(Damage::Value { what: "a value's length", found: value_bytes });
        }
        if count > EXTENTS_MAX {
            return Err(Damage::Count { found: count, most: EXTENTS_MAX });
        }
        let (rows, rest) = <[ExtentRow]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Damage::Length)?;
        let extent = |row: &ExtentRow| {
            let offset = (row.get() & ((1 << BLOCK_NUMBER_BITS) - 1)) * BLOCK_BYTES as u64;
            Extent { offset, blocks: row.get() >> BLOCK_NUMBER_BITS }.check()
        };
        let extents = rows.iter().map(extent).collect::<Result<Vec<_>, _>>()?;
        let blocks: u64 = extents.iter().map(|extent| extent.blocks).sum();
        let are_pieces = extents.iter().rev().skip(1).all(|extent| extent.blocks.is_multiple_of(PIECE_BLOCKS));
        if blocks != value_bytes.div_ceil(BLOCK_BYTES as u64) || !are_pieces {
            return Err(Damage::Value { what: "the blocks of its extents", found: blocks });
        }
        Ok((ExtentList { value_bytes, extents }, rest))
    }
}

/// The value of a log record that announces a large value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LargeRecord {
    /// Place of the head.
    pub(crate) head_offset: u64,
    /// The head's number, less than [`HEAD_NUMBERS`].
    pub(crate) head_number: u32,
    /// Length of the head.
    pub(crate) head_bytes: u32,
    pub(crate) list: ExtentList,
}

impl LargeRecord {
    /// The record's value.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (offset, bytes, number) = (self.head_offset, self.head_bytes, self.head_number);
        let row = HeadRow { offset: U64::new(offset), bytes: U32::new(bytes), number: U32::new(number) };
        let mut bytes = row.as_bytes().to_vec();
        self.list.write(&mut bytes);
        bytes
    }

    /// Reads a record's value.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Damage> {
        let (row, rest) = HeadRow::ref_from_prefix(bytes).map_err(|_| Damage::Length)?;
        let (list, rest) = ExtentList::read(rest)?;
        let (offset, bytes) = (row.offset.get(), row.bytes.get());
        let number = row.number.get();
        if number >= HEAD_NUMBERS {
            return Err(Damage::Value { what: "the number of its head", found: u64::from(number) });
        }
        let large = LargeRecord { head_offset: offset, head_number: number, head_bytes: bytes, list };
        let most = record_bytes(KEY_BYTES_MAX, HEAD_VALUE_BYTES_MAX) as u32;
        if bytes == 0 || bytes > most || offset >= 1 << 48 || !rest.is_empty() {
            return Err(Damage::Value { what: "the place of its head", found: offset });
        }
        large.head().check().map(|_| large)
    }

    /// The blocks of the head.
    pub(crate) fn head(&self) -> Extent {
        head_extent(self.head_offset, self.head_bytes)
    }

    /// All extents of the value, and the head.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.list.extents.iter().copied().chain([self.head()])
    }

    /// The pointer of an entry, which refers to the head and not to the log record.
    pub(crate) fn pointer(&self) -> Pointer {
        Pointer::of_head(self.head_offset, self.head_number, self.head_bytes)
    }
}

/// The blocks of a head.
pub(crate) fn head_extent(offset: u64, bytes: u32) -> Extent {
    Extent { offset, blocks: u64::from(bytes).div_ceil(BLOCK_BYTES as u64) }
}

/// The value of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) list: ExtentList,
    /// CRC-32C of each piece.
    pub(crate) checksums: Vec<u32>,
}

impl Head {
    /// The record's value.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.list.write(&mut bytes);
        bytes.extend(self.checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
        bytes
    }

    /// Reads a record's value.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Damage> {
        let (list, rest) = ExtentList::read(bytes)?;
        let (checksums, _) = rest.as_chunks::<4>();
        if rest.len() != pieces(list.value_bytes) * size_of::<U32>() {
            return Err(Damage::Length);
        }
        let checksums = checksums.iter().map(|checksum| u32::from_le_bytes(*checksum)).collect();
        Ok(Head { list, checksums })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> ExtentList {
        let extent =
            |unit: u64, block: u64, blocks| Extent { offset: unit * ALLOCATION_UNIT_BYTES + block * 4096, blocks };
        ExtentList {
            value_bytes: (512 + 32 + 7) * 4096 - 5,
            extents: vec![extent(5, 0, 512), extent(9, 480, 32), extent(3, 1, 7)],
        }
    }

    #[test]
    fn records_and_heads_are_read_back() {
        let head_offset = 3 * ALLOCATION_UNIT_BYTES + 9 * 4096;
        let large = LargeRecord { head_offset, head_number: 4095, head_bytes: 5000, list: list() };
        assert_eq!(LargeRecord::from_bytes(&large.to_bytes()), Ok(large.clone()));
        assert_eq!(large.extents().map(|extent| extent.blocks).collect::<Vec<_>>(), [512, 32, 7, 2]);
        let checksums = (0..pieces(large.list.value_bytes) as u32).collect();
        let head = Head { list: list(), checksums };
        let bytes = head.to_bytes();
        assert_eq!(head_blocks(100, large.list.value_bytes, 3), record_bytes(100, bytes.len()).div_ceil(4096) as u64);
        assert_eq!(Head::from_bytes(&bytes), Ok(head));
    }

    #[test]
    fn a_number_too_large_for_a_pointer_is_damage() {
        let large =
            LargeRecord { head_offset: 3 * ALLOCATION_UNIT_BYTES, head_number: 4096, head_bytes: 5000, list: list() };
        assert!(matches!(LargeRecord::from_bytes(&large.to_bytes()), Err(Damage::Value { found: 4096, .. })));
    }

    #[test]
    fn impossible_extents_are_damage() {
        let change = |change: fn(&mut ExtentList)| {
            let mut list = list();
            change(&mut list);
            let mut bytes = Vec::new();
            list.write(&mut bytes);
            ExtentList::read(&bytes).is_err()
        };
        assert!(!change(|_| {}));
        assert!(change(|list| list.value_bytes += 4096), "too few blocks");
        assert!(change(|list| list.value_bytes = u64::MAX));
        assert!(change(|list| list.extents.swap(1, 2)), "pieces would be in two extents");
        assert!(change(|list| list.extents[1].offset += 4096), "one goes beyond its unit");
        assert!(change(|list| list.extents[2].offset = 4096), "the volume's own unit");
        assert!(change(|list| list.extents.insert(0, Extent { offset: ALLOCATION_UNIT_BYTES, blocks: 0 })));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (LargeRecord::from_bytes(&bytes), Head::from_bytes(&bytes));
        }
    }
}
