//! Leases: the place of a file's blocks on the medium, for processes that map them.

use std::ops::Range;

use super::Fs;
use super::growing::Still;
use super::node::State;
use crate::data::{self, Length};
use crate::error::Result;
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BYTES};
use crate::inodes::block_map::{BlockMap, Piece};
use crate::inodes::leases::Returned;

/// A leased part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The length of the file.
    pub size: u64,
    /// The blocks of the file that the answer is about. It may be shorter than the request.
    pub blocks: Range<u32>,
    /// Where they are, in the file's order. Blocks in none of them are holes.
    pub extents: Vec<LeasedExtent>,
    /// Of a lease to grow whose holder appends durably: the byte of the medium at which it stores the length, a word of 8 bytes.
    pub slot_at: Option<u64>,
}

/// Blocks of a file that lie side by side on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedExtent {
    /// The first one in the file.
    pub file_block: u32,
    /// How many there are.
    pub blocks: u32,
    /// The first one on the medium.
    pub start: u64,
}

/// The answer to holes in a part of a file that a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// They stay.
    Keep,
    /// They get blocks of zeros.
    Fill,
}

impl Fs {
    /// Leases blocks of a file to a holder, up to the file's end and up to `most` extents. The file stays, even without a name, and the
    /// blocks where they are until [`Self::end_lease`] or [`Self::revoke_lease`]. Meanwhile other calls overwrite them in place, and fail
    /// with [`crate::Error::Leased`] where they would take one away.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`], [`crate::Error::IsADirectory`], [`crate::Error::WrongKind`], [`crate::Error::NoSpace`] for holes.
    pub fn lease(&self, ino: u64, holder: u64, blocks: Range<u32>, holes: Holes, most: usize) -> Result<Lease> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        let size = state.loaded.inode.size;
        let blocks = blocks.start..blocks.end.min(size.div_ceil(BLOCK_BYTES) as u32);
        if blocks.is_empty() {
            return Ok(Lease { size, blocks: blocks.start..blocks.start, extents: Vec::new(), slot_at: None });
        }
        if holes == Holes::Fill && state.loaded.map.has_hole(&blocks) {
            let (from, to) = (u64::from(blocks.start) * BLOCK_BYTES, (u64::from(blocks.end) * BLOCK_BYTES).min(size));
            let result = data::allocate(&self.volume, &mut state.loaded, from, to - from, Length::Stays);
            self.settled(&mut state, result)?;
        }
        let (extents, next) = located(&state.loaded.map, &blocks, most);
        if u64::from(next) * BLOCK_BYTES > size {
            data::zero_last_block(&self.volume, &state.loaded);
        }
        let blocks = blocks.start..next;
        if !blocks.is_empty() && state.loaded.leases.grant(holder, blocks.clone()) {
            state.opens += 1;
        }
        if state.loaded.map.aligned_extents() < size / EXTENT_BYTES {
            self.wants_alignment(ino);
        }
        Ok(Lease { size, blocks, extents, slot_at: None })
    }

    /// The holders of leases of a file's blocks from one on.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn lease_holders(&self, ino: u64, from: u32) -> Result<Vec<u64>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(state.loaded.leases.of(&(from..u32::MAX)).map(|(holder, _)| holder).collect())
    }

    /// Ends a holder's lease of a file, from a block on: it has nothing of that mapped any more.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn end_lease(&self, ino: u64, holder: u64, from: u32) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.take_back(&mut state, holder, from, Still::Unmapped)
    }

    fn take_back(&self, state: &mut State, holder: u64, from: u32, still: Still) -> Result<()> {
        let growth = state.loaded.leases.growth();
        let returned = state.loaded.leases.take_back(holder, from);
        if let (Some(growth), None) = (growth, state.loaded.leases.growth()) {
            self.end_growth(state, growth, still);
        }
        match returned {
            Returned::Part => Ok(()),
            Returned::All => self.end_use(state),
        }
    }

    /// Ends a holder's lease of a file, from a block on, though it may still have that mapped. Those of the blocks that become
    /// free stay nobody's until [`Self::holder_is_gone`].
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn revoke_lease(&self, ino: u64, holder: u64, from: u32) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let held: Vec<Range<u32>> = state
            .loaded
            .leases
            .of(&(from..u32::MAX))
            .filter_map(|(other, held)| (other == holder).then_some(held))
            .collect();
        for held in held {
            self.volume.lost.add(holder, state.loaded.map.runs_of(held));
        }
        if state.loaded.leases.growth().is_some_and(|growth| growth.holder == holder) {
            self.volume.lost.add(holder, self.volume.reserved.of(ino));
        }
        self.take_back(&mut state, holder, from, Still::Mapped)?;
        // An inode that has ended with its last use has no end to move. Else what cannot move yet does before the file becomes longer.
        if !state.is_gone
            && let Err(error) = self.part_from_lost(&mut state)
        {
            tracing::debug!(%error, ino, holder, "the end of a file stays where a process may store that has lost its lease");
        }
        Ok(())
    }

    /// A holder is gone, with all that it had mapped. Its leases have ended or were revoked before.
    pub fn holder_is_gone(&self, holder: u64) {
        self.volume.free(self.volume.lost.holder_is_gone(holder));
        self.volume.slots.holder_is_gone(holder);
    }
}

/// Where blocks of a file are, up to `most` extents, and the block behind those.
pub(super) fn located(map: &BlockMap, blocks: &Range<u32>, most: usize) -> (Vec<LeasedExtent>, u32) {
    let mut extents: Vec<LeasedExtent> = Vec::new();
    let mut next = blocks.start;
    while next < blocks.end {
        let piece = map.piece(next, (blocks.end - next).into());
        let count = piece.count() as u32;
        if let Piece::There { run, .. } = piece {
            let follows = |last: &&mut LeasedExtent| {
                last.file_block + last.blocks == next && last.start + u64::from(last.blocks) == run.start
            };
            if let Some(last) = extents.last_mut().filter(follows) {
                last.blocks += count;
            } else if extents.len() == most {
                break;
            } else {
                extents.push(LeasedExtent { file_block: next, blocks: count, start: run.start });
            }
        }
        next += count;
    }
    (extents, next)
}
