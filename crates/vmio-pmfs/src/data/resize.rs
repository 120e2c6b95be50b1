//! A new length, and blocks ahead of writes.

use super::{block_of, end_of, for_alignment, zero_behind_end};
use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::Time;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::{Loaded, Remapped};
use crate::inodes::volume::{Taken, Volume};

/// Gives a file another length, in memory; the caller's transaction makes it so. After an error the file is to be loaded again.
pub(crate) fn resize<'volume>(
    volume: &'volume Volume,
    file: &mut Loaded,
    size: u64,
) -> Result<Option<Remapped<'volume>>> {
    end_of(size, 0)?;
    zero_behind_end(volume, file, size);
    let kept = size.div_ceil(BLOCK_BYTES) as u32;
    if size < file.inode.size {
        volume.give_back_reserved(file.ino);
    }
    let remapped = match file.map.end() > kept {
        true => Some(file.remap(volume, &[(kept..file.map.end(), Vec::new())])?),
        false => None,
    };
    file.inode.size = size;
    Ok(remapped)
}

/// Gives a range of a file blocks of zeros where it has none, and the file a length that covers it. Its huge pages are aligned ones where
/// there are any. After an error the file is to be loaded again.
pub(crate) fn allocate(volume: &Volume, file: &mut Loaded, offset: u64, bytes: u64) -> Result<()> {
    let end = end_of(offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    let (mut block, last) = (block_of(offset), end.div_ceil(BLOCK_BYTES) as u32);
    let (mut taken, mut changes) = (Vec::new(), Vec::new());
    while block < last {
        let piece = file.map.piece(block, for_alignment(block, u64::from(last - block)));
        if let Piece::Hole { count } = piece {
            let runs = volume.take(count)?;
            for block in runs.runs.iter().flat_map(|run| run.start..run.end()) {
                volume.medium.write(block * BLOCK_BYTES, &[0; BLOCK_BYTES as usize]);
            }
            changes.push((block..block + count as u32, runs.runs.clone()));
            taken.push(runs);
        }
        block += piece.count() as u32;
    }
    zero_behind_end(volume, file, end);
    let remapped = file.remap(volume, &changes)?;
    file.inode.size = file.inode.size.max(end);
    file.inode.changed = Time::now();
    let mut transaction = volume.journals.begin(volume.home());
    file.store(volume, &mut transaction, Some(&remapped));
    transaction.commit()?;
    taken.into_iter().for_each(Taken::keep);
    remapped.settle(volume);
    Ok(())
}
