//! Directories: entries at places of their own in blocks, and an index of them in memory, which is made at first use.

mod index;
mod scan;

pub use index::Named;
pub(crate) use index::{Index, Known};
pub(crate) use scan::{Found, scan, scan_block};

use crate::error::{Error, Result};
use crate::format::entry::{Entry, SLOT_BYTES, SLOTS_A_BLOCK, slots_of};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::DIRECTORY_BYTES_MAX;
use crate::inodes::block_map::{BlockMap, Piece};
use crate::inodes::loaded::{Loaded, Remapped};
use crate::inodes::volume::{Taken, Volume};
use crate::journal::Transaction;

/// Bytes of the word that adds or removes an entry.
const INO_BYTES: usize = 8;

/// Where a slot of a directory is on the medium, in bytes; nothing if the directory is shorter.
pub(crate) fn slot_at(map: &BlockMap, slot: u32) -> Option<u64> {
    let (block, in_block) = (slot / SLOTS_A_BLOCK as u32, u64::from(slot % SLOTS_A_BLOCK as u32));
    match map.piece(block, 1) {
        Piece::There { run, .. } => Some(run.start * BLOCK_BYTES + in_block * SLOT_BYTES as u64),
        Piece::Hole { .. } => None,
    }
}

/// Room for an entry, which may be in a block that the directory gets with it.
pub(crate) struct Room<'volume> {
    pub(crate) slot: u32,
    grown: Option<(Taken<'volume>, Remapped<'volume>)>,
}

impl<'volume> Room<'volume> {
    /// Finds room for an entry. The directory's map may change: after an error it is to be loaded again.
    pub(crate) fn find(
        volume: &'volume Volume,
        directory: &mut Loaded,
        index: &Index,
        name_bytes: usize,
    ) -> Result<Room<'volume>> {
        if let Some(slot) = index.free_slots(slots_of(name_bytes)) {
            return Ok(Room { slot, grown: None });
        }
        if directory.inode.size >= DIRECTORY_BYTES_MAX {
            return Err(Error::FileTooLarge { end: directory.inode.size + BLOCK_BYTES });
        }
        let block = (directory.inode.size / BLOCK_BYTES) as u32;
        let taken = volume.take(1)?;
        volume.medium.write(taken.runs[0].start * BLOCK_BYTES, &[0; BLOCK_BYTES as usize]);
        let remapped = directory.remap(volume, &[(block..block + 1, taken.runs.clone())])?;
        directory.inode.size += BLOCK_BYTES;
        Ok(Room { slot: block * SLOTS_A_BLOCK as u32, grown: Some((taken, remapped)) })
    }

    /// The change of the directory's map, if it gets a block.
    pub(crate) fn remapped(&self) -> Option<&Remapped<'volume>> {
        self.grown.as_ref().map(|(_, remapped)| remapped)
    }

    /// Puts an entry there.
    pub(crate) fn put(&self, transaction: &mut Transaction<'_>, directory: &Loaded, entry: &Entry) {
        let slots = entry.to_slots(directory.ino);
        for (slot, bytes) in (self.slot..).zip(&slots) {
            if let Some(at) = slot_at(&directory.map, slot) {
                transaction.fresh(at + INO_BYTES as u64, &bytes[INO_BYTES..]);
            }
        }
        if let Some(at) = slot_at(&directory.map, self.slot) {
            transaction.set(at, &slots[0][..INO_BYTES]);
        }
    }

    /// The entry is committed.
    pub(crate) fn settle(self, volume: &Volume, index: &mut Index, entry: Entry) {
        if let Some((taken, remapped)) = self.grown {
            taken.keep();
            remapped.settle(volume);
            index.add_block();
        }
        index.insert(entry, self.slot);
    }
}

/// Takes an entry away.
pub(crate) fn erase(transaction: &mut Transaction<'_>, directory: &Loaded, slot: u32) {
    if let Some(at) = slot_at(&directory.map, slot) {
        transaction.set(at, &[0; INO_BYTES]);
    }
}

/// Has the entry at a slot name another inode.
pub(crate) fn retarget(transaction: &mut Transaction<'_>, directory: &Loaded, slot: u32, entry: &Entry) {
    if let Some(at) = slot_at(&directory.map, slot) {
        transaction.set(at, &entry.to_slots(directory.ino)[0]);
    }
}
