//! Entries of an undo journal: a line of 64 bytes each.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 64;
/// Old bytes that an entry holds.
pub(crate) const OLD_BYTES: usize = 40;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    checksum: U32,
    kind: u8,
    bytes: u8,
    lap: U16,
    transaction: U64,
    at: U64,
    old: [u8; OLD_BYTES],
}

const _: () = assert!(size_of::<Raw>() == ENTRY_BYTES);

/// The statement of an entry of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A transaction begins.
    Start,
    /// It is over, or has been rolled back.
    Commit,
    /// Bytes that it changes, as they were.
    Old {
        /// The first of them.
        at: u64,
        /// How many there are.
        bytes: u8,
        /// They themselves, and zeros behind.
        old: [u8; OLD_BYTES],
    },
    /// A range that it overwrites, whose old contents are elsewhere.
    Saved {
        /// The first byte of the range.
        at: u64,
        /// Where the old contents are.
        from: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// An entry of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) transaction: u64,
    /// How often the journal's writer had come around, modulo 65,536.
    pub(crate) lap: u16,
    pub(crate) said: Said,
}

impl JournalEntry {
    pub(crate) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut raw = Raw::new_zeroed();
        raw.lap = U16::new(self.lap);
        raw.transaction = U64::new(self.transaction);
        match self.said {
            Said::Start => raw.kind = 1,
            Said::Commit => raw.kind = 2,
            Said::Old { at, bytes, old } => (raw.kind, raw.bytes, raw.at, raw.old) = (3, bytes, U64::new(at), old),
            Said::Saved { at, from, bytes } => {
                (raw.kind, raw.at) = (4, U64::new(at));
                raw.old[..8].copy_from_slice(&from.to_le_bytes());
                raw.old[8..16].copy_from_slice(&bytes.to_le_bytes());
            }
        }
        raw.checksum = U32::new(crc32c::crc32c(&raw.as_bytes()[4..]));
        let mut bytes = [0; ENTRY_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads an entry; nothing if there is none, or a torn one.
    pub(crate) fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<JournalEntry> {
        let mut raw = Raw::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(bytes);
        if raw.checksum.get() != crc32c::crc32c(&bytes[4..]) {
            return None;
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&raw.old[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let said = match raw.kind {
            1 => Said::Start,
            2 => Said::Commit,
            3 if usize::from(raw.bytes) <= OLD_BYTES => Said::Old { at: raw.at.get(), bytes: raw.bytes, old: raw.old },
            4 => Said::Saved { at: raw.at.get(), from: word(0), bytes: word(8) },
            _ => return None,
        };
        Some(JournalEntry { transaction: raw.transaction.get(), lap: raw.lap.get(), said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_torn_ones_do_not() {
        let old = std::array::from_fn(|at| at as u8);
        let all =
            [Said::Start, Said::Commit, Said::Old { at: 8, bytes: 40, old }, Said::Saved { at: 1, from: 2, bytes: 3 }];
        for said in all {
            let entry = JournalEntry { transaction: 5, lap: 6, said };
            let bytes = entry.to_bytes();
            assert_eq!(JournalEntry::from_bytes(&bytes), Some(entry));
            for at in 0..ENTRY_BYTES {
                let mut torn = bytes;
                torn[at] ^= 0x40;
                assert_eq!(JournalEntry::from_bytes(&torn), None, "byte {at} of {said:?}");
            }
        }
        assert_eq!(JournalEntry::from_bytes(&[0; ENTRY_BYTES]), None);
    }
}
