//! Slots of growing files: 64 bytes in which a process says how far it has stored what it appends.

use vmio_pmfs_protocol::{FREE, length_of};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 64;
/// Bytes of the word that says how long the file is. All changes of it are atomic.
pub(crate) const END_BYTES: usize = 8;

/// Bytes before those that the checksum covers.
const UNCHECKED: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    end: U64,
    checksum: U32,
    generation: U32,
    ino: U64,
    reserved_from: U32,
    reserved_to: U32,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Raw>() == SLOT_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, checksum) == END_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, generation) == UNCHECKED);

impl Raw {
    fn slot(&self) -> GrowthSlot {
        GrowthSlot {
            ino: self.ino.get(),
            generation: self.generation.get(),
            reserved_from: self.reserved_from.get(),
            reserved_to: self.reserved_to.get(),
        }
    }
}

/// The file that a slot is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrowthSlot {
    pub(crate) ino: u64,
    pub(crate) generation: u32,
    /// Blocks of the file that it got for this growth: those behind its end go back.
    pub(crate) reserved_from: u32,
    pub(crate) reserved_to: u32,
}

/// The statement of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    /// The checksum does not fit, or the check in the word.
    Damaged,
    /// The file is so long.
    Length(GrowthSlot, u64),
}

/// The checksum of a slot at its place.
fn checksum(at: u64, bytes: &[u8; SLOT_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &bytes[UNCHECKED..])
}

impl GrowthSlot {
    /// The bytes of a slot that lies at byte `at`, with a first word that says nothing, and the seed of words that say something.
    pub(crate) fn to_bytes(self, at: u64) -> ([u8; SLOT_BYTES], u32) {
        let mut raw = Raw {
            end: U64::new(FREE),
            checksum: U32::ZERO,
            generation: U32::new(self.generation),
            ino: U64::new(self.ino),
            reserved_from: U32::new(self.reserved_from),
            reserved_to: U32::new(self.reserved_to),
            reserved: [0; 32],
        };
        let mut bytes = [0; SLOT_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        let seed = checksum(at, &bytes);
        raw.checksum = U32::new(seed);
        bytes.copy_from_slice(raw.as_bytes());
        (bytes, seed)
    }

    /// The word and the fields of a slot, whatever its bytes are.
    pub(crate) fn unverified(bytes: &[u8; SLOT_BYTES]) -> (u64, GrowthSlot) {
        let mut raw = Raw::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(bytes);
        (raw.end.get(), raw.slot())
    }

    /// Reads the slot at byte `at`.
    pub(crate) fn from_bytes(bytes: &[u8; SLOT_BYTES], at: u64) -> Said {
        if bytes[..END_BYTES] == FREE.to_le_bytes() || *bytes == [0; SLOT_BYTES] {
            return Said::Nothing;
        }
        let raw = Raw::read_from_bytes(bytes).ok().filter(|raw| raw.checksum.get() == checksum(at, bytes));
        let said = raw.and_then(|raw| Some((raw, length_of(raw.end.get(), raw.checksum.get())?)));
        let Some((raw, end)) = said else { return Said::Damaged };
        Said::Length(raw.slot(), end)
    }
}

#[cfg(test)]
mod tests {
    use vmio_pmfs_protocol::{CLOSED, sealed};

    use super::*;

    #[test]
    fn a_slot_comes_back_and_a_damaged_one_or_one_of_another_place_does_not() {
        let slot = GrowthSlot { ino: 7, generation: 3, reserved_from: 16, reserved_to: 32 };
        let (mut bytes, seed) = slot.to_bytes(640);
        assert_eq!(GrowthSlot::from_bytes(&bytes, 640), Said::Nothing);
        // The word changes without the checksum.
        for end in [0, 70_000] {
            for closed in [0, CLOSED] {
                bytes[..END_BYTES].copy_from_slice(&(sealed(end, seed) | closed).to_le_bytes());
                assert_eq!(GrowthSlot::from_bytes(&bytes, 640), Said::Length(slot, end));
            }
        }
        assert_eq!(GrowthSlot::from_bytes(&bytes, 704), Said::Damaged);
        // But for the bit that closes it: the length counts all the same.
        for bit in (0..SLOT_BYTES * 8).filter(|bit| *bit != 63) {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GrowthSlot::from_bytes(&bytes, 640), Said::Damaged, "bit {bit}");
        }
        assert_eq!(GrowthSlot::from_bytes(&[0; SLOT_BYTES], 640), Said::Nothing);
    }
}
