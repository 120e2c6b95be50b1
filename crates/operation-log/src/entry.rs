//! The front of an operation, 64 bytes: docs/formats/operation-log.md, "Entries", in code.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::identity::IdentityFields;

/// Entries begin at multiples of this, which is also the length of their headers.
pub(crate) const ENTRY_ALIGN_BYTES: u64 = 64;
/// The longest path that the kernel allows.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// Bytes before the path in the data of an entry for a file.
pub(crate) const FILE_FRONT_BYTES: usize = size_of::<IdentityFields>();

const MAGIC: [u8; 4] = *b"vmop";
/// Bytes of the header before those that its checksum covers.
const UNCHECKED: usize = 8;
/// The last byte of a file has a lower number.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The incarnation of a log, to which its entries belong. Each checkpoint begins another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incarnation {
    /// Counts the incarnations of the log.
    pub(crate) generation: u64,
    /// Random, so that data of a write cannot be mistaken for an entry.
    pub(crate) secret: u64,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Gives a file a number. Its data are identity and path.
    File,
    /// Bytes that were written to a file.
    Write,
    /// All operations of the file before a position are durable in it.
    Retire,
}

/// The front of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) kind: Kind,
    /// The file's number.
    pub(crate) file: u32,
    /// The offset in the file; for a retirement, the position before which nothing is replayed.
    pub(crate) offset: u64,
    /// The length of the file before.
    pub(crate) len_before: u64,
    /// Length of the data that follow.
    pub(crate) data_bytes: u32,
    pub(crate) data_checksum: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrontFields {
    magic: [u8; 4],
    checksum: U32,
    secret: U64,
    generation: U64,
    position: U64,
    kind: u8,
    reserved: [u8; 3],
    file: U32,
    offset: U64,
    len_before: U64,
    data_bytes: U32,
    data_checksum: U32,
}

const _: () = assert!(size_of::<FrontFields>() == ENTRY_ALIGN_BYTES as usize);

/// The length of an entry with this much data.
pub(crate) fn entry_bytes(data_bytes: u64) -> u64 {
    ENTRY_ALIGN_BYTES + data_bytes.next_multiple_of(ENTRY_ALIGN_BYTES)
}

impl Front {
    /// The bytes of the front of an entry at `position`.
    pub(crate) fn encode(&self, incarnation: Incarnation, position: u64) -> [u8; ENTRY_ALIGN_BYTES as usize] {
        assert!(position.is_multiple_of(ENTRY_ALIGN_BYTES), "an entry at byte {position}");
        let mut fields = FrontFields {
            magic: MAGIC,
            checksum: 0.into(),
            secret: incarnation.secret.into(),
            generation: incarnation.generation.into(),
            position: position.into(),
            kind: self.kind.code(),
            reserved: [0; 3],
            file: self.file.into(),
            offset: self.offset.into(),
            len_before: self.len_before.into(),
            data_bytes: self.data_bytes.into(),
            data_checksum: self.data_checksum.into(),
        };
        fields.checksum = crc32c::crc32c(&fields.as_bytes()[UNCHECKED..]).into();
        zerocopy::transmute!(fields)
    }

    /// Reads the header of an entry at `position`, of any incarnation; `None` if there is no entry.
    pub(crate) fn decode(bytes: &[u8], position: u64) -> Option<(Incarnation, Self)> {
        let (fields, _) = FrontFields::ref_from_prefix(bytes).ok()?;
        // In this order, since most units of a log are none, and a look at four bytes tells.
        if fields.magic != MAGIC
            || fields.position != position
            || fields.checksum != crc32c::crc32c(&fields.as_bytes()[UNCHECKED..])
        {
            return None;
        }
        let front = Front {
            kind: Kind::of_code(fields.kind)?,
            file: fields.file.get(),
            offset: fields.offset.get(),
            len_before: fields.len_before.get(),
            data_bytes: fields.data_bytes.get(),
            data_checksum: fields.data_checksum.get(),
        };
        let incarnation = Incarnation { generation: fields.generation.get(), secret: fields.secret.get() };
        front.is_possible().then_some((incarnation, front))
    }

    /// Whether a call can have written this.
    fn is_possible(&self) -> bool {
        let data_bytes = u64::from(self.data_bytes);
        match self.kind {
            Kind::File => (FILE_FRONT_BYTES..=FILE_FRONT_BYTES + PATH_BYTES_MAX).contains(&(data_bytes as usize)),
            Kind::Write => {
                data_bytes > 0
                    && self.len_before <= FILE_BYTES_MAX
                    && self.offset.checked_add(data_bytes).is_some_and(|end| end <= FILE_BYTES_MAX)
            }
            Kind::Retire => data_bytes == 0,
        }
    }
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::File => 1,
            Kind::Write => 2,
            Kind::Retire => 3,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Kind::File),
            2 => Some(Kind::Write),
            3 => Some(Kind::Retire),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: Incarnation = Incarnation { generation: 3, secret: 0x1234_5678_9abc_def0 };
    const FRONT: Front =
        Front { kind: Kind::Write, file: 5, offset: 100, len_before: 50, data_bytes: 10, data_checksum: 99 };

    #[test]
    fn an_entry_reads_back_at_its_own_position_and_nowhere_else() {
        let bytes = FRONT.encode(INCARNATION, 8192);
        assert_eq!(Front::decode(&bytes, 8192), Some((INCARNATION, FRONT)));
        assert_eq!(Front::decode(&bytes, 8256), None, "a copy of it in data");
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert_eq!(Front::decode(&changed, 8192), None, "byte {at} changed");
        }
        assert_eq!(Front::decode(&bytes[..63], 8192), None);
        assert_eq!(Front::decode(&[0; 64], 0), None);
    }

    #[test]
    fn what_no_call_leads_to_is_no_entry() {
        let impossible = [
            Front { data_bytes: 0, ..FRONT },
            Front { offset: FILE_BYTES_MAX - 9, ..FRONT },
            Front { offset: u64::MAX, ..FRONT },
            Front { len_before: FILE_BYTES_MAX + 1, ..FRONT },
            Front { kind: Kind::Retire, ..FRONT },
            Front { kind: Kind::File, data_bytes: 31, ..FRONT },
            Front { kind: Kind::File, data_bytes: 32 + 4097, ..FRONT },
        ];
        for front in impossible {
            assert_eq!(Front::decode(&front.encode(INCARNATION, 64), 64), None, "{front:?}");
        }
        let last = Front { offset: FILE_BYTES_MAX - 10, ..FRONT };
        assert_eq!(Front::decode(&last.encode(INCARNATION, 64), 64), Some((INCARNATION, last)));
    }

    #[test]
    fn entries_are_whole_units() {
        assert_eq!([0, 1, 64, 65].map(entry_bytes), [64, 128, 128, 192]);
    }
}
