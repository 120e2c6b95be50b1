//! Leases to grow: blocks behind the end of a file, which a process fills before they count as the file's.

use std::ops::Range;

use vmio_pmfs_protocol::{CLOSED, FREE, length_of, sealed};

use super::Fs;
use super::leasing::{Lease, LeasedExtent, located};
use super::node::State;
use crate::alloc::Run;
use crate::data::{self, Length};
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use crate::format::growth_slot::{END_BYTES, GrowthSlot};
use crate::format::inode::Time;
use crate::inodes::block_map::{BlockMap, Piece};
use crate::inodes::leases::{Growth, HeldSlot};
use crate::inodes::loaded::Loaded;

/// The fewest blocks that a small file gets to grow into.
const GROWTH_BLOCKS_MIN: u64 = 16;
/// The most extents of a lease to grow.
const GROWTH_EXTENTS_MAX: usize = 8;

/// The fate, in a crash, of bytes that a holder has appended and nobody has asked for yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appends {
    /// They are lost. The holder says elsewhere how far it has got: [`Fs::grown`].
    Volatile,
    /// All those stay that are before the length which the holder has stored in its slot of the medium: [`Fs::settle`].
    Durable,
}

/// Whether a holder may go on storing to what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Still {
    Mapped,
    Unmapped,
}

/// The blocks that a file gives back.
#[derive(Clone, Copy)]
pub(crate) enum Released {
    /// Nobody else has them.
    Free,
    /// The medium may be damaged, and nobody has looked at all that refers to them. The next mount finds out which are free.
    PerhapsOfOthers,
}

