//! A segment: its allocator, its catalogue of keyspaces, and its last commit.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parking_lot::MutexGuard;

use crate::batching_lock::BatchingLock;
use crate::device::{Device, Newest};
use crate::error::{Damage, Error, Result};
use crate::format::block::{Kind, Sealed, Uuid, random_uuid, unseal};
use crate::format::catalogue::{self, KeyspaceEntry};
use crate::format::extents::HEAD_NUMBERS;
use crate::format::free_log::{self, Freed};
use crate::format::geometry::{BLOCK_BYTES, Group, first_units, unit_of, units_of};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::superblock::{BlockReference, FEATURES, Superblock};
use crate::format::unit_table::Purpose;
use crate::format::volume_header::{SegmentEntry, segment_tables};
use crate::volume::allocator::Allocator;
use crate::volume::chunk_generations::ChunkGenerations;
use crate::volume::committed::Committed;
use crate::volume::epoch::ReclaimableBlocks;
use crate::volume::free_reserve::FreeReserve;
use crate::volume::merges::Merges;
use crate::volume::ownership::Ownership;

/// A segment of a volume.
pub(crate) struct Segment {
    pub(crate) device: Arc<Device>,
    pub(crate) number: u32,
    pub(crate) uuid: Uuid,
    pub(crate) reclaimable: Arc<ReclaimableBlocks>,
    pub(crate) chunk_generations: ChunkGenerations,
    pub(crate) merges: Merges,
    pub(crate) free_reserve: FreeReserve,
    pub(crate) ownership: Ownership,
    allocator: BatchingLock<Allocator>,
    /// Held while units get space on the device, or lose it.
    pub(super) allocating: Mutex<()>,
    pub(super) committed: Mutex<Committed>,
    /// The epoch of the last commit, for readers that must not wait for the one under way.
    pub(super) epoch: AtomicU64,
    /// The first record that an opening reads back after the last commit, for the same readers.
    pub(super) replay_sequence: AtomicU64,
    /// Counts the heads of large values, from a random number on.
    heads: AtomicU32,
}

/// The epoch of an empty segment.
pub(crate) const EPOCH_FIRST: u64 = 1;

/// The group that has the superblocks.
pub(super) fn first_group(device: &Device, entry: &SegmentEntry) -> Result<Group> {
    let wrong = || device.damaged("the table of segments", 0, Damage::Value { what: "a segment's groups", found: 0 });
    entry.groups.first().copied().ok_or_else(wrong)
}

/// The places of a segment's superblocks, the epoch of the newest, and that one.
pub(super) fn read_superblock(device: &Device, entry: &SegmentEntry) -> Result<([u64; 2], u64, Superblock)> {
    let copies = first_group(device, entry)?.superblocks();
    let Some(Newest { copy, block, .. }) = device.read_pair(Kind::Superblock, copies, u64::MAX)? else {
        return Err(device.damaged("the superblock", copies[0], Damage::Checksum));
    };
    let damaged = |damage| device.damaged("the superblock", copies[copy], damage);
    let sealed = unseal(&block.0, Kind::Superblock, copies[copy]).map_err(damaged)?;
    if sealed.uuid != entry.uuid {
        return Err(damaged(Damage::Foreign));
    }
    let (epoch, superblock) = (sealed.epoch, Superblock::from_block(&sealed).map_err(damaged)?);
    let unknown = superblock.incompatible & !FEATURES;
    if unknown != 0 {
        return Err(Error::UnknownFeatures { volume: device.name().to_owned(), features: unknown });
    }
    Ok((copies, epoch, superblock))
}

