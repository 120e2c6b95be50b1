//! The data of files. A write is atomic and durable when it returns.
//!
//! Overwritten bytes of aligned extents are saved, then overwritten in place, so that the extent stays whole; those of leased blocks too.
//! Other blocks are written anew elsewhere. In relaxed mode all blocks that are there are overwritten in place, and nothing is saved. Bytes behind the end of a file are written in place: nobody sees them before the transaction that moves the end.

mod fallocate;
mod read;
mod relocate;
mod resize;
mod write;

pub use fallocate::Length;
pub(crate) use fallocate::{allocate, punch, zero};
pub use read::Seek;
pub(crate) use read::{read, seek};
pub(crate) use relocate::{relocate, relocate_shared};
pub(crate) use resize::resize;
pub(crate) use write::write;

use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use crate::format::inode::FILE_BYTES_MAX;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// The promise for the data of a call that a crash cuts short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All of it or nothing.
    #[default]
    Strict,
    /// Any of its words. Names, lengths and all other metadata are as in strict mode, and a call that has returned is durable.
    Relaxed,
}

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
    (is_large(file.inode.size) || file.inode.wishes_alignment) && file.map.is_growing(block)
}

/// How many of a file's blocks from this one on are asked for at once, so that aligned extents come to lie where the file is aligned.
fn for_alignment(block: u32, blocks: u64) -> u64 {
    let ahead = EXTENT_BLOCKS - u64::from(block) % EXTENT_BLOCKS;
    match ahead == EXTENT_BLOCKS && blocks >= EXTENT_BLOCKS {
        true => blocks / EXTENT_BLOCKS * EXTENT_BLOCKS,
        false => blocks.min(ahead),
    }
}

/// Makes the bytes behind the end zeros in the block of the last one: a process that has the block mapped sees them, and expects zeros there.
/// Not while a process may be storing there what it appends.
pub(crate) fn zero_last_block(volume: &Volume, file: &Loaded) {
    if file.leases.growth().is_none() {
        zero_behind_end(volume, file, file.inode.size.next_multiple_of(BLOCK_BYTES));
    }
}

/// Makes what a file's blocks hold from its end up to `to` zeros: it is about to become part of the file.
fn zero_behind_end(volume: &Volume, file: &Loaded, to: u64) {
    let zeros = [0; BLOCK_BYTES as usize];
    let mut at = file.inode.size;
    while at < to {
        let block = block_of(at);
        let piece = file.map.piece(block, u64::from(block_of(to - 1) - block) + 1);
        let end = ((u64::from(block) + piece.count()) * BLOCK_BYTES).min(to);
        if let Piece::There { run, .. } = piece {
            let place = run.start * BLOCK_BYTES + at % BLOCK_BYTES;
            for done in (0..end - at).step_by(zeros.len()) {
                let len = (end - at - done).min(BLOCK_BYTES) as usize;
                volume.medium.write(place + done, &zeros[..len]);
            }
        }
        at = end;
    }
}
