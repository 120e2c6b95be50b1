//! Reading.

use super::block_of;
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// Reads up to the end of the file. Returns how many bytes there are.
pub(crate) fn read(volume: &Volume, file: &Loaded, offset: u64, into: &mut [u8]) -> usize {
    let there = file.inode.size.saturating_sub(offset).min(into.len() as u64) as usize;
    let mut done = 0;
    while done < there {
        let at = offset + done as u64;
        let in_block = at % BLOCK_BYTES;
        let left = (there - done) as u64;
        let piece = file.map.piece(block_of(at), (in_block + left).div_ceil(BLOCK_BYTES));
        let len = (piece.count() * BLOCK_BYTES - in_block).min(left) as usize;
        let part = &mut into[done..done + len];
        match piece {
            Piece::There { run, .. } => volume.medium.read(run.start * BLOCK_BYTES + in_block, part),
            Piece::Hole { .. } => part.fill(0),
        }
        done += len;
    }
    there
}
