//! Changes of ranges (fallocate): blocks ahead of writes, holes, zeros. Each is one transaction.

use std::ops::Range;

use super::{Mode, block_of, end_of, for_alignment, zero_behind_end};
use crate::alloc::Run;
use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::Time;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::{Taken, Volume};

/// Whether a file becomes as long as the range reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// It does, if it is shorter.
    Grows,
    /// It does not. Blocks behind the end wait for it.
    Stays,
}

/// Changes of a file that become one transaction.
#[derive(Default)]
struct Changes<'volume> {
    taken: Vec<Taken<'volume>>,
    /// Blocks of the file and those of the medium that they get.
    blocks: Vec<(Range<u32>, Vec<Run>)>,
    /// Bytes of the medium that become zeros in place.
    zeros: Vec<(u64, usize)>,
}

impl<'volume> Changes<'volume> {
    /// Gives blocks of the file new blocks of zeros.
    fn renew(&mut self, volume: &'volume Volume, blocks: Range<u32>) -> Result<()> {
        let mut block = blocks.start;
        while block < blocks.end {
            let count = for_alignment(block, u64::from(blocks.end - block));
            let taken = volume.take(count)?;
            for block in taken.runs.iter().flat_map(|run| run.start..run.end()) {
                volume.medium.write(block * BLOCK_BYTES, &[0; BLOCK_BYTES as usize]);
            }
            self.blocks.push((block..block + count as u32, taken.runs.clone()));
            self.taken.push(taken);
            block += count as u32;
        }
        Ok(())
    }

    /// Makes whole blocks zeros: those that are there in place, if they may be torn.
    fn make_zeros(&mut self, volume: &'volume Volume, file: &Loaded, blocks: Range<u32>) -> Result<()> {
        if volume.mode == Mode::Strict {
            return self.renew(volume, blocks);
        }
        let mut block = blocks.start;
        while block < blocks.end {
            let piece = file.map.piece(block, (blocks.end - block).into());
            let after = block + piece.count() as u32;
            match piece {
                Piece::Hole { .. } => self.renew(volume, block..after)?,
                Piece::There { run, .. } => {
                    self.zeros.extend((run.start..run.end()).map(|block| (block * BLOCK_BYTES, BLOCK_BYTES as usize)));
                }
            }
            block = after;
        }
        Ok(())
    }

    /// Makes bytes of one block zeros if it is there.
    fn clear(&mut self, file: &Loaded, bytes: Range<u64>) {
        let visible = bytes.start..bytes.end.min(file.inode.size);
        if let Piece::There { run, .. } = file.map.piece(block_of(visible.start), 1)
            && !visible.is_empty()
        {
            let at = run.start * BLOCK_BYTES + visible.start % BLOCK_BYTES;
            self.zeros.push((at, (visible.end - visible.start) as usize));
        }
    }

    fn commit(self, volume: &Volume, file: &mut Loaded) -> Result<()> {
        let remapped = file.remap(volume, &self.blocks)?;
        file.inode.modified = Time::now();
        file.inode.changed = file.inode.modified;
        if volume.mode == Mode::Relaxed {
            self.zeros.iter().for_each(|(at, bytes)| volume.medium.write(*at, &[0; BLOCK_BYTES as usize][..*bytes]));
        }
        let mut transaction = volume.journals.begin(volume.home());
        if volume.mode == Mode::Strict {
            for (at, bytes) in self.zeros {
                transaction.overwrite(at, &[0; BLOCK_BYTES as usize][..bytes]);
            }
        }
        file.store(volume, &mut transaction, Some(&remapped));
        transaction.commit()?;
        self.taken.into_iter().for_each(Taken::keep);
        remapped.settle(volume);
        Ok(())
    }
}

/// The blocks that lie in a range as a whole, and the bytes of it before and behind them: a part of a block each.
fn split(range: Range<u64>) -> (Range<u32>, [Range<u64>; 2]) {
    let first = range.start.next_multiple_of(BLOCK_BYTES).min(range.end);
    let last = (range.end / BLOCK_BYTES * BLOCK_BYTES).max(first);
    let whole = if first == last { 0..0 } else { block_of(first)..block_of(last) };
    (whole, [range.start..first, last..range.end])
}

/// Gives a range of a file blocks of zeros where it has none. Its huge pages are aligned ones where there are any. After an error the file is
/// to be loaded again, here as below.
pub(crate) fn allocate(volume: &Volume, file: &mut Loaded, offset: u64, bytes: u64, length: Length) -> Result<()> {
    let end = end_of(offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    let (mut block, last) = (block_of(offset), end.div_ceil(BLOCK_BYTES) as u32);
    let mut changes = Changes::default();
    while block < last {
        let piece = file.map.piece(block, for_alignment(block, u64::from(last - block)));
        let after = block + piece.count() as u32;
        if let Piece::Hole { .. } = piece {
            changes.renew(volume, block..after)?;
        }
        block = after;
    }
    grow(volume, file, end, length);
    changes.commit(volume, file)
}

/// Makes a range zeros and frees its blocks.
pub(crate) fn punch(volume: &Volume, file: &mut Loaded, offset: u64, bytes: u64) -> Result<()> {
    let mut end = end_of(offset, bytes)?;
    if end >= file.inode.size {
        // Of the block at the end nothing is left to keep.
        end = end.next_multiple_of(BLOCK_BYTES);
    }
    let (whole, parts) = split(offset..end);
    let mut changes = Changes::default();
    parts.into_iter().for_each(|part| changes.clear(file, part));
    if !whole.is_empty() {
        changes.blocks.push((whole, Vec::new()));
    }
    changes.commit(volume, file)
}

/// Makes a range zeros, which has blocks then.
pub(crate) fn zero(volume: &Volume, file: &mut Loaded, offset: u64, bytes: u64, length: Length) -> Result<()> {
    let end = end_of(offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    let (whole, parts) = split(offset..end);
    let mut changes = Changes::default();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let block = block_of(part.start);
        match file.map.piece(block, 1) {
            Piece::There { .. } => changes.clear(file, part),
            Piece::Hole { .. } => changes.renew(volume, block..block + 1)?,
        }
    }
    changes.make_zeros(volume, file, whole)?;
    grow(volume, file, end, length);
    changes.commit(volume, file)
}

fn grow(volume: &Volume, file: &mut Loaded, end: u64, length: Length) {
    if length == Length::Grows {
        zero_behind_end(volume, file, end);
        file.inode.size = file.inode.size.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_blocks_and_parts_of_one() {
        for (range, expected) in [
            (0..8192, (0..2, [0..0, 8192..8192])),
            (100..200, (0..0, [100..200, 200..200])),
            (100..5000, (0..0, [100..4096, 4096..5000])),
            (100..8192, (1..2, [100..4096, 8192..8192])),
            (4096..9000, (1..2, [4096..4096, 8192..9000])),
            (4096..4096, (0..0, [4096..4096, 4096..4096])),
        ] {
            assert_eq!(split(range.clone()), expected, "{range:?}");
        }
    }
}
