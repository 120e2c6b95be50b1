//! The data of files. A write is atomic and durable when it returns.
//!
//! Overwritten bytes of aligned extents are saved, then overwritten in place, so that the extent stays whole. Other blocks are written
//! anew elsewhere. Bytes behind the end of a file are written in place: nobody sees them before the transaction that moves the end.

mod read;
mod relocate;
mod resize;
mod write;

pub(crate) use read::read;
pub(crate) use relocate::relocate;
pub(crate) use resize::{allocate, resize};
pub(crate) use write::write;

use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use crate::format::inode::FILE_BYTES_MAX;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// The end of a range, if a file can be so long.
pub(crate) fn end_of(offset: u64, bytes: u64) -> Result<u64> {
    match offset.checked_add(bytes) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        end => Err(Error::FileTooLarge { end: end.unwrap_or(u64::MAX) }),
    }
}

/// The block of a file that a byte is in.
fn block_of(offset: u64) -> u32 {
    (offset / BLOCK_BYTES) as u32
}

/// Whether a file of this length wants aligned extents for what it gets next.
fn is_large(size: u64) -> bool {
    size >= EXTENT_BYTES
}

/// Whether a block is of an aligned extent that a large file is growing into.
fn grows_in(file: &Loaded, block: u32) -> bool {
    is_large(file.inode.size) && file.map.is_growing(block)
}

/// How many of a file's blocks from this one on are asked for at once, so that aligned extents come to lie where the file is aligned.
fn for_alignment(block: u32, blocks: u64) -> u64 {
    let ahead = EXTENT_BLOCKS - u64::from(block) % EXTENT_BLOCKS;
    match ahead == EXTENT_BLOCKS && blocks >= EXTENT_BLOCKS {
        true => blocks / EXTENT_BLOCKS * EXTENT_BLOCKS,
        false => blocks.min(ahead),
    }
}

/// Makes the bytes from the end of a file to the end of its block zeros, up to `to`: they are about to become part of the file.
fn zero_behind_end(volume: &Volume, file: &Loaded, to: u64) {
    let size = file.inode.size;
    let end = size.next_multiple_of(BLOCK_BYTES).min(to);
    if size < end
        && let Piece::There { run, .. } = file.map.piece(block_of(size), 1)
    {
        let zeros = [0; BLOCK_BYTES as usize];
        volume.medium.write(run.start * BLOCK_BYTES + size % BLOCK_BYTES, &zeros[..(end - size) as usize]);
    }
}
