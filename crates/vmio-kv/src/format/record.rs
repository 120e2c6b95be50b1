//! A record of the log: a put or a deletion of a key, or a mark.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::Uuid;

/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1 << 16;
/// The longest value in the log itself, in bytes. Older programs wrote such values; `log::LOG_VALUE_BYTES_MAX` is the limit for new ones.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Records begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;
/// Bytes before the key.
pub(crate) const FRONT_BYTES: usize = size_of::<RecordRow>();

/// More records of the same batch follow: without the last, none of them counts.
const CONTINUES: u8 = 1;

/// No chunk has such a generation, so no record of the log passes for a head.
const HEAD: u64 = 1 << 63;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordRow {
    checksum: U32,
    kind: u8,
    flags: u8,
    key_bytes: U16,
    value_bytes: U32,
    keyspace: U32,
    sequence: U64,
}

const _: () = assert!(FRONT_BYTES == 24 && FRONT_BYTES.is_multiple_of(ALIGNMENT));

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The key has this value.
    Put = 1,
    /// The key is deleted.
    Delete = 2,
    /// The log continues in the next chunk.
    EndOfChunk = 3,
    /// All records with lower numbers than the value's eight bytes were durable when this was written.
    Durable = 4,
    /// The keyspace's records before this one are about to be compacted.
    FlushMark = 5,
    /// A record that was moved: the value begins with the record's own number and its former pointer.
    Relocation = 6,
    /// All keys from the key up to the value are deleted.
    RangeDelete = 7,
    /// The key's value is in extents: see `format::extents`.
    Extents = 8,
}

impl RecordKind {
    fn from_byte(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => RecordKind::Put,
            2 => RecordKind::Delete,
            3 => RecordKind::EndOfChunk,
            4 => RecordKind::Durable,
            5 => RecordKind::FlushMark,
            6 => RecordKind::Relocation,
            7 => RecordKind::RangeDelete,
            8 => RecordKind::Extents,
            _ => return None,
        })
    }

    fn has_key(self) -> bool {
        matches!(
            self,
            RecordKind::Put
                | RecordKind::Delete
                | RecordKind::Relocation
                | RecordKind::RangeDelete
                | RecordKind::Extents
        )
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'bytes> {
    pub(crate) kind: RecordKind,
    /// Whether the next record belongs to the same batch.
    pub(crate) continues: bool,
    pub(crate) keyspace: u32,
    pub(crate) sequence: u64,
    pub(crate) key: &'bytes [u8],
    pub(crate) value: &'bytes [u8],
}

/// The start value of record checksums: records of another segment, or of another generation of a chunk, never pass for records of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(segment: Uuid, generation: u64) -> Self {
        Seed(crc32c::crc32c_append(crc32c::crc32c(segment.as_bytes()), &generation.to_le_bytes()))
    }

    /// The seed of a large value's head with that number, at that byte of the volume.
    pub(crate) fn of_head(segment: Uuid, offset: u64, number: u32) -> Self {
        Self::new(segment, HEAD | offset | u64::from(number))
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        Seed(bits)
    }

    pub(crate) fn to_bits(self) -> u32 {
        self.0
    }
}

/// Length of a record with its padding.
pub(crate) const fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (FRONT_BYTES + key_bytes + value_bytes).next_multiple_of(ALIGNMENT)
}

impl<'bytes> Record<'bytes> {
    /// A record that a leaf holds. It has no number: trees have only the newest record of a key.
    pub(crate) fn of_leaf(keyspace: u32, key: &'bytes [u8], value: &'bytes [u8]) -> Self {
        Record { kind: RecordKind::Put, continues: false, keyspace, sequence: 0, key, value }
    }

    /// The record's length in the log.
    pub(crate) fn bytes(&self) -> usize {
        record_bytes(self.key.len(), self.value.len())
    }

