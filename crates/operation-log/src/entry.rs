//! The front of an operation, 64 bytes: docs/formats/operation-log.md, "Entries", in code.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::identity::IdentityFields;

/// Entries begin at multiples of this; it is the length of what is in front of their data.
pub(crate) const UNIT_BYTES: u64 = 64;
/// The longest path, as the kernel has it.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// What is in front of the path in the data of a file's entry.
pub(crate) const FILE_FRONT_BYTES: usize = size_of::<IdentityFields>();

const MAGIC: [u8; 4] = *b"vmop";
/// What is in front of the bytes that the checksum of the front covers.
const UNCHECKED: usize = 8;
/// The last byte of a file has a lower number.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Which life of which log an entry belongs to. Each checkpoint begins another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// Counts the lives of the log.
    pub(crate) generation: u64,
    /// Random: who does not know it writes no data that passes for an entry.
    pub(crate) secret: u64,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Gives a file a number. Its data are identity and path.
    File,
    /// Bytes that were written to a file.
    Write,
    /// What stands before a position is in the file.
    Retire,
}

/// The front of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) kind: Kind,
    /// The file's number.
    pub(crate) file: u32,
    /// Where in the file the data belong; of a retirement, the position before which nothing is replayed.
    pub(crate) offset: u64,
    /// How long the file was before.
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

const _: () = assert!(size_of::<FrontFields>() == UNIT_BYTES as usize);

/// What an entry with so much data takes of the log.
pub(crate) fn entry_bytes(data_bytes: u64) -> u64 {
    UNIT_BYTES + data_bytes.next_multiple_of(UNIT_BYTES)
}

impl Front {
    /// The bytes of the front of an entry at `position`.
    pub(crate) fn encode(&self, life: Life, position: u64) -> [u8; UNIT_BYTES as usize] {
        assert!(position.is_multiple_of(UNIT_BYTES), "an entry at byte {position}");
        let mut fields = FrontFields {
            magic: MAGIC,
            checksum: 0.into(),
            secret: life.secret.into(),
            generation: life.generation.into(),
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

    /// Reads the front of an entry at `position`, of whatever life; `None` if that is none.
    pub(crate) fn decode(bytes: &[u8], position: u64) -> Option<(Life, Self)> {
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
        let life = Life { generation: fields.generation.get(), secret: fields.secret.get() };
        front.is_possible().then_some((life, front))
    }

    /// Whether any call could have led to this.
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

    const LIFE: Life = Life { generation: 3, secret: 0x1234_5678_9abc_def0 };
    const FRONT: Front =
        Front { kind: Kind::Write, file: 5, offset: 100, len_before: 50, data_bytes: 10, data_checksum: 99 };

    #[test]
    fn an_entry_reads_back_at_its_own_position_and_nowhere_else() {
        let bytes = FRONT.encode(LIFE, 8192);
        assert_eq!(Front::decode(&bytes, 8192), Some((LIFE, FRONT)));
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
            assert_eq!(Front::decode(&front.encode(LIFE, 64), 64), None, "{front:?}");
        }
        let last = Front { offset: FILE_BYTES_MAX - 10, ..FRONT };
        assert_eq!(Front::decode(&last.encode(LIFE, 64), 64), Some((LIFE, last)));
    }

    #[test]
    fn entries_are_whole_units() {
        assert_eq!([0, 1, 64, 65].map(entry_bytes), [64, 128, 128, 192]);
    }
}
