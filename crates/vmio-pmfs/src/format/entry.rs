//! Entries of directories: one to five slots of 64 bytes, in a block.
//!
//! The first word of a slot is not zero if and only if an entry begins there. So a store of one word adds or removes an entry.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Damage, Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::{Kind, NAME_BYTES_MAX};

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 64;
/// Slots of a block.
pub(crate) const SLOTS_A_BLOCK: usize = BLOCK_BYTES as usize / SLOT_BYTES;
/// Bytes of the name in the first slot, and in the others.
const FIRST_NAME: usize = 48;
const OTHER_NAME: usize = 56;
/// The most slots of an entry.
const SLOTS_MAX: usize = slots_of(NAME_BYTES_MAX);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct First {
    ino: U64,
    checksum: U32,
    kind: u8,
    name_bytes: u8,
    reserved: U16,
    name: [u8; FIRST_NAME],
}

const _: () = assert!(size_of::<First>() == SLOT_BYTES);
const _: () = assert!(SLOTS_MAX == 5);

/// How many slots an entry with a name of this length has.
pub(crate) const fn slots_of(name_bytes: usize) -> usize {
    1 + name_bytes.saturating_sub(FIRST_NAME).div_ceil(OTHER_NAME)
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
}

fn checksum(directory: u64, ino: u64, kind: u8, name: &[u8]) -> u32 {
    let numbers = [directory.to_le_bytes(), ino.to_le_bytes()].concat();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&numbers), &[kind, name.len() as u8]);
    crc32c::crc32c_append(sum, name)
}

impl Entry {
    /// The slots of an entry of this directory.
    pub(crate) fn to_slots(&self, directory: u64) -> Vec<[u8; SLOT_BYTES]> {
        let (here, rest) = self.name.split_at(self.name.len().min(FIRST_NAME));
        let mut first = First::new_zeroed();
        first.ino = U64::new(self.ino);
        first.checksum = U32::new(checksum(directory, self.ino, self.kind as u8, &self.name));
        first.kind = self.kind as u8;
        first.name_bytes = self.name.len() as u8;
        first.name[..here.len()].copy_from_slice(here);
        let mut slots = vec![[0; SLOT_BYTES]];
        slots[0].copy_from_slice(first.as_bytes());
        slots.extend(rest.chunks(OTHER_NAME).map(|part| {
            let mut slot = [0; SLOT_BYTES];
            slot[SLOT_BYTES - OTHER_NAME..][..part.len()].copy_from_slice(part);
            slot
        }));
        slots
    }

    /// Reads the entry that begins at a slot of a block, which lies at byte `at`; nothing if none begins there.
    pub(crate) fn from_slots(directory: u64, slots: &[u8], at: u64) -> Result<Option<Entry>> {
        let damaged = |damage| Error::Damaged { structure: "an entry of a directory", at, damage };
        let field = |field, found| damaged(Damage::Field { field, found });
        let Ok((first, _)) = First::read_from_prefix(slots) else {
            return Err(field("length", slots.len() as u64));
        };
        if first.ino.get() == 0 {
            return Ok(None);
        }
        let bytes = usize::from(first.name_bytes);
        if bytes == 0 || slots.len() < slots_of(bytes) * SLOT_BYTES {
            return Err(field("length of a name", bytes as u64));
        }
        let mut name = first.name[..bytes.min(FIRST_NAME)].to_vec();
        for slot in slots[SLOT_BYTES..].chunks_exact(SLOT_BYTES).take(slots_of(bytes) - 1) {
            let (word, part) = slot.split_at(SLOT_BYTES - OTHER_NAME);
            if word.iter().any(|byte| *byte != 0) {
                return Err(field("continuation", u64::from(word[0])));
            }
            name.extend(&part[..(bytes - name.len()).min(OTHER_NAME)]);
        }
        let (stored, computed) = (first.checksum.get(), checksum(directory, first.ino.get(), first.kind, &name));
        if stored != computed {
            return Err(damaged(Damage::Checksum { stored, computed }));
        }
        let kind = Kind::from_byte(first.kind).ok_or_else(|| field("kind", u64::from(first.kind)))?;
        Ok(Some(Entry { ino: first.ino.get(), kind, name }))
    }
}

/// Whether a name can be an entry's.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong { bytes: name.len(), most: NAME_BYTES_MAX });
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::BadName { name: String::from_utf8_lossy(name).into_owned() });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_all_lengths_come_back() {
        for bytes in 1..=NAME_BYTES_MAX {
            let entry = Entry { ino: 7, kind: Kind::File, name: (0..bytes).map(|at| b'a' + (at % 26) as u8).collect() };
            let slots = entry.to_slots(3);
            assert_eq!(slots.len(), slots_of(bytes));
            assert!(slots[1..].iter().all(|slot| slot[..8] == [0; 8]));
            let flat = slots.concat();
            assert_eq!(Entry::from_slots(3, &flat, 0).unwrap(), Some(entry));
            assert!(Entry::from_slots(4, &flat, 0).is_err());
            assert!(Entry::from_slots(3, &flat[..flat.len() - 1], 0).is_err());
        }
    }
}
