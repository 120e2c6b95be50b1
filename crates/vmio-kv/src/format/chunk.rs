//! The header of a log chunk: its identity, and the chunks before and after it.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::Uuid;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, number};

const MAGIC: [u8; 4] = *b"vmkl";
const UNCHECKED: usize = 8;

/// Length of a chunk: an allocation unit.
pub(crate) const CHUNK_BYTES: usize = ALLOCATION_UNIT_BYTES as usize;
/// Place of the first record in a chunk.
pub(crate) const RECORDS_AT: usize = size_of::<ChunkRow>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChunkRow {
    magic: [u8; 4],
    checksum: U32,
    segment: [u8; 16],
    offset: U64,
    generation: U64,
    first_sequence: U64,
    previous: U64,
    next: U64,
    begins_anew: u8,
    reserved: [u8; 63],
}

const _: () = assert!(RECORDS_AT == 128);

/// A chunk of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) segment: Uuid,
    /// The chunk's place in the volume, in bytes.
    pub(crate) offset: u64,
    /// The upper half is the owner's epoch, which rises with each opening; the lower half rises from chunk to chunk. So no generation is
    /// used twice. The records' checksums begin with the generation. A reused chunk still holds whole records of its former use, even of an
    /// opening that a power cut has undone.
    pub(crate) generation: u64,
    /// Sequence number of the first record.
    pub(crate) first_sequence: u64,
    /// The chunk before this one; 0 for the oldest chunk.
    pub(crate) previous: u64,
    /// The chunk after this one, which is reserved beforehand.
    pub(crate) next: u64,
    /// Whether this is the first chunk written after an opening: then a batch that the chunk before left unfinished does not continue here.
    pub(crate) begins_anew: bool,
}

impl ChunkHeader {
    pub(crate) fn to_bytes(self) -> [u8; RECORDS_AT] {
        let mut row = ChunkRow {
            magic: MAGIC,
            checksum: U32::ZERO,
            segment: self.segment.into_bytes(),
            offset: U64::new(self.offset),
            generation: U64::new(self.generation),
            first_sequence: U64::new(self.first_sequence),
            previous: U64::new(self.previous),
            next: U64::new(self.next),
            begins_anew: u8::from(self.begins_anew),
            reserved: [0; 63],
        };
        row.checksum = U32::new(crc32c::crc32c(&row.as_bytes()[UNCHECKED..]));
        zerocopy::transmute!(row)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Damage> {
        let (row, _) = ChunkRow::ref_from_prefix(bytes).map_err(|_| Damage::Length)?;
        if row.magic != MAGIC {
            return Err(Damage::Magic);
        }
        if row.checksum.get() != crc32c::crc32c(&row.as_bytes()[UNCHECKED..]) {
            return Err(Damage::Checksum);
        }
        Ok(ChunkHeader {
            segment: Uuid::from_bytes(row.segment),
            offset: row.offset.get(),
            generation: number("a chunk's generation", row.generation.get())?,
            first_sequence: number("the number of a record", row.first_sequence.get())?,
            previous: row.previous.get(),
            next: row.next.get(),
            begins_anew: row.begins_anew != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_each_flipped_bit_is_detected() {
        let header = ChunkHeader {
            segment: Uuid::from_bytes([5; 16]),
            offset: 1 << 21,
            generation: 3,
            first_sequence: 4,
            previous: 5,
            next: 6,
            begins_anew: true,
        };
        let greatest = ChunkHeader { first_sequence: u64::MAX, ..header };
        assert!(matches!(ChunkHeader::from_bytes(&greatest.to_bytes()), Err(Damage::Value { .. })));
        let bytes = header.to_bytes();
        assert_eq!(ChunkHeader::from_bytes(&bytes), Ok(header));
        for bit in 0..RECORDS_AT * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::from_bytes(&bytes).is_err(), "bit {bit}");
        }
    }
}