impl Fs {
    /// Leases blocks behind the end of a file to a holder, with the block in which the end lies: it stores there what is to be appended, and
    /// [`Self::grown`] or [`Self::settle`] makes that the file's. A file that is large, or wishes it, grows into an aligned extent. Until the lease of
    /// these blocks ends, other calls that change the length fail with [`Error::Leased`].
    ///
    /// Where appends are durable, the blocks are the file's on the medium at once, and the slot says its present length. The holder stores bytes, waits for
    /// a fence, exchanges the slot's word for that of the new length ([`sealed`], whose seed are the 4 bytes behind the word) and makes it durable. It stores
    /// no length that the word does not precede, and none once the highest bit is set.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`], [`Error::Leased`] if there is such a lease already, of another holder, and [`Error::NoSpace`] if no slot is free.
    pub fn lease_to_grow(&self, ino: u64, holder: u64, appends: Appends) -> Result<Lease> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        self.part_from_lost(&mut state)?;
        let size = state.loaded.inode.size;
        let last = (size / BLOCK_BYTES) as u32..size.div_ceil(BLOCK_BYTES) as u32;
        if state.loaded.map.has_hole(&last) {
            let from = u64::from(last.start) * BLOCK_BYTES;
            let result = data::allocate(&self.volume, &mut state.loaded, from, size - from, Length::Stays);
            self.settled(&mut state, result)?;
        }
        let file = &mut state.loaded;
        let before = file.leases.growth();
        if before.is_some_and(|growth| growth.holder != holder) {
            file.expect_no_growth()?;
        }
        let end = size.div_ceil(BLOCK_BYTES) as u32;
        let first = (size / BLOCK_BYTES) as u32;
        let run = if file.map.end() <= end { Some(self.reserve(file, end)?) } else { None };
        // Blocks that fallocate has reserved elsewhere behind the end are no room. Nothing has begun yet.
        if run.is_none() && end_of_blocks(&file.map, first) <= end {
            return Err(Error::NoSpace { wanted: 1 });
        }
        let slot = match (before.and_then(|growth| growth.slot), appends) {
            (None, Appends::Volatile) => None,
            (old, _) => {
                let result = self.begin_durable(&mut state.loaded, old, end, run);
                if result.is_err() && before.is_none_or(|growth| growth.slot.is_some()) {
                    // Nobody knows of these blocks yet.
                    self.volume.give_back_reserved(ino);
                }
                Some(self.settled(&mut state, result)?)
            }
        };
        let file = &mut state.loaded;
        let there = first..end_of_blocks(&file.map, first);
        let (mut extents, mut last) = located(&file.map, &there, GROWTH_EXTENTS_MAX);
        if let (Some(run), None) = (run, slot) {
            extents.push(LeasedExtent { file_block: end, blocks: run.count as u32, start: run.start });
            last = end + run.count as u32;
        }
        file.leases.grow(Growth { holder, block: end, slot });
        if file.leases.grant(holder, first..last) {
            state.opens += 1;
        }
        Ok(Lease { size, blocks: first..last, extents, slot_at: slot.map(|slot| slot.at) })
    }

    /// Reserves blocks, in memory, that a file may get from one on, behind all that it has.
    fn reserve(&self, file: &Loaded, end: u32) -> Result<Run> {
        let before = end.checked_sub(1).and_then(|before| match file.map.piece(before, 1) {
            Piece::There { run, .. } => Some(run.start),
            Piece::Hole { .. } => None,
        });
        let is_aligned = file.inode.size >= EXTENT_BYTES || file.inode.wishes_alignment;
        let most = (!is_aligned).then(|| u64::from(end).clamp(GROWTH_BLOCKS_MIN, EXTENT_BLOCKS));
        let run = self.volume.lease_to_grow(file.ino, end, most, before);
        run.ok_or(Error::NoSpace { wanted: GROWTH_BLOCKS_MIN })
    }

    /// Has a slot of the medium say how long a file is, and makes reserved blocks its own. A slot that it has already says nothing that the file does not.
    fn begin_durable(&self, file: &mut Loaded, old: Option<HeldSlot>, end: u32, run: Option<Run>) -> Result<HeldSlot> {
        let taken = || self.volume.slots.take(self.volume.home()).ok_or(Error::NoSpace { wanted: 1 });
        let reserved = match (run, old) {
            (Some(run), _) => end..end + run.count as u32,
            // It says all that there is to say.
            (None, Some(old)) => return Ok(old),
            (None, None) => 0..0,
        };
        let at = old.map_or_else(taken, |old| Ok(old.at))?;
        // After a crash, a mount looks there for the blocks that it gives back.
        let slot = self.open_slot(file, at, reserved);
        let owned = run.map_or(Ok(()), |run| self.own(file, end, run));
        match (&owned, old) {
            (Ok(()), _) => {}
            // The holder goes on with what it has: the check of the length is of the old contents.
            (Err(_), Some(old)) => _ = self.open_slot(file, at, old.reserved_from..old.reserved_to),
            (Err(_), None) => {
                self.close_slot(at);
                self.volume.slots.give_back(at);
            }
        }
        owned.map(|()| slot)
    }

    /// Writes a slot. Its word says something only while the rest of it is whole.
    fn open_slot(&self, file: &Loaded, at: u64, reserved: Range<u32>) -> HeldSlot {
        let Range { start: reserved_from, end: reserved_to } = reserved;
        let (header, seed) =
            GrowthSlot { ino: file.ino, generation: file.inode.generation, reserved_from, reserved_to }.to_bytes(at);
        let medium = &self.volume.medium;
        self.close_slot(at);
        medium.write(at + END_BYTES as u64, &header[END_BYTES..]);
        medium.fence();
        medium.write(at, &sealed(file.inode.size, seed).to_le_bytes());
        medium.fence();
        HeldSlot { at, seed, reserved_from, reserved_to }
    }

    /// Has a slot say nothing any more, durably. A process that comes late finds it closed.
    fn close_slot(&self, at: u64) {
        self.volume.medium.write(at, &FREE.to_le_bytes());
        self.volume.medium.fence();
    }

    /// Makes reserved blocks the file's, behind its end.
    fn own(&self, file: &mut Loaded, end: u32, run: Run) -> Result<()> {
        let remapped = file.remap(&self.volume, &[(end..end + run.count as u32, vec![run])])?;
        let mut transaction = self.volume.journals.begin(self.volume.home());
        file.store(&self.volume, &mut transaction, Some(&remapped));
        transaction.commit()?;
        remapped.settle(&self.volume);
        self.volume.reserved.remove(file.ino);
        Ok(())
    }

    /// A holder that appends by other means than a slot of the medium has stored a file's bytes up to this length: they become the file's, in one
    /// transaction. Does nothing if the file is as long already, or the holder has no such lease.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::FileTooLarge`] beyond what is leased, [`Error::NoSpace`] for the list of extents: then the bytes are lost.
    pub fn grown(&self, ino: u64, holder: u64, size: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let is_grower = state.loaded.leases.growth().is_some_and(|growth| growth.holder == holder);
        if !is_grower || size <= state.loaded.inode.size {
            return Ok(());
        }
        let result = self.grow(&mut state.loaded, holder, size);
        self.settled(&mut state, result)
    }

    /// Makes what a holder says in its slot of the medium the file's, as [`Self::grown`].
    ///
    /// # Errors
    ///
    /// As [`Self::grown`], and [`Error::Damaged`] if the slot's word is not one that the holder stores: then it grows no more.
    pub fn settle(&self, ino: u64, holder: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let growth = state.loaded.leases.growth().filter(|growth| growth.holder == holder);
        let Some(slot) = growth.and_then(|growth| growth.slot) else { return Ok(()) };
        let word = self.volume.medium.load_word(slot.at);
        let result = match length_of(word, slot.seed) {
            Some(size) if size <= state.loaded.inode.size => return Ok(()),
            Some(size) => self.grow(&mut state.loaded, holder, size),
            None => {
                self.grows_no_more(&mut state.loaded, holder, None);
                let damage = Damage::Field { field: "word", found: word };
                Err(Error::Damaged { structure: "the slot of a growing file", at: slot.at, damage })
            }
        };
        self.settled(&mut state, result)
    }

    /// Keeps a holder from storing another length in its slot of the medium.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn close_growth(&self, ino: u64, holder: u64) -> Result<()> {
        let growth = self.node(ino)?.read()?.loaded.leases.growth().filter(|growth| growth.holder == holder);
        if let Some(slot) = growth.and_then(|growth| growth.slot) {
            self.volume.medium.set_bits(slot.at, CLOSED);
        }
        Ok(())
    }

    fn grow(&self, file: &mut Loaded, holder: u64, size: u64) -> Result<()> {
        let size_before = file.inode.size;
        let first = file.map.end().max(file.inode.size.div_ceil(BLOCK_BYTES) as u32);
        let last = size.div_ceil(BLOCK_BYTES);
        let wanted = last.saturating_sub(first.into());
        let taken = if wanted > 0 { self.volume.reserved.take(file.ino, first, wanted) } else { None };
        let is_whole = taken.map_or(0, |run| run.count) == wanted;
        let changes: Vec<_> = taken.map(|run| (first..first + run.count as u32, vec![run])).into_iter().collect();
        let committed = match is_whole {
            true => data::end_of(size, 0).and_then(|size| self.commit_growth(file, size, &changes)),
            false => Err(Error::FileTooLarge { end: size }),
        };
        if committed.is_err() {
            file.inode.size = size_before;
            self.grows_no_more(file, holder, taken);
        }
        committed
    }

    /// Ends the growth of a holder that may still store to what it has got. Nobody else appends there, nor gets the reserved blocks.
    fn grows_no_more(&self, file: &mut Loaded, holder: u64, taken: Option<Run>) {
        let rest = self.volume.reserved.remove(file.ino);
        let kept: Vec<Run> = taken.into_iter().chain(rest).collect();
        let from_end = (file.inode.size / BLOCK_BYTES) as u32..u32::MAX;
        let held = file.leases.of(&from_end).filter_map(|(other, held)| (other == holder).then_some(held));
        let held = held.flat_map(|held| file.map.runs_of(held));
        self.volume.lost.add(holder, kept.iter().copied().chain(held));
        self.volume.free(kept);
        if let Some(slot) = file.leases.growth().and_then(|growth| growth.slot) {
            self.close_slot(slot.at);
            self.volume.slots.keep(holder, slot.at);
        }
        file.leases.grows_no_more();
    }

    fn commit_growth(&self, file: &mut Loaded, size: u64, changes: &[(Range<u32>, Vec<Run>)]) -> Result<()> {
        let remapped = file.remap(&self.volume, changes)?;
        file.inode.size = size;
        file.inode.modified = Time::now();
        file.inode.changed = file.inode.modified;
        let mut transaction = self.volume.journals.begin(self.volume.home());
        file.store(&self.volume, &mut transaction, Some(&remapped));
        transaction.commit()?;
        remapped.settle(&self.volume);
        Ok(())
    }

    /// A lease to grow has ended, with all that was appended by it: gives the blocks behind the end back, and then the slot.
    pub(super) fn end_growth(&self, state: &mut State, growth: Growth, still: Still) {
        let ino = state.loaded.ino;
        self.volume.give_back_reserved(ino);
        let Some(slot) = growth.slot else { return };
        let released = self.release_behind_end(&mut state.loaded, slot.reserved_from..slot.reserved_to, Released::Free);
        if let Err(error) = self.settled(state, released) {
            tracing::debug!(%error, ino, "blocks stay behind the end of a file");
        }
        self.close_slot(slot.at);
        match still {
            Still::Unmapped => self.volume.slots.give_back(slot.at),
            Still::Mapped => self.volume.slots.keep(growth.holder, slot.at),
        }
    }

    /// Gives those of a file's blocks back that lie behind its end.
    pub(super) fn release_behind_end(&self, file: &mut Loaded, blocks: Range<u32>, blocks_are: Released) -> Result<()> {
        let end = file.inode.size.div_ceil(BLOCK_BYTES) as u32;
        let behind = blocks.start.max(end)..blocks.end.min(file.map.end());
        if behind.is_empty() {
            return Ok(());
        }
        let remapped = file.remap(&self.volume, &[(behind, Vec::new())])?;
        let mut transaction = self.volume.journals.begin(self.volume.home());
        file.store(&self.volume, &mut transaction, Some(&remapped));
        transaction.commit()?;
        match blocks_are {
            Released::Free => remapped.settle(&self.volume),
            Released::PerhapsOfOthers => remapped.settle_shared(),
        }
        Ok(())
    }

    /// Makes a file as long as a slot says that it is, after a crash.
    pub(super) fn make_longer(&self, file: &mut Loaded, size: u64) -> Result<()> {
        self.commit_growth(file, size, &[])
    }

    /// Whether a holder appends to a file.
    pub fn is_growing(&self, ino: u64) -> bool {
        self.room_from(ino).is_some()
    }

    /// The first block of a file that is leased to a holder for what it appends: whoever takes the blocks back from there on ends that.
    pub fn room_from(&self, ino: u64) -> Option<u32> {
        let growth = self.node(ino).and_then(|node| Ok(node.read()?.loaded.leases.growth()));
        growth.ok().flatten().map(|growth| growth.block)
    }
}

/// The end of the blocks from one on that are there without a hole.
fn end_of_blocks(map: &BlockMap, first: u32) -> u32 {
    let mut next = first;
    while let Piece::There { run, .. } = map.piece(next, u64::from(u32::MAX - next)) {
        next += run.count as u32;
    }
    next
}
