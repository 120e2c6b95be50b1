//! Commits of a segment: each takes it from one consistent state to the next, whatever happens in between.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use crate::error::Result;
use crate::format::block::{Block, Sealed};
use crate::format::catalogue;
use crate::format::extents::Extent;
use crate::format::free_log::{self, Freed};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::superblock::{AllocatorEpochs, BlockReference, CATALOGUE_BLOCKS_MAX, Superblock};
use crate::format::unit_table::Purpose;
use crate::volume::allocator::{Cursor, Entered};
use crate::volume::block_runs::BlockRuns;
use crate::volume::committed::{Changes, Committed};
use crate::volume::free_reserve::OWN_UNITS;
use crate::volume::segment::Segment;

impl Segment {
    /// Makes changes durable, all or none. Returns the epoch of the new state.
    ///
    /// The new state does not refer to the `retiring` blocks. They are freed once their last reader has gone, which
    /// [`Segment::reclaimable`] tells.
    pub(crate) fn commit(&self, changes: Changes, retiring: &[Freed]) -> Result<u64> {
        // A commit that only moves the write fence has no nodes, and a caller waits for it.
        let synced = if changes.extend_write_fence { Ok(()) } else { self.sync_nodes()? };
        let mut committed = self.committed()?;
        let done = synced.and_then(|()| self.write_commit(&mut committed, changes, retiring));
        if let Err(error) = &done {
            committed.failed = Some(error.with_causes());
        }
        done.map(|()| committed.epoch)
    }

    /// Writes the nodes that a commit refers to, before the commit locks the committed state. So a thread that needs the write fence moved
    /// does not wait for nodes. The inner error is the device's; after it nothing is committed any more.
    fn sync_nodes(&self) -> Result<Result<()>> {
        let committed = self.committed()?;
        self.ownership.check_owner(committed.copies)?;
        drop(committed);
        Ok(self.device.sync())
    }