impl Segment {
    /// Reads the last committed state. The caller replays the log, marks its newer chunks, and then calls [`Self::ready`]. All segments of
    /// a store share `looks_after_flushes`.
    pub(crate) fn open(
        device: Arc<Device>,
        chunk_generations: &ChunkGenerations,
        looks_after_flushes: &Arc<AtomicBool>,
        entry: &SegmentEntry,
    ) -> Result<Self> {
        let (copies, epoch, superblock) = read_superblock(&device, entry)?;
        // Where the volume has grown over another one, that may have left a copy.
        let is_own = |sealed: &Sealed<'_>| (sealed.uuid == entry.uuid).then_some(0);
        let read = |kind: Kind, offsets: [u64; 2]| match device.read_best(kind, offsets, epoch, is_own)? {
            Some(found) => Ok(found),
            None => Err(device.damaged("the allocator's block", offsets[0], Damage::Checksum)),
        };
        let wrong = |offset, damage| device.damaged("the allocator's block", offset, damage);
        let Some(groups) = first_units(&entry.groups, superblock.units) else {
            let damage = Damage::Value { what: "the number of its units", found: units_of(&entry.groups) };
            return Err(device.damaged("the table of segments", segment_tables(0)[0], damage));
        };
        let write_fence = superblock.write_fence_end(&groups);
        let needed = superblock.allocator_epochs.needs(write_fence);
        let mut allocator = Allocator::read(&groups, write_fence, needed, read, wrong)?;
        if !superblock.allocator_epochs.allows(allocator.epochs(needed)) {
            let first = entry.groups[0].bitmaps(0)[0];
            return Err(device.damaged("the bitmap or the unit table", first, Damage::Stale));
        }
        if groups != entry.groups {
            // Growth was cut short: blocks that it has left must be overwritten before their epoch comes again.
            for block in allocator.last_unknown_blocks() {
                let newest = device.read_best(block.kind, block.offsets, epoch, is_own)?;
                allocator.know_newest(block, newest.as_ref());
            }
        }
        let mut free_log_blocks = Vec::new();
        let mut free_blocks = 0_u64;
        let mut next = superblock.free_log;
        while next != 0 {
            if free_log_blocks.len() as u64 > device.len() / BLOCK_BYTES as u64 {
                return Err(device.damaged("the free log", next, Damage::Value { what: "its length", found: next }));
            }
            free_log_blocks.push(next);
            let block = device.read_block(next)?;
            let rows = unseal(&block.0, Kind::FreeLog, next).and_then(|sealed| {
                // Each commit writes its own free log.
                match (sealed.uuid == entry.uuid, sealed.epoch) {
                    (false, _) => Err(Damage::Foreign),
                    (true, found) if found != epoch => Err(Damage::Epoch { found, wanted: epoch }),
                    _ => free_log::from_block(&sealed),
                }
            });
            let (freed, behind) = rows.map_err(|damage| device.damaged("the free log", next, damage))?;
            // Their readers are gone.
            for freed in freed {
                let end =
                    freed.blocks.checked_mul(BLOCK_BYTES as u64).and_then(|bytes| bytes.checked_add(freed.offset));
                free_blocks = free_blocks.saturating_add(freed.blocks);
                let is_too_much = free_blocks > device.len() / BLOCK_BYTES as u64;
                if is_too_much || end.is_none_or(|end| end > device.len()) {
                    let damage = Damage::Value { what: "the end of what is free", found: freed.offset };
                    return Err(device.damaged("the free log", next, damage));
                }
                allocator.free(freed);
            }
            next = behind;
        }
        let mut keyspaces = Vec::new();
        for reference in &superblock.catalogue {
            keyspaces.push(read_catalogue(&device, entry.uuid, *reference)?);
        }
        // 0 means all units; once the segment grows it must not. The owner may use all features from its first commit on.
        let superblock = Superblock { units: units_of(&groups), write_fence, incompatible: FEATURES, ..superblock };
        let replay_sequence = AtomicU64::new(superblock.log_replay_sequence);
        let committed = Committed::new(copies, epoch, superblock, keyspaces, free_log_blocks);
        // Most likely not the number that another opening has begun with.
        let failed =
            |source| Error::Device { volume: device.name().to_owned(), action: "numbering", offset: 0, source };
        let [low, high, ..] = random_uuid().map_err(failed)?.into_bytes();
        Ok(Segment {
            chunk_generations: chunk_generations.clone(),
            merges: Merges::default(),
            free_reserve: FreeReserve::default(),
            ownership: Ownership::new(&device, entry, looks_after_flushes),
            device,
            number: entry.number,
            uuid: entry.uuid,
            reclaimable: Arc::default(),
            allocator: BatchingLock::new(allocator),
            allocating: Mutex::default(),
            committed: Mutex::new(committed),
            epoch: AtomicU64::new(epoch),
            replay_sequence,
            heads: AtomicU32::new(u32::from_le_bytes([low, high, 0, 0])),
        })
    }

