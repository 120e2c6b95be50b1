//! Ends of files that a process may still store behind, though it has lost its lease: they get other blocks before a file becomes longer.

use std::ops::Range;

use super::Fs;
use super::node::State;
use crate::data;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Taken;

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
        self.replace_behind_end(file, end)
    }

    /// Gives a file other blocks for those that are reserved from `end` on. They hold nothing, so nothing is copied: a call that makes the file longer
    /// makes zeros of them, or a holder stores to them first.
    fn replace_behind_end(&self, file: &mut Loaded, end: u32) -> Result<()> {
        let (mut taken, mut changes) = (Vec::new(), Vec::new());
        for blocks in self.lost_parts(file, end..file.map.end().max(end)) {
            match self.volume.take(blocks.len() as u64) {
                Ok(to) => {
                    changes.push((blocks, to.runs.clone()));
                    taken.push(to);
                }
                // It was only reserved.
                Err(Error::NoSpace { .. }) => changes.push((blocks, Vec::new())),
                Err(error) => return Err(error),
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let remapped = file.remap(&self.volume, &changes)?;
        let mut transaction = self.volume.journals.begin(self.volume.home());
        file.store(&self.volume, &mut transaction, Some(&remapped));
        transaction.commit()?;
        taken.into_iter().for_each(Taken::keep);
        remapped.settle(&self.volume);
        Ok(())
    }

    /// The parts of a range of blocks that processes without a lease may still store to.
    fn lost_parts(&self, file: &Loaded, blocks: Range<u32>) -> Vec<Range<u32>> {
        let (mut parts, mut next) = (Vec::new(), blocks.start);
        while next < blocks.end {
            let piece = file.map.piece(next, (blocks.end - next).into());
            if let Piece::There { run, .. } = piece {
                let in_file = |block: u64| next + (block - run.start) as u32;
                parts.extend(
                    self.volume.lost.parts_of(&run).iter().map(|part| in_file(part.start)..in_file(part.end())),
                );
            }
            next += piece.count() as u32;
        }
        parts
    }
}
