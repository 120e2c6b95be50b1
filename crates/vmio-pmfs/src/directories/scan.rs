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

/// How many blocks a directory has by its length.
pub(crate) fn blocks_of(directory: &Loaded) -> u32 {
    (directory.inode.size / BLOCK_BYTES) as u32
}

/// Reads a block of a directory, which may be missing.
pub(crate) fn scan_block(medium: &dyn Medium, directory: &Loaded, block: u32) -> Result<Vec<Found>> {
    let Piece::There { run, .. } = directory.map.piece(block, 1) else {
        let damage = Damage::Field { field: "missing block", found: block.into() };
        return Err(Error::Damaged { structure: "a directory", at: directory.ino, damage });
    };
    let first = run.start * BLOCK_BYTES;
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
    Ok(all)
}
