//! Other blocks for what a file has.

use std::ops::Range;

use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::{Loaded, Remapped};
use crate::inodes::volume::{Taken, Volume};

/// The bytes that are copied at once.
const COPY_BYTES: u64 = 64 << 10;

/// Gives blocks of a file, all of which it has, these blocks with the same contents. After an error the file is to be loaded again.
pub(crate) fn relocate(volume: &Volume, file: &mut Loaded, blocks: Range<u32>, to: Taken<'_>) -> Result<()> {
    copy(volume, file, blocks, to)?.settle(volume);
    Ok(())
}

/// The same, and the blocks that it has had are not free: another file has them, too.
pub(crate) fn relocate_shared(volume: &Volume, file: &mut Loaded, blocks: Range<u32>, to: Taken<'_>) -> Result<()> {
    copy(volume, file, blocks, to)?.settle_shared();
    Ok(())
}

fn copy<'volume>(
    volume: &'volume Volume,
    file: &mut Loaded,
    blocks: Range<u32>,
    to: Taken<'_>,
) -> Result<Remapped<'volume>> {
    debug_assert_eq!(to.blocks(), u64::from(blocks.end - blocks.start));
    let mut buffer = vec![0; COPY_BYTES as usize];
    let mut next = blocks.start;
    for run in &to.runs {
        let mut at = run.start;
        while at < run.end() {
            let piece = file.map.piece(next, (run.end() - at).min(COPY_BYTES / BLOCK_BYTES));
            let part = &mut buffer[..(piece.count() * BLOCK_BYTES) as usize];
            match piece {
                Piece::There { run, .. } => volume.medium.read(run.start * BLOCK_BYTES, part),
                Piece::Hole { .. } => part.fill(0),
            }
            volume.medium.write(at * BLOCK_BYTES, part);
            (at, next) = (at + piece.count(), next + piece.count() as u32);
        }
    }
    let remapped = file.remap(volume, &[(blocks, to.runs.clone())])?;
    let mut transaction = volume.journals.begin(volume.home());
    file.store(volume, &mut transaction, Some(&remapped));
    transaction.commit()?;
    to.keep();
    Ok(remapped)
}