    /// Locks the state of the last commit; fails if the device's contents are unknown.
    fn committed(&self) -> Result<MutexGuard<'_, Committed>> {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        match &committed.failed {
            Some(why) => Err(self.ownership.stopped(why)),
            None => Ok(committed),
        }
    }

    /// Frees the blocks that durable commits have retired and that have no readers any more.
    pub(crate) fn give_back(&self) -> Result<()> {
        self.give_back_reclaimable(&mut self.committed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn give_back_reclaimable(&self, committed: &mut Committed) -> Result<()> {
        for freed in self.reclaimable.take() {
            committed.waiting.remove(&freed);
            // In this order: a free block may be taken, and stored to, at once. The contents of a log chunk are forgotten later, at the
            // next use of its unit. Extents are never stored to through the mapping, and must not count as fresh.
            let purpose = self.allocator().purpose_of(freed.offset);
            if !matches!(purpose, Purpose::Log | Purpose::Extents) {
                self.device.forget_blocks(freed.offset, freed.blocks)?;
            }
            self.allocator().free(freed);
        }
        Ok(())
    }

    fn write_commit(&self, committed: &mut Committed, changes: Changes, retiring: &[Freed]) -> Result<()> {
        self.ownership.check_owner(committed.copies)?;
        let epoch = committed.epoch + 1;
        self.give_back_reclaimable(committed)?;
        let (catalogue, changed) = committed.changed_catalogue(&changes.keyspaces, &changes.removed);
        assert!(catalogue.len() <= CATALOGUE_BLOCKS_MAX, "the creation of a keyspace checks how many there are");
        let mut references = committed.superblock.catalogue.clone();
        let mut retired: Vec<Freed> = Vec::new();
        let mut blocks: Vec<(u64, Block)> = Vec::new();
        let mut taken = changes.taken;
        for index in changed {
            let offset = self.take_own_block(&mut committed.cursor)?;
            taken.push(offset);
            blocks.push((offset, catalogue::to_block(self.uuid, &catalogue[index], offset, epoch)));
            let reference = BlockReference { offset, epoch };
            match references.get_mut(index) {
                Some(place) => {
                    retired.push(Freed { offset: place.offset, blocks: 1 });
                    *place = reference;
                }
                None => references.push(reference),
            }
        }
        retired.extend(committed.free_log_blocks.iter().map(|offset| Freed { offset: *offset, blocks: 1 }));
        committed.waiting.extend(retiring.iter().copied());
        let rows = joined(committed.waiting.iter().chain(&retired).copied().collect());
        let mut free_log_blocks = Vec::new();
        let mut next = 0;
        for rows in rows.chunks(free_log::ROWS) {
            let offset = self.take_own_block(&mut committed.cursor)?;
            blocks.push((offset, free_log::to_block(self.uuid, rows, next, offset, epoch)));
            free_log_blocks.push(offset);
            next = offset;
        }
        taken.extend(free_log_blocks.iter().copied());
        let mut superblock = Superblock { free_log: next, catalogue: references, ..committed.superblock.clone() };
        // The place never moves back: records before it are in no memtable, even if an empty one begins earlier, and their chunks may have
        // been given up.
        if let Some((from, sequence)) = changes.replay
            && sequence > superblock.log_replay_sequence
        {
            (superblock.log_replay_from, superblock.log_replay_sequence) = (from, sequence);
        }
        if let Some((generation, durable)) = changes.log {
            superblock.log_generation = generation;
            superblock.log_durable = superblock.log_durable.max(durable);
        }
        if let Some(next_keyspace) = changes.next_keyspace {
            superblock.next_keyspace = next_keyspace;
        }
        if let Some(owner_epoch) = changes.owner_epoch {
            debug_assert!(owner_epoch > superblock.owner_epoch, "epoch {owner_epoch} of an owner comes again");
            superblock.owner_epoch = owner_epoch;
        }
        let mut new_units = 0..0;
        let unknown = {
            let mut allocator = self.allocator();
            if let Some(groups) = &changes.groups {
                new_units = allocator.extend(groups);
                superblock.units = allocator.units_in_all();
            }
            superblock.write_fence = allocator.next_write_fence(changes.extend_write_fence);
            debug_assert!(superblock.write_fence >= committed.superblock.write_fence, "the write fence moves back");
            allocator.unknown_blocks(superblock.write_fence)
        };
        for block in unknown {
            let is_own = |sealed: &Sealed<'_>| (sealed.uuid == self.uuid).then_some(0);
            let newest = self.device.read_best(block.kind, block.offsets, committed.epoch, is_own)?;
            self.allocator().know_newest(block, newest.as_ref());
        }
        let allocated = {
            let mut allocator = self.allocator();
            taken.iter().chain(changes.extents.iter().copied()).for_each(|run| allocator.commit_run(run));
            let changed = allocator.changed(self.uuid, epoch, superblock.write_fence);
            superblock.allocator_epochs = AllocatorEpochs::of(allocator.epochs(superblock.write_fence));
            changed
        };
        for (offset, block) in blocks.iter().chain(&allocated.blocks) {
            self.device.write(*offset, &block.0)?;
        }
        allocated.unused.iter().try_for_each(|unused| unused.write(&self.device))?;
        self.device.flush()?;
        let offset = committed.copies[epoch as usize % 2];
        self.device.write(offset, &superblock.to_block(self.uuid, offset, epoch).0)?;
        self.device.flush()?;
        // A new owner that has not claimed the segment by now will read this superblock.
        self.ownership.check_owner(committed.copies)?;
        let write_fence = superblock.write_fence;
        self.replay_sequence.store(superblock.log_replay_sequence, Ordering::Release);
        (committed.epoch, committed.superblock, committed.catalogue) = (epoch, superblock, catalogue);
        // Before any of its retired blocks is free: a thread that takes one labels it with a later epoch.
        self.epoch.store(epoch, Ordering::Release);
        committed.free_log_blocks = free_log_blocks;
        // They are not read through the mapping, and no older state is left that refers to them.
        let mut allocator = self.allocator();
        retired.into_iter().for_each(|freed| allocator.free(freed));
        // Not earlier: the contents of a unit that no superblock has would be lost.
        allocator.use_units(new_units);
        allocator.set_write_fence(write_fence);
        Ok(())
    }

    fn take_own_block(&self, cursor: &mut Cursor) -> Result<u64> {
        let mut taken = self.allocator().take_block(cursor, Purpose::Segment, 0);
        if taken.is_none() && self.make_ready(OWN_UNITS)? {
            taken = self.allocator().take_block(cursor, Purpose::Segment, 0);
        }
        let (offset, entered) = taken.ok_or_else(|| self.full(ALLOCATION_UNIT_BYTES))?;
        match entered {
            Entered::No => {}
            Entered::New(unit) => self.device.begin_unit(unit, false, 0)?,
            Entered::Again(_) => self.ensure_space(unit_of(offset))?,
        }
        Ok(offset)
    }
}

/// The same blocks in the fewest rows. No row goes beyond an allocation unit.
fn joined(mut rows: Vec<Freed>) -> Vec<Freed> {
    rows.sort_unstable();
    let mut joined = BlockRuns::default();
    rows.into_iter().for_each(|Freed { offset, blocks }| joined.push_run(Extent { offset, blocks }));
    joined.freed().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::BLOCK_BYTES;

    #[test]
    fn neighbours_within_a_unit_share_a_row() {
        let row = |unit: u64, block: u64, blocks| Freed {
            offset: unit * ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64,
            blocks,
        };
        let rows = vec![row(3, 511, 1), row(3, 8, 1), row(4, 0, 512), row(3, 7, 1), row(3, 10, 2), row(5, 0, 1)];
        assert_eq!(joined(rows), [row(3, 7, 2), row(3, 10, 2), row(3, 511, 1), row(4, 0, 512), row(5, 0, 1)]);
    }
}
