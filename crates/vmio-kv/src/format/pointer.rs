//! The eight bytes with which a leaf's entry finds its record. They also give the record's kind and size, and how much of the key the entry
//! has.

use crate::format::geometry::BLOCK_BYTES;

/// Bytes of a key in an entry, after the leaf's common prefix.
pub(crate) const WINDOW_BYTES: usize = 12;

const OFFSET_BITS: u32 = 48;
/// Heads of large values begin at a block: the low bits of their places hold their number.
const HEAD_NUMBER: u64 = BLOCK_BYTES as u64 - 1;
const SIZE_SHIFT: u32 = OFFSET_BITS;
const KIND_SHIFT: u32 = SIZE_SHIFT + 8;
const KNOWN_SHIFT: u32 = KIND_SHIFT + 2;
const COMPLETE_SHIFT: u32 = KNOWN_SHIFT + 4;

const _: () = assert!(COMPLETE_SHIFT == 62 && WINDOW_BYTES < 16);

/// The kind of the record that a pointer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PointerKind {
    /// A value in the log.
    Value = 0,
    /// Extents that hold the value.
    Extents = 1,
    /// The key is deleted.
    Tombstone = 2,
    /// The value is in the leaf itself.
    Inline = 3,
}

/// A record's place: bits 0 to 47 are its byte in the volume; for the head of a large value, bits 0 to 11 are the head's number. Bits 48 to
/// 55 are its size class, 56 and 57 its kind. In a leaf, bits 58 to 61 are the number of bytes of the entry's window that belong to the
/// key, and bit 62 says whether the key ends with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(u64);

impl Pointer {
    /// A pointer to a record of `record_bytes` bytes.
    pub(crate) fn new(kind: PointerKind, offset: u64, record_bytes: u32) -> Self {
        assert!(offset < 1 << OFFSET_BITS, "a record at {offset}");
        Pointer(offset | u64::from(size_class(record_bytes)) << SIZE_SHIFT | (kind as u64) << KIND_SHIFT)
    }

    /// A pointer to the head of a large value.
    pub(crate) fn of_head(offset: u64, number: u32, bytes: u32) -> Self {
        assert!(offset & HEAD_NUMBER == 0 && u64::from(number) <= HEAD_NUMBER, "head {number} at {offset}");
        Self::new(PointerKind::Extents, offset | u64::from(number), bytes)
    }

    /// From its bits in a leaf.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Pointer(bits)
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The record's place in the volume, in bytes.
    pub(crate) fn offset(self) -> u64 {
        let number = if self.kind() == PointerKind::Extents { HEAD_NUMBER } else { 0 };
        self.0 & ((1 << OFFSET_BITS) - 1) & !number
    }

    /// The record's place in its block, in bytes.
    pub(crate) fn place_in_block(self) -> usize {
        (self.0 % BLOCK_BYTES as u64) as usize
    }

    /// The number of a large value's head: it distinguishes the head from others at the same place.
    pub(crate) fn head_number(self) -> u32 {
        (self.0 & HEAD_NUMBER) as u32
    }

    pub(crate) fn kind(self) -> PointerKind {
        match self.0 >> KIND_SHIFT & 3 {
            0 => PointerKind::Value,
            1 => PointerKind::Extents,
            2 => PointerKind::Tombstone,
            _ => PointerKind::Inline,
        }
    }

    /// The approximate length of the record, an eighth too long at most: the garbage that the record becomes.
    pub(crate) fn record_bytes(self) -> u32 {
        class_bytes((self.0 >> SIZE_SHIFT) as u8)
    }

    /// With the leaf's knowledge of the key.
    pub(crate) fn with_known(self, known: usize, complete: bool) -> Self {
        assert!(known <= WINDOW_BYTES, "{known} bytes of a window");
        let record = self.record();
        Pointer(record.0 | (known as u64) << KNOWN_SHIFT | u64::from(complete) << COMPLETE_SHIFT)
    }

    /// Bytes of the entry's window that belong to the key.
    pub(crate) fn known(self) -> usize {
        ((self.0 >> KNOWN_SHIFT & 15) as usize).min(WINDOW_BYTES)
    }

    /// Whether the known bytes are the whole key.
    pub(crate) fn is_complete(self) -> bool {
        self.0 >> COMPLETE_SHIFT & 1 == 1
    }

    /// Without the bits of a leaf: equal for equal records.
    pub(crate) fn record(self) -> Self {
        Pointer(self.0 & ((1 << KNOWN_SHIFT) - 1))
    }
}

/// A size class has five bits of exponent and three of mantissa.
fn size_class(bytes: u32) -> u8 {
    let wanted = bytes.max(8);
    let exponent = 28 - wanted.leading_zeros();
    let mantissa = wanted.div_ceil(1 << exponent);
    // 8 to 16 eighths; 16 is 8 of the next exponent.
    let class = if mantissa == 16 { (exponent + 1) * 8 } else { exponent * 8 + mantissa - 8 };
    class as u8
}

fn class_bytes(class: u8) -> u32 {
    let (exponent, mantissa) = (u32::from(class) / 8, u32::from(class) % 8 + 8);
    mantissa.checked_shl(exponent).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_size_class_is_an_eighth_too_large_at_most(bytes in 8_u32..1 << 28) {
            let class = class_bytes(size_class(bytes));
            prop_assert!(class >= bytes && u64::from(class - bytes) * 8 <= u64::from(bytes), "{bytes}: {class}");
        }

        #[test]
        fn all_parts_come_back(offset in 0_u64..1 << 48, bytes in 8_u32..1 << 21, known in 0_usize..13, complete: bool) {
            let pointer = Pointer::new(PointerKind::Tombstone, offset, bytes).with_known(known, complete);
            prop_assert_eq!(pointer.offset(), offset);
            prop_assert_eq!(pointer.kind(), PointerKind::Tombstone);
            prop_assert_eq!((pointer.known(), pointer.is_complete()), (known, complete));
            prop_assert_eq!(pointer.record(), Pointer::new(PointerKind::Tombstone, offset, bytes));
        }

        #[test]
        fn a_head_has_a_place_and_a_number(block in 0_u64..1 << 36, number in 0_u32..4096, bytes in 8_u32..1 << 21) {
            let pointer = Pointer::of_head(block * 4096, number, bytes).with_known(7, false);
            prop_assert_eq!((pointer.offset(), pointer.head_number()), (block * 4096, number));
            prop_assert_eq!(pointer.kind(), PointerKind::Extents);
            prop_assert_eq!(pointer.record(), Pointer::of_head(block * 4096, number, bytes));
        }
    }
}
