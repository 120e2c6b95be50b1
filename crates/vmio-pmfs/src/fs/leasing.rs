//! Leases: the place of a file's blocks on the medium, for processes that map them.

use std::ops::Range;

use super::Fs;
use super::node::State;
use crate::alloc::Run;
use crate::data::{self, Length};
use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use crate::format::inode::Time;
use crate::inodes::block_map::{BlockMap, Piece};
use crate::inodes::leases::{Growth, Returned};
use crate::inodes::loaded::Loaded;

/// The fewest blocks that a small file gets to grow into.
const GROWTH_BLOCKS_MIN: u64 = 16;
/// The most extents of a lease to grow.
const GROWTH_EXTENTS_MAX: usize = 8;

/// A leased part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The length of the file.
    pub size: u64,
    /// The blocks of the file that the answer is about. It may be shorter than the request.
    pub blocks: Range<u32>,
    /// Where they are, in the file's order. Blocks in none of them are holes.
    pub extents: Vec<LeasedExtent>,
}

/// Blocks of a file that lie side by side on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedExtent {
    /// The first one in the file.
    pub file_block: u32,
    /// How many there are.
    pub blocks: u32,
    /// The first one on the medium.
    pub start: u64,
}

/// The answer to holes in a part of a file that a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// They stay.
    Keep,
    /// They get blocks of zeros.
    Fill,
}

