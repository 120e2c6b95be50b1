//! Whole extents from broken ones that have few blocks in use: these go to holes elsewhere.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Fs;
use crate::alloc::Run;
use crate::data;
use crate::error::{Error, Result};
use crate::format::geometry::EXTENT_BLOCKS;
use crate::inodes::loaded::Loaded;

/// The outcome of [`Fs::gather`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Aligned extents that are whole now.
    pub extents: u64,
    /// Blocks that were moved for it.
    pub moved_blocks: u64,
}

impl Fs {
    /// Makes up to this many aligned extents whole: moves what is in them to holes of others, a transaction for each piece of a file. It reads all
    /// inodes. Files that are open stay where they are. Nothing is left to do if it gains none.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`].
    pub fn gather(&self, most: usize) -> Result<Gathered> {
        let closed: BTreeSet<u64> = self.volume.allocator.close_emptiest(most).into_iter().collect();
        let moved = if closed.is_empty() { Ok(0) } else { self.empty(&closed) };
        let extents = self.volume.allocator.reopen();
        Ok(Gathered { extents, moved_blocks: moved? })
    }

    /// Whether holes are more than a twentieth of the free space.
    pub fn has_many_holes(&self) -> bool {
        let space = self.space();
        (space.free_blocks - space.aligned_free_blocks.min(space.free_blocks)) * 20 > space.free_blocks
    }

    /// Moves blocks out of these extents. Returns how many.
    fn empty(&self, closed: &BTreeSet<u64>) -> Result<u64> {
        let geometry = self.geometry();
        let mut moved = 0;
        for ino in (0..geometry.areas).flat_map(|area| geometry.inodes_of(area)) {
            if !self.has_blocks_in(ino, closed)? {
                continue;
            }
            match self.move_out(ino, closed) {
                Ok(blocks) => moved += blocks,
                // Removed since.
                Err(Error::NoInode { .. }) => (),
                // No hole is left.
                Err(Error::NoSpace { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    fn has_blocks_in(&self, ino: u64, closed: &BTreeSet<u64>) -> Result<bool> {
        let nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&ino).cloned() {
            drop(nodes);
            return Ok(!pieces_in(&node.state.read().loaded, closed).is_empty());
        }
        // Nobody changes an inode without its node, and nobody gets one meanwhile.
        match Loaded::load(&self.volume, ino) {
            Ok(loaded) => Ok(!pieces_in(&loaded, closed).is_empty()),
            Err(Error::NoInode { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn move_out(&self, ino: u64, closed: &BTreeSet<u64>) -> Result<u64> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let mut moved = 0;
        // A file that grows stays where it grows, until it is closed.
        if !state.may_move() || self.volume.reserved.is_for(ino) {
            return Ok(0);
        }
        for blocks in pieces_in(&state.loaded, closed) {
            let count = u64::from(blocks.end - blocks.start);
            let to = self.volume.take_holes(count)?;
            let result = data::relocate(&self.volume, &mut state.loaded, blocks, to);
            self.settled(&mut state, result)?;
            moved += count;
        }
        Ok(moved)
    }
}

/// The pieces of a file that lie in these extents.
fn pieces_in(file: &Loaded, closed: &BTreeSet<u64>) -> Vec<Range<u32>> {
    let mut pieces = Vec::new();
    for extent in file.map.extents() {
        let run = Run { start: extent.start, count: extent.count.into() };
        let touched = run.start / EXTENT_BLOCKS..run.end().div_ceil(EXTENT_BLOCKS);
        for number in closed.range(touched) {
            let (from, to) = (run.start.max(number * EXTENT_BLOCKS), run.end().min((number + 1) * EXTENT_BLOCKS));
            let first = extent.file_block + (from - run.start) as u32;
            pieces.push(first..first + (to - from) as u32);
        }
    }
    pieces
}
