//! Aligned extents for files that were written in pieces, by copies of 2 MiB.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;

use super::Fs;
use super::node::State;
use crate::data;
use crate::error::{Error, Result};
use crate::format::geometry::{EXTENT_BLOCKS, EXTENT_BYTES};
use crate::format::inode::Kind;
use crate::inodes::block_map::{BlockMap, Piece};

/// The least size of a file that is rewritten before anybody maps it, if only its start lies in pieces. That copies an eighth of it at most.
const SIZE_BEFORE_MAPPED: u64 = 8 * EXTENT_BYTES;

/// The files that are to get aligned extents.
#[derive(Default)]
pub(super) struct Wanted(Mutex<VecDeque<u64>>);

/// The outcome of a step of [`Fs::rewrite_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// It has moved 2 MiB. Go on from this extent of the file.
    Moved(u64),
    /// The rest is aligned, or cannot be.
    Done,
    /// The file is in use.
    InUse,
    /// No aligned extent is free.
    NoSpace,
}

impl Fs {
    /// Rewrites all of a file that is not aligned yet, a transaction each 2 MiB. Says how it has ended; a crash or an error leaves the file as it
    /// was but for the place of its blocks.
    ///
    /// # Errors
    ///
    /// As [`Self::rewrite_step`].
    pub fn rewrite_aligned(&self, ino: u64) -> Result<Rewrite> {
        let mut from = 0;
        loop {
            match self.rewrite_step(ino, from)? {
                Rewrite::Moved(next) => from = next,
                end => return Ok(end),
            }
        }
    }

    /// Moves the first 2 MiB of a file that are not aligned to an aligned extent, from the extent with this number on. Other calls on the file wait
    /// meanwhile. A file in use stays; so do 2 MiB with holes in them.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::IsADirectory`], [`Error::WrongKind`].
    pub fn rewrite_step(&self, ino: u64, from: u64) -> Result<Rewrite> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        if !state.may_move() {
            return Ok(Rewrite::InUse);
        }
        let extents = state.loaded.inode.size / EXTENT_BYTES;
        let Some((extent, blocks)) = (from..extents)
            .map(|extent| (extent, (extent * EXTENT_BLOCKS) as u32..((extent + 1) * EXTENT_BLOCKS) as u32))
            .find(|(_, blocks)| is_in_pieces(&state.loaded.map, blocks))
        else {
            return Ok(Rewrite::Done);
        };
        let Some(to) = self.volume.take_extent() else { return Ok(Rewrite::NoSpace) };
        let result = data::relocate(&self.volume, &mut state.loaded, blocks, to);
        match self.settled(&mut state, result) {
            // The list of extents needs a block.
            Err(Error::NoSpace { .. }) => Ok(Rewrite::NoSpace),
            done => done.map(|()| Rewrite::Moved(extent + 1)),
        }
    }

    /// A file that is not aligned waits for its rewriting until nobody uses it: somebody maps it, or it has outgrown its start.
    pub fn wants_alignment(&self, ino: u64) {
        let mut wanted = self.wanted.0.lock();
        if !wanted.contains(&ino) {
            wanted.push_back(ino);
        }
    }

    /// The next file that is to be rewritten.
    pub fn next_wanted(&self) -> Option<u64> {
        self.wanted.0.lock().pop_front()
    }
}

impl State {
    /// Whether its blocks may go elsewhere. Those of a file that is open may not: its users may know where they are.
    pub(super) fn may_move(&self) -> bool {
        self.opens == 0 || self.is_directory()
    }

    /// Whether it is a large file that began as a small one: its first extent is in pieces, the others are aligned.
    pub(super) fn has_outgrown_its_start(&self) -> bool {
        let map = &self.loaded.map;
        self.loaded.inode.kind == Kind::File
            && self.loaded.inode.size >= SIZE_BEFORE_MAPPED
            && map.aligned_extents() + 1 >= self.loaded.inode.size / EXTENT_BYTES
            && is_in_pieces(map, &(0..EXTENT_BLOCKS as u32))
    }
}

/// Whether an aligned part of a file has all its blocks, but not in an aligned extent.
fn is_in_pieces(map: &BlockMap, blocks: &Range<u32>) -> bool {
    let mut block = blocks.start;
    while block < blocks.end {
        match map.piece(block, u64::from(blocks.end - block)) {
            Piece::Hole { .. } | Piece::There { is_aligned: true, .. } => return false,
            Piece::There { run, .. } => block += run.count as u32,
        }
    }
    true
}