impl Fs {
    /// Leases blocks of a file to a holder, up to the file's end and up to `most` extents. The file stays, even without a name, and the
    /// blocks where they are until [`Self::end_lease`] or [`Self::revoke_lease`]. Meanwhile other calls overwrite them in place, and fail
    /// with [`crate::Error::Leased`] where they would take one away.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`], [`crate::Error::IsADirectory`], [`crate::Error::WrongKind`], [`crate::Error::NoSpace`] for holes.
    pub fn lease(&self, ino: u64, holder: u64, blocks: Range<u32>, holes: Holes, most: usize) -> Result<Lease> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        let size = state.loaded.inode.size;
        let blocks = blocks.start..blocks.end.min(size.div_ceil(BLOCK_BYTES) as u32);
        if blocks.is_empty() {
            return Ok(Lease { size, blocks: blocks.start..blocks.start, extents: Vec::new() });
        }
        if holes == Holes::Fill && state.loaded.map.has_hole(&blocks) {
            let (from, to) = (u64::from(blocks.start) * BLOCK_BYTES, (u64::from(blocks.end) * BLOCK_BYTES).min(size));
            let result = data::allocate(&self.volume, &mut state.loaded, from, to - from, Length::Stays);
            self.settled(&mut state, result)?;
        }
        let (extents, next) = located(&state.loaded.map, &blocks, most);
        if u64::from(next) * BLOCK_BYTES > size {
            data::zero_last_block(&self.volume, &state.loaded);
        }
        let blocks = blocks.start..next;
        if !blocks.is_empty() && state.loaded.leases.grant(holder, blocks.clone()) {
            state.opens += 1;
        }
        if state.loaded.map.aligned_extents() < size / EXTENT_BYTES {
            self.wants_alignment(ino);
        }
        Ok(Lease { size, blocks, extents })
    }

    /// Leases blocks behind the end of a file to a holder, with the block in which the end lies: it stores there what is to be appended, and
    /// [`Self::grown`] makes that the file's. A file that is large, or wishes it, grows into an aligned extent. Until the lease of these blocks ends,
    /// other calls that change the length fail with [`crate::Error::Leased`].
    ///
    /// # Errors
    ///
    /// As [`Self::lease`], and [`crate::Error::Leased`] if there is such a lease already, of another holder.
    pub fn lease_to_grow(&self, ino: u64, holder: u64) -> Result<Lease> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        let size = state.loaded.inode.size;
        let last = (size / BLOCK_BYTES) as u32..size.div_ceil(BLOCK_BYTES) as u32;
        if state.loaded.map.has_hole(&last) {
            let from = u64::from(last.start) * BLOCK_BYTES;
            let result = data::allocate(&self.volume, &mut state.loaded, from, size - from, Length::Stays);
            self.settled(&mut state, result)?;
        }
        let file = &mut state.loaded;
        if file.leases.growth().is_some_and(|growth| growth.holder != holder) {
            file.expect_no_growth()?;
        }
        let (first, end, there) = ((size / BLOCK_BYTES) as u32, size.div_ceil(BLOCK_BYTES) as u32, file.map.end());
        let (mut extents, mut last) = located(&file.map, &(first..there.max(first)), GROWTH_EXTENTS_MAX);
        let mut growth = end;
        if there <= end {
            let before = end.checked_sub(1).and_then(|before| match file.map.piece(before, 1) {
                Piece::There { run, .. } => Some(run.start),
                Piece::Hole { .. } => None,
            });
            let is_aligned = size >= EXTENT_BYTES || file.inode.wishes_alignment;
            let most = (!is_aligned).then(|| u64::from(end).clamp(GROWTH_BLOCKS_MIN, EXTENT_BLOCKS));
            let run = self.volume.lease_to_grow(ino, end, most, before);
            let run = run.ok_or(Error::NoSpace { wanted: GROWTH_BLOCKS_MIN })?;
            extents.push(LeasedExtent { file_block: end, blocks: run.count as u32, start: run.start });
            last = end + run.count as u32;
        } else {
            // Blocks that fallocate has reserved.
            growth = growth.min(last);
        }
        file.leases.grow(Growth { holder, block: growth });
        if file.leases.grant(holder, first..last) {
            state.opens += 1;
        }
        Ok(Lease { size, blocks: first..last, extents })
    }

    /// The holder of a lease to grow has stored a file's bytes up to this length: they become the file's, in one transaction. Does nothing if the
    /// file is as long already, or the holder has no such lease.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`], [`crate::Error::FileTooLarge`] beyond what is leased, [`crate::Error::NoSpace`] for the list of extents: then
    /// the bytes are lost.
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

    fn grow(&self, file: &mut Loaded, holder: u64, size: u64) -> Result<()> {
        data::end_of(size, 0)?;
        let first = file.map.end().max(file.inode.size.div_ceil(BLOCK_BYTES) as u32);
        let last = size.div_ceil(BLOCK_BYTES);
        let wanted = last.saturating_sub(first.into());
        let taken = if wanted > 0 { self.volume.reserved.take(file.ino, first, wanted) } else { None };
        let is_whole = taken.map_or(0, |run| run.count) == wanted;
        let changes: Vec<_> = taken.map(|run| (first..first + run.count as u32, vec![run])).into_iter().collect();
        let committed =
            if is_whole { self.commit_growth(file, size, &changes) } else { Err(Error::FileTooLarge { end: size }) };
        if committed.is_err() {
            // The holder may still store there, and grows no more.
            let rest = self.volume.reserved.remove(file.ino);
            let kept: Vec<Run> = taken.into_iter().chain(rest).collect();
            self.volume.lost.add(holder, kept.iter().copied());
            self.volume.free(kept);
            file.leases.grows_no_more();
        }
        committed
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

    /// Whether a holder appends to a file.
    pub fn is_growing(&self, ino: u64) -> bool {
        let growth = self.node(ino).and_then(|node| Ok(node.read()?.loaded.leases.growth()));
        growth.is_ok_and(|growth| growth.is_some())
    }

    /// The holders of leases of a file's blocks from one on.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn lease_holders(&self, ino: u64, from: u32) -> Result<Vec<u64>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(state.loaded.leases.of(&(from..u32::MAX)).map(|(holder, _)| holder).collect())
    }

    /// Ends a holder's lease of a file, from a block on: it has nothing of that mapped any more.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn end_lease(&self, ino: u64, holder: u64, from: u32) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.take_back(&mut state, holder, from)
    }

    fn take_back(&self, state: &mut State, holder: u64, from: u32) -> Result<()> {
        let grew = state.loaded.leases.growth().is_some();
        let returned = state.loaded.leases.take_back(holder, from);
        if grew && state.loaded.leases.growth().is_none() {
            self.volume.give_back_reserved(state.loaded.ino);
        }
        match returned {
            Returned::Part => Ok(()),
            Returned::All => self.end_use(state),
        }
    }

    /// Ends a holder's lease of a file, from a block on, though it may still have that mapped. Those of the blocks that become
    /// free stay nobody's until [`Self::holder_is_gone`].
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`].
    pub fn revoke_lease(&self, ino: u64, holder: u64, from: u32) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let held: Vec<Range<u32>> = state
            .loaded
            .leases
            .of(&(from..u32::MAX))
            .filter_map(|(other, held)| (other == holder).then_some(held))
            .collect();
        for held in held {
            self.volume.lost.add(holder, state.loaded.map.runs_of(held));
        }
        if state.loaded.leases.growth().is_some_and(|growth| growth.holder == holder) {
            self.volume.lost.add(holder, self.volume.reserved.of(ino));
        }
        self.take_back(&mut state, holder, from)
    }

    /// A holder is gone, with all that it had mapped. Its leases have ended or were revoked before.
    pub fn holder_is_gone(&self, holder: u64) {
        self.volume.free(self.volume.lost.holder_is_gone(holder));
    }
}

/// Where blocks of a file are, up to `most` extents, and the block behind those.
fn located(map: &BlockMap, blocks: &Range<u32>, most: usize) -> (Vec<LeasedExtent>, u32) {
    let mut extents: Vec<LeasedExtent> = Vec::new();
    let mut next = blocks.start;
    while next < blocks.end {
        let piece = map.piece(next, (blocks.end - next).into());
        let count = piece.count() as u32;
        if let Piece::There { run, .. } = piece {
            let follows = |last: &&mut LeasedExtent| {
                last.file_block + last.blocks == next && last.start + u64::from(last.blocks) == run.start
            };
            if let Some(last) = extents.last_mut().filter(follows) {
                last.blocks += count;
            } else if extents.len() == most {
                break;
            } else {
                extents.push(LeasedExtent { file_block: next, blocks: count, start: run.start });
            }
        }
        next += count;
    }
    (extents, next)
}
