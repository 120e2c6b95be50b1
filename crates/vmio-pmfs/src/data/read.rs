//! Reading.

use super::block_of;
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// The contents that a program looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Blocks that are there.
    Data,
    /// Blocks that are not. The end of the file is one.
    Hole,
}

/// The first byte from an offset on that is data, or in a hole. Nothing if there is none.
pub(crate) fn seek(file: &Loaded, offset: u64, wanted: Seek) -> Option<u64> {
    let size = file.inode.size;
    if offset >= size {
        return None;
    }
    let (mut block, end) = (block_of(offset), size.div_ceil(BLOCK_BYTES) as u32);
    while block < end {
        let piece = file.map.piece(block, u64::from(end - block));
        if matches!(piece, Piece::There { .. }) == (wanted == Seek::Data) {
            return Some(offset.max(u64::from(block) * BLOCK_BYTES));
        }
        block += piece.count() as u32;
    }
    (wanted == Seek::Hole).then_some(size)
}

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