    /// Writes the record to the front of `place`, which must be long enough.
    pub(crate) fn write(&self, seed: Seed, place: &mut [u8]) {
        assert!(self.kind.has_key() != self.key.is_empty(), "a {:?} with {} bytes of key", self.kind, self.key.len());
        assert!(self.key.len() <= KEY_BYTES_MAX && self.value.len() <= VALUE_BYTES_MAX + KEY_BYTES_MAX);
        let place = &mut place[..self.bytes()];
        let row = RecordRow {
            checksum: U32::ZERO,
            kind: self.kind as u8,
            flags: if self.continues { CONTINUES } else { 0 },
            key_bytes: U16::new(self.key.len().saturating_sub(1) as u16),
            value_bytes: U32::new(self.value.len() as u32),
            keyspace: U32::new(self.keyspace),
            sequence: U64::new(self.sequence),
        };
        let (front, rest) = place.split_at_mut(FRONT_BYTES);
        let (key, rest) = rest.split_at_mut(self.key.len());
        let (value, padding) = rest.split_at_mut(self.value.len());
        front.copy_from_slice(row.as_bytes());
        key.copy_from_slice(self.key);
        value.copy_from_slice(self.value);
        padding.fill(0);
        let checksum = crc32c::crc32c_append(seed.0, &place[4..]);
        place[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads the record at the front of `bytes`, and checks its checksum.
    pub(crate) fn read(seed: Seed, bytes: &'bytes [u8]) -> Result<Self, Damage> {
        let record = Self::read_unchecked(bytes)?;
        let whole = bytes.get(..record.bytes()).ok_or(Damage::Length)?;
        let (row, _) = RecordRow::ref_from_prefix(bytes).map_err(|_| Damage::Length)?;
        if row.checksum.get() != crc32c::crc32c_append(seed.0, &whole[4..]) {
            return Err(Damage::Checksum);
        }
        Ok(record)
    }

    /// Returns the length that a record's front states, if it is possible.
    pub(crate) fn length(front: &[u8; FRONT_BYTES]) -> Result<usize, Damage> {
        let (row, _) = RecordRow::ref_from_prefix(front).map_err(|_| Damage::Length)?;
        let kind = RecordKind::from_byte(row.kind);
        let kind = kind.ok_or(Damage::Value { what: "a record's kind", found: u64::from(row.kind) })?;
        let key_bytes = if kind.has_key() { usize::from(row.key_bytes.get()) + 1 } else { 0 };
        let value_bytes = row.value_bytes.get() as usize;
        if value_bytes > VALUE_BYTES_MAX + KEY_BYTES_MAX {
            return Err(Damage::Value { what: "a record's length", found: value_bytes as u64 });
        }
        Ok(record_bytes(key_bytes, value_bytes))
    }

    fn read_unchecked(bytes: &'bytes [u8]) -> Result<Self, Damage> {
        // A copy, so that all that follows sees the same bytes even if the page changes meanwhile.
        let front = *bytes.first_chunk::<FRONT_BYTES>().ok_or(Damage::Length)?;
        let length = Self::length(&front)?;
        let (row, _) = RecordRow::ref_from_prefix(&front).map_err(|_| Damage::Length)?;
        let kind = RecordKind::from_byte(row.kind).ok_or(Damage::Magic)?;
        let rest = bytes.get(FRONT_BYTES..length).ok_or(Damage::Length)?;
        let key_bytes = if kind.has_key() { usize::from(row.key_bytes.get()) + 1 } else { 0 };
        let (key, rest) = rest.split_at(key_bytes);
        Ok(Record {
            kind,
            continues: row.flags & CONTINUES != 0,
            keyspace: row.keyspace.get(),
            sequence: row.sequence.get(),
            key,
            value: &rest[..row.value_bytes.get() as usize],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seed() -> Seed {
        Seed::new(Uuid::from_bytes([7; 16]), 3)
    }

    proptest! {
        #[test]
        fn a_record_comes_back(
            key in proptest::collection::vec(any::<u8>(), 1..100),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            keyspace: u32,
            sequence: u64,
            continues: bool,
        ) {
            let record = Record { kind: RecordKind::Put, continues, keyspace, sequence, key: &key, value: &value };
            let mut place = vec![0xff; record.bytes() + 50];
            record.write(seed(), &mut place);
            prop_assert_eq!(Record::read(seed(), &place), Ok(record));
            prop_assert_eq!(Record::read(Seed::new(Uuid::from_bytes([7; 16]), 4), &place), Err(Damage::Checksum));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::read(seed(), &bytes);
        }
    }

    #[test]
    fn each_flipped_bit_is_detected() {
        let record =
            Record { kind: RecordKind::Put, continues: false, keyspace: 1, sequence: 2, key: b"key", value: b"value" };
        let mut place = vec![0; record.bytes()];
        record.write(seed(), &mut place);
        for bit in 0..place.len() * 8 {
            let mut torn = place.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::read(seed(), &torn).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_longest_key_fits_its_two_bytes() {
        let key = vec![1; KEY_BYTES_MAX];
        let record =
            Record { kind: RecordKind::Delete, continues: false, keyspace: 1, sequence: 2, key: &key, value: &[] };
        let mut place = vec![0; record.bytes()];
        record.write(seed(), &mut place);
        assert_eq!(Record::read(seed(), &place), Ok(record));
    }
}
