//! Writing.

use std::ops::Range;

use super::{Mode, block_of, end_of, grows_in, is_large, read, zero_behind_end};
use crate::alloc::Run;
use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::Time;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::{Taken, Volume};

/// How the blocks are written that a write touches.
#[derive(Default)]
struct Plan {
    /// Parts of the bytes that overwrite an aligned extent, and where.
    overwrites: Vec<(Range<usize>, u64)>,
    /// Parts that go behind the end of the file, into blocks that it has.
    behind: Vec<(Range<usize>, u64)>,
    /// Parts that overwrite what is there, and may be torn.
    torn: Vec<(Range<usize>, u64)>,
    /// Blocks that are written anew.
    anew: Vec<Range<u32>>,
}

impl Plan {
    fn of(file: &Loaded, offset: u64, bytes: usize, mode: Mode) -> Plan {
        let mut plan = Plan::default();
        let end = offset + bytes as u64;
        let (mut block, last) = (block_of(offset), block_of(end - 1));
        while block <= last {
            let piece = file.map.piece(block, u64::from(last - block) + 1);
            let start = (u64::from(block) * BLOCK_BYTES).max(offset);
            let after = block + piece.count() as u32;
            let stop = (u64::from(after) * BLOCK_BYTES).min(end);
            match piece {
                Piece::Hole { .. } => plan.add_anew(block..after),
                Piece::There { run, is_aligned } => {
                    let is_aligned = is_aligned || grows_in(file, block);
                    let place = |at: u64| run.start * BLOCK_BYTES + (at - u64::from(block) * BLOCK_BYTES);
                    let part = |from: u64, to: u64| (from - offset) as usize..(to - offset) as usize;
                    // Of the last block of a file, some bytes may be behind the end.
                    let visible = file.inode.size.clamp(start, stop);
                    let mut behind = visible;
                    // A process that has the blocks mapped would not see others.
                    let is_leased = file.leases.overlap(&(block..after));
                    if start < visible && mode == Mode::Relaxed {
                        plan.torn.push((part(start, visible), place(start)));
                    } else if start < visible && (is_aligned || is_leased) {
                        plan.overwrites.push((part(start, visible), place(start)));
                    } else if start < visible {
                        let first_behind = block_of(visible - 1) + 1;
                        plan.add_anew(block..first_behind);
                        behind = (u64::from(first_behind) * BLOCK_BYTES).min(stop);
                    }
                    if behind < stop {
                        plan.behind.push((part(behind, stop), place(behind)));
                    }
                }
            }
            block = after;
        }
        plan
    }

    fn add_anew(&mut self, blocks: Range<u32>) {
        match self.anew.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.anew.push(blocks),
        }
    }
}

/// Writes bytes, durably, and in strict mode atomically. They are not more than [`crate::Geometry::write_bytes_max`]. After an error the file is to be loaded again.
pub(crate) fn write(volume: &Volume, file: &mut Loaded, offset: u64, bytes: &[u8]) -> Result<()> {
    let end = end_of(offset, bytes.len() as u64)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let plan = Plan::of(file, offset, bytes.len(), volume.mode);
    let mut taken = Vec::new();
    for blocks in &plan.anew {
        let runs = take(volume, file, blocks, end)?;
        fill(volume, file, blocks.start, &runs, offset, bytes);
        taken.push(runs);
    }
    zero_behind_end(volume, file, offset);
    for (part, at) in &plan.behind {
        volume.medium.write(*at, &bytes[part.clone()]);
    }
    let changes: Vec<(Range<u32>, Vec<Run>)> =
        plan.anew.into_iter().zip(&taken).map(|(blocks, taken)| (blocks, taken.runs.clone())).collect();
    let remapped = file.remap(volume, &changes)?;
    // Nothing can refuse the write any more, and the transaction's first fence makes these durable.
    for (part, at) in &plan.torn {
        volume.medium.write(*at, &bytes[part.clone()]);
    }
    file.inode.size = file.inode.size.max(end);
    file.inode.modified = Time::now();
    file.inode.changed = file.inode.modified;
    let mut transaction = volume.journals.begin(volume.home());
    for (part, at) in plan.overwrites {
        transaction.overwrite(at, &bytes[part]);
    }
    file.store(volume, &mut transaction, Some(&remapped));
    transaction.commit()?;
    taken.into_iter().for_each(Taken::keep);
    remapped.settle(volume);
    Ok(())
}

/// Takes blocks for a range of a file that will end at byte `end`. A large file gets aligned extents behind all that it has.
fn take<'volume>(volume: &'volume Volume, file: &Loaded, blocks: &Range<u32>, end: u64) -> Result<Taken<'volume>> {
    let grows_from = match is_large(end) || file.inode.wishes_alignment {
        true => file.map.end().clamp(blocks.start, blocks.end),
        false => blocks.end,
    };
    let mut taken = volume.take(u64::from(grows_from - blocks.start))?;
    if grows_from < blocks.end {
        let before = match grows_from.checked_sub(1).map(|before| file.map.piece(before, 1)) {
            // If it is written anew, too, it does not stay there.
            Some(Piece::There { run, .. }) if grows_from == blocks.start => Some(run.start),
            _ => None,
        };
        taken.join(volume.take_to_grow(file.ino, grows_from, u64::from(blocks.end - grows_from), before)?);
    }
    Ok(taken)
}

/// Fills new blocks, the file's from `first` on, with the bytes and what is around them.
fn fill(volume: &Volume, file: &Loaded, first: u32, taken: &Taken<'_>, offset: u64, bytes: &[u8]) {
    let end = offset + bytes.len() as u64;
    let mut block = u64::from(first);
    for run in &taken.runs {
        let (start, stop) = (block * BLOCK_BYTES, (block + run.count) * BLOCK_BYTES);
        let place = |at: u64| run.start * BLOCK_BYTES + (at - start);
        let (from, to) = (start.max(offset), stop.min(end));
        // What is not written is less than a block on either side.
        for (from, to) in [(start, from), (to, stop)].into_iter().filter(|(from, to)| from < to) {
            let mut old = vec![0; (to - from) as usize];
            read(volume, file, from, &mut old);
            volume.medium.write(place(from), &old);
        }
        volume.medium.write(place(from), &bytes[(from - offset) as usize..(to - offset) as usize]);
        block += run.count;
    }
}