    /// Finds the free units, once everything taken is marked, and tells the device which units hold nodes.
    pub(crate) fn ready(&self) -> Result<()> {
        let opened = self.epoch();
        let mut allocator = self.allocator();
        allocator.find_free_units();
        for (unit, of) in allocator.units() {
            self.chunk_generations.know(unit, (of.purpose == Purpose::Log).then_some(of.former_epoch), opened);
            if matches!(of.purpose, Purpose::Leaves(_) | Purpose::Branches(_)) {
                self.device.know_unit(unit, true, priority(of.purpose))?;
            }
        }
        Ok(())
    }

    pub(crate) fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock()
    }

    /// The last commit's superblock.
    pub(crate) fn superblock(&self) -> Superblock {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).superblock.clone()
    }

    /// The error of a damaged superblock.
    pub(crate) fn damaged_superblock(&self, damage: Damage) -> Error {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.damaged("the superblock", committed.copies[committed.epoch as usize % 2], damage)
    }

    /// Moves the superblock's copies, from the next commit on.
    pub(super) fn move_superblocks(&self, copies: [u64; 2]) {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).copies = copies;
    }

    /// The committed keyspaces.
    pub(crate) fn keyspaces(&self) -> Vec<KeyspaceEntry> {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.keyspaces().cloned().collect()
    }

    /// The epoch of the last commit.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The number of the first record that an opening would read back. It does not wait for a commit under way, whose flushes may take long.
    pub(crate) fn replay_sequence(&self) -> u64 {
        self.replay_sequence.load(Ordering::Acquire)
    }

    /// The epoch of the next commit, or of the one under way: nodes that are built now have it.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch() + 1
    }

    /// The number of the next large value's head. None of the 4095 before it has the same.
    pub(crate) fn next_head_number(&self) -> u32 {
        self.heads.fetch_add(1, Ordering::Relaxed) % HEAD_NUMBERS
    }

    /// Counts a record as garbage.
    pub(crate) fn count_garbage(&self, record: Pointer) {
        // The space of large values is freed, not collected, and a leaf's records go with the leaf.
        if matches!(record.kind(), PointerKind::Extents | PointerKind::Inline) {
            return;
        }
        self.allocator().add_garbage(unit_of(record.offset()), record.record_bytes());
    }

    /// Frees blocks that were never published.
    pub(crate) fn abandon(&self, blocks: impl Iterator<Item = Freed>) {
        let mut allocator = self.allocator();
        blocks.for_each(|freed| allocator.free(freed));
    }
}

fn read_catalogue(device: &Device, segment: Uuid, reference: BlockReference) -> Result<Vec<KeyspaceEntry>> {
    let BlockReference { offset, epoch } = reference;
    let damaged = |damage| device.damaged("the catalogue of keyspaces", offset, damage);
    let block = device.read_block(offset)?;
    let sealed = unseal(&block.0, Kind::Catalogue, offset).map_err(damaged)?;
    if sealed.uuid != segment {
        return Err(damaged(Damage::Foreign));
    }
    if sealed.epoch != epoch {
        return Err(damaged(Damage::Epoch { found: sealed.epoch, wanted: epoch }));
    }
    catalogue::from_block(&sealed).map_err(damaged)
}

/// The order of eviction (Kreon §3.3.1): 2N − 1 for inner nodes of level N, 2N for its leaves, and then the log.
pub(crate) fn priority(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Leaves(level) => 2 * level,
        Purpose::Branches(level) => (2 * level).saturating_sub(1),
        _ => 64,
    }
}
