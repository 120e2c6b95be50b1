//! A pivot: it separates two children of an inner node. The node holds a short pivot as a whole. Of a long pivot it holds the front; the
//! rest is in pieces, each a block that names the next one.

use std::cmp::Ordering;

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;

/// The longest pivot that its node holds as a whole, in bytes: a node has four children at least.
pub(crate) const SHORT_BYTES_MAX: usize = 1000;
/// Bytes of a longer pivot in its node: enough to decide most comparisons, and for 31 children in a node.
pub(crate) const FRONT_BYTES: usize = 100;
/// Bytes of a pivot in a piece.
pub(crate) const PIECE_BYTES: usize = BLOCK_BYTES - HEADER_BYTES - size_of::<PieceRow>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PieceRow {
    next: U64,
}

const _: () = assert!(PIECE_BYTES == 4040 && FRONT_BYTES < SHORT_BYTES_MAX);

/// The rest of a long pivot after its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The block of its first piece.
    pub(crate) first: Child,
    /// Length of the rest.
    pub(crate) bytes: usize,
}

/// A pivot, with bytes of its own or borrowed from its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pivot<Bytes> {
    /// The whole pivot, or the front of a long one.
    pub(crate) front: Bytes,
    pub(crate) rest: Option<Rest>,
}

/// A pivot with bytes of its own.
pub(crate) type OwnedPivot = Pivot<Vec<u8>>;

impl<Bytes: AsRef<[u8]>> Pivot<Bytes> {
    /// Compares the pivot with a key; `compare` compares a rest with the part of the key after the front.
    pub(crate) fn compare<Failure>(
        &self,
        key: &[u8],
        compare: impl Fn(Rest, &[u8]) -> Result<Ordering, Failure>,
    ) -> Result<Ordering, Failure> {
        let front = self.front.as_ref();
        let Some(rest) = self.rest else { return Ok(front.cmp(key)) };
        let (of_front, behind) = key.split_at(key.len().min(front.len()));
        // A key shorter than the front is not equal to it.
        match front.cmp(of_front) {
            Ordering::Equal => compare(rest, behind),
            unequal => Ok(unequal),
        }
    }

    /// Compares a key, of which `known` is the front, with a long pivot, if these bytes decide.
    pub(crate) fn compare_front(&self, known: &[u8]) -> Option<Ordering> {
        let front = self.front.as_ref();
        let shared = front.len().min(known.len());
        Some(known[..shared].cmp(&front[..shared])).filter(|ordering| ordering.is_ne())
    }
}

impl Pivot<&[u8]> {
    /// Copies the bytes.
    pub(crate) fn to_owned(self) -> OwnedPivot {
        Pivot { front: self.front.to_vec(), rest: self.rest }
    }
}

/// A piece of a long pivot that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<'block> {
    pub(crate) bytes: &'block [u8],
    /// The block of the next piece.
    pub(crate) next: Option<Child>,
}

impl<'block> Piece<'block> {
    /// Reads a piece that begins the last `left` bytes of a pivot. All pieces but the last are full.
    pub(crate) fn from_block(sealed: &Sealed<'block>, left: usize) -> Result<Self, Damage> {
        let (row, bytes) = PieceRow::ref_from_prefix(&sealed.bytes[HEADER_BYTES..]).map_err(|_| Damage::Length)?;
        let next = Some(Child::from_bits(row.next.get())).filter(|next| next.to_bits() != 0);
        let length = left.min(PIECE_BYTES);
        if sealed.count != length || next.is_some() != (left > length) {
            return Err(Damage::Value { what: "the length of a piece of a pivot", found: sealed.count as u64 });
        }
        Ok(Piece { bytes: &bytes[..length], next })
    }

    /// Builds the piece's block.
    pub(crate) fn to_block(&self, segment: Uuid, keyspace: u32, offset: u64, epoch: u64) -> Block {
        let row = PieceRow { next: U64::new(self.next.map_or(0, Child::to_bits)) };
        let mut block = Block::ZERO;
        let (place, rest) = block.0[HEADER_BYTES..].split_at_mut(size_of::<PieceRow>());
        place.copy_from_slice(row.as_bytes());
        rest[..self.bytes.len()].copy_from_slice(self.bytes);
        let label = Label { kind: Kind::Pivot, keyspace, offset, epoch };
        seal(&mut block.0, segment, label, self.bytes.len() as u16);
        block
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::block::unseal;

    fn compared(pivot: &[u8], front_bytes: usize, key: &[u8]) -> Ordering {
        let (front, rest) = pivot.split_at(front_bytes);
        let of_rest = Rest { first: Child::new(4096, 1), bytes: rest.len() };
        let pivot = Pivot { front, rest: Some(of_rest) };
        let compare = |of: Rest, key: &[u8]| {
            assert_eq!(of, of_rest);
            Ok::<_, Damage>(rest.cmp(key))
        };
        let ordering = pivot.compare(key, compare).expect("no failure");
        let of_front = pivot.compare_front(&key[..key.len().min(3)]);
        assert!(of_front.is_none_or(|of_front| of_front == ordering.reverse()));
        ordering
    }

    proptest! {
        #[test]
        fn a_long_pivot_compares_as_its_bytes_do(
            pivot in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1)], 5..9),
            key in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1)], 0..9),
            front_bytes in 1_usize..5,
        ) {
            prop_assert_eq!(compared(&pivot, front_bytes, &key), pivot.cmp(&key));
        }

        #[test]
        fn no_contents_of_a_sealed_piece_cause_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 4048),
            count: u16,
            left in 1_usize..70_000,
        ) {
            let mut block = Block::ZERO;
            block.0[HEADER_BYTES..].copy_from_slice(&bytes);
            seal(&mut block.0, Uuid::from_bytes([1; 16]), Label { kind: Kind::Pivot, keyspace: 2, offset: 4096, epoch: 5 }, count);
            let sealed = unseal(&block.0, Kind::Pivot, 4096).expect("whole");
            if let Ok(piece) = Piece::from_block(&sealed, left) {
                assert_eq!(piece.bytes.len(), left.min(PIECE_BYTES));
            }
        }
    }

    #[test]
    fn a_piece_has_the_length_that_its_place_in_the_pivot_requires() {
        let (bytes, next) = (vec![7; PIECE_BYTES], Child::new(12_288, 5));
        for (piece, left) in [
            (Piece { bytes: &bytes, next: Some(next) }, PIECE_BYTES + 1),
            (Piece { bytes: &bytes, next: None }, PIECE_BYTES),
            (Piece { bytes: &bytes[..9], next: None }, 9),
        ] {
            let block = piece.to_block(Uuid::from_bytes([1; 16]), 2, 8192, 5);
            let sealed = unseal(&block.0, Kind::Pivot, 8192).expect("whole");
            assert_eq!(Piece::from_block(&sealed, left), Ok(piece));
            for wrong in [left - 1, left + PIECE_BYTES] {
                let damaged = Piece::from_block(&sealed, wrong);
                assert!(damaged.is_err() || wrong > PIECE_BYTES && left > PIECE_BYTES, "{wrong} in place of {left}");
            }
        }
    }
}
