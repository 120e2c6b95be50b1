//! Long pivots of a tree: writing them, comparing keys with them, and listing their blocks.
//!
//! They are copies in blocks of the tree, so that the collection of the log does not touch them. A tree has each pivot once, in one of its
//! inner nodes. A new tree keeps those of the old one that still separate the same leaves.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::block::Kind;
use crate::format::branch::Branch;
use crate::format::child::Child;
use crate::format::pivot::{FRONT_BYTES, OwnedPivot, PIECE_BYTES, Piece, Pivot, Rest, SHORT_BYTES_MAX};
use crate::tree::Tree;
use crate::tree::node_writer::{NodeWriter, Which};

impl Tree<'_> {
    /// Which child of an inner node a key leads to.
    pub(super) fn find(&self, branch: &Branch<'_>, node: Child, key: &[u8]) -> Result<usize> {
        branch.find(key, self.damaged(Kind::Branch, node), |rest, key| self.compare_rest(rest, key))
    }

    /// Compares a pivot with a key.
    pub(super) fn compare_pivot(&self, pivot: &OwnedPivot, key: &[u8]) -> Result<Ordering> {
        pivot.compare(key, |rest, key| self.compare_rest(rest, key))
    }

    /// Compares the rest of a long pivot with the rest of a key. Pieces are read up to the first that differs.
    fn compare_rest(&self, rest: Rest, key: &[u8]) -> Result<Ordering> {
        let (mut next, mut left, mut key) = (Some(rest.first), rest.bytes, key);
        while let Some(block) = next {
            let of_piece = &key[..key.len().min(PIECE_BYTES)];
            let (ordering, behind) = self.piece(block, left, |piece| {
                let shared = &of_piece[..of_piece.len().min(piece.bytes.len())];
                // A key that ends here is less than a pivot that goes on.
                (piece.bytes.cmp(shared), piece.next)
            })?;
            if ordering != Ordering::Equal {
                return Ok(ordering);
            }
            let length = left.min(PIECE_BYTES);
            (next, left, key) = (behind, left - length, &key[length..]);
        }
        Ok(if key.is_empty() { Ordering::Equal } else { Ordering::Less })
    }

    /// Calls `look` with a piece, from which on the pivot has `left` bytes.
    fn piece<Answer>(&self, block: Child, left: usize, look: impl Fn(&Piece<'_>) -> Answer) -> Result<Answer> {
        self.look(Kind::Pivot, block, |sealed| {
            let piece = Piece::from_block(sealed, left).map_err(self.damaged(Kind::Pivot, block))?;
            Ok(look(&piece))
        })
    }

    /// All bytes of a pivot.
    pub(super) fn whole_pivot(&self, pivot: &OwnedPivot) -> Result<Vec<u8>> {
        let mut whole = pivot.front.clone();
        let Some(rest) = pivot.rest else { return Ok(whole) };
        let (mut next, mut left) = (Some(rest.first), rest.bytes);
        while let Some(block) = next {
            let (bytes, behind) = self.piece(block, left, |piece| (piece.bytes.to_vec(), piece.next))?;
            whole.extend(bytes);
            (next, left) = (behind, left - left.min(PIECE_BYTES));
        }
        Ok(whole)
    }

    /// The blocks of a long pivot.
    pub(super) fn blocks_of(&self, rest: Rest) -> Result<Vec<u64>> {
        let mut blocks = Vec::new();
        let (mut next, mut left) = (Some(rest.first), rest.bytes);
        while let Some(block) = next {
            blocks.push(block.offset());
            next = self.piece(block, left, |piece| piece.next)?;
            left -= left.min(PIECE_BYTES);
        }
        Ok(blocks)
    }
}

impl NodeWriter<'_> {
    /// Makes a pivot for a node. The rest of a long one is written.
    pub(super) fn pivot(&mut self, mut bytes: Vec<u8>) -> Result<OwnedPivot> {
        if bytes.len() <= SHORT_BYTES_MAX {
            return Ok(Pivot { front: bytes, rest: None });
        }
        let rest = bytes.split_off(FRONT_BYTES);
        let space = self.space();
        let mut next = None;
        // From the last piece on: each refers to the next one.
        for bytes in rest.chunks(PIECE_BYTES).rev() {
            let piece = Piece { bytes, next };
            let seal = |offset, epoch| piece.to_block(space.segment.uuid, space.keyspace, offset, epoch);
            next = Some(self.write(Which::Branch, seal)?);
        }
        Ok(Pivot { front: bytes, rest: next.map(|first| Rest { first, bytes: rest.len() }) })
    }
}
