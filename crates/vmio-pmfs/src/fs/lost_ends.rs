//! Ends of files that a process may still store behind, though it has lost its lease: they get other blocks before a file becomes longer.

use std::ops::Range;

use super::Fs;
use super::growing::Released;
use super::node::State;
use crate::data;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;

impl Fs {
    /// Gives a file other blocks for its end, and for what is reserved behind it, where a process that has lost its lease may be in the middle of an
    /// append. Whatever that one stores then reaches blocks of nobody. Each call that makes a file longer begins with this.
    ///
    /// [`Error::Leased`] if others have the end mapped: they are asked for it first. [`Error::NoSpace`] if there is no other block for it.
    pub(super) fn part_from_lost(&self, state: &mut State) -> Result<()> {
        if !self.volume.lost.has_any() {
            return Ok(());
        }
        let result = self.move_end(&mut state.loaded);
        self.settled(state, result)
    }

    fn move_end(&self, file: &mut Loaded) -> Result<()> {
        let size = file.inode.size;
        let (first, end) = ((size / BLOCK_BYTES) as u32, size.div_ceil(BLOCK_BYTES) as u32);
        for blocks in self.lost_parts(file, first..end) {
            data::relocate(&self.volume, file, blocks, self.volume.take(1)?)?;
        }
        for blocks in self.lost_parts(file, end..file.map.end().max(end)) {
            match self.volume.take(blocks.len() as u64) {
                Ok(to) => data::relocate(&self.volume, file, blocks, to)?,
                // What was only reserved holds nothing.
                Err(Error::NoSpace { .. }) => self.release_behind_end(file, blocks, Released::Free)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The parts of a range of blocks that processes without a lease may still store to.
    fn lost_parts(&self, file: &Loaded, blocks: Range<u32>) -> Vec<Range<u32>> {
        let (mut parts, mut next) = (Vec::new(), blocks.start);
        while next < blocks.end {
            let piece = file.map.piece(next, (blocks.end - next).into());
            let after = next + piece.count() as u32;
            if let Piece::There { run, .. } = piece
                && self.volume.lost.has(&run)
            {
                parts.push(next..after);
            }
            next = after;
        }
        parts
    }
}
