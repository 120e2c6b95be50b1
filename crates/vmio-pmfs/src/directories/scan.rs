//! The slots of a directory where entries begin, also where some are damaged.

use crate::error::{Damage, Error, Result};
use crate::format::entry::{Entry, SLOT_BYTES, SLOTS_A_BLOCK, slots_of};
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::block_map::Piece;
use crate::inodes::loaded::Loaded;
use crate::medium::Medium;

/// An entry, or a place where a damaged one begins.
pub(crate) struct Found {
    /// The number of its first slot.
    pub(crate) slot: u32,
    /// The byte of the medium where that is.
    pub(crate) at: u64,
    pub(crate) entry: Result<Entry>,
}

/// Reads a directory, up to its length: what is in each block, and an error for each part whose blocks are missing. However long damage has made it,
/// this takes no longer than its extents are.
pub(crate) fn scan<'a>(medium: &'a dyn Medium, directory: &'a Loaded) -> impl Iterator<Item = Result<Vec<Found>>> + 'a {
    let (mut next, end) = (0, (directory.inode.size / BLOCK_BYTES) as u32);
    std::iter::from_fn(move || {
        let block = next;
        let piece = (block < end).then(|| directory.map.piece(block, u64::from(end - block)))?;
        Some(match piece {
            Piece::There { run, .. } => {
                next += 1;
                Ok(scan_at(medium, directory, block, run.start))
            }
            Piece::Hole { count } => {
                next += count as u32;
                let damage = Damage::MissingBlocks { first: block.into(), count };
                Err(Error::Damaged { structure: "a directory", at: directory.at, damage })
            }
        })
    })
}

/// Reads a block of a directory, which may be missing.
pub(crate) fn scan_block(medium: &dyn Medium, directory: &Loaded, block: u32) -> Result<Vec<Found>> {
    match directory.map.piece(block, 1) {
        Piece::There { run, .. } => Ok(scan_at(medium, directory, block, run.start)),
        Piece::Hole { count } => {
            let damage = Damage::MissingBlocks { first: block.into(), count };
            Err(Error::Damaged { structure: "a directory", at: directory.at, damage })
        }
    }
}

/// Reads a block of a directory, which is this one of the medium.
fn scan_at(medium: &dyn Medium, directory: &Loaded, block: u32, start: u64) -> Vec<Found> {
    let first = start * BLOCK_BYTES;
    let mut bytes = [0; BLOCK_BYTES as usize];
    medium.read(first, &mut bytes);
    let (mut all, mut next) = (Vec::new(), 0);
    while next < SLOTS_A_BLOCK {
        let (at, slot) = (first + (next * SLOT_BYTES) as u64, block * SLOTS_A_BLOCK as u32 + next as u32);
        let entry = Entry::from_slots(directory.ino, &bytes[next * SLOT_BYTES..], at);
        // Where an entry is damaged, its length may be, too.
        next += entry.as_ref().ok().and_then(Option::as_ref).map_or(1, |entry| slots_of(entry.name.len()));
        all.extend(entry.transpose().map(|entry| Found { slot, at, entry }));
    }
    all
}
