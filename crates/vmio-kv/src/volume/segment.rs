//! A segment: its allocator, its catalogue of regions, and what its last commit said.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, Newest};
use crate::error::{Damage, Error, Result};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::catalogue::{self, RegionEntry};
use crate::format::chunk::ChunkHeader;
use crate::format::free_log::{self, Freed};
use crate::format::geometry::{BLOCK_BYTES, UNIT_BYTES, unit_of};
use crate::format::pointer::Pointer;
use crate::format::superblock::{BlockReference, Superblock};
use crate::format::unit_table::Purpose;
use crate::format::volume_header::SegmentEntry;
use crate::volume::allocator::{Allocator, Cursor, Entered};
use crate::volume::commit::Committed;
use crate::volume::era::Retired;
use crate::volume::reserve::{Claim, Reserve};
use crate::volume::unit_lives::UnitLives;

/// A segment of a volume.
pub(crate) struct Segment {
    pub(crate) device: Arc<Device>,
    pub(crate) uuid: Uuid,
    pub(crate) retired: Arc<Retired>,
    pub(crate) lives: UnitLives,
    pub(crate) reserve: Reserve,
    pub(super) entry: SegmentEntry,
    allocator: Mutex<Allocator>,
    pub(super) committed: Mutex<Committed>,
}

/// The epoch of a segment in which nothing was committed yet.
const EPOCH_FIRST: u64 = 1;

/// Lays out an empty segment: a log of one chunk, and the next one taken.
pub(super) fn format(device: &Device, entry: &SegmentEntry) -> Result<()> {
    let mut allocator = Allocator::new(&entry.groups);
    let full = || Error::Full { volume: device.name().to_owned(), wanted: 2 * UNIT_BYTES };
    let chunk = allocator.take_chunk(|_| 0).ok_or_else(full)? * UNIT_BYTES;
    let next = allocator.take_chunk(|_| 0).ok_or_else(full)? * UNIT_BYTES;
    let header = ChunkHeader {
        segment: entry.uuid,
        offset: chunk,
        generation: 0,
        first_sequence: 1,
        previous: 0,
        next,
        begins_anew: true,
    };
    let mut front = Box::new(Block::ZERO);
    front.0[..header.to_bytes().len()].copy_from_slice(&header.to_bytes());
    device.write(chunk, &front.0)?;
    for (offset, block) in allocator.changed(entry.uuid, EPOCH_FIRST).blocks {
        device.write(offset, &block.0)?;
    }
    device.flush()?;
    let superblock = Superblock {
        incompatible: 0,
        owner_epoch: 0,
        log_first_chunk: chunk,
        log_replay_from: chunk + header.to_bytes().len() as u64,
        log_replay_sequence: 1,
        log_generation: 0,
        log_durable: 1,
        free_log: 0,
        next_region: 1,
        allocator_epochs: allocator.epochs(),
        catalogue: Vec::new(),
    };
    let copies = first_group(device, entry)?.superblocks();
    for (copy, offset) in copies.into_iter().enumerate() {
        // The other copy is void, whatever the device held there.
        let block = if copy as u64 == EPOCH_FIRST % 2 {
            superblock.to_block(entry.uuid, offset, EPOCH_FIRST)
        } else {
            Block::ZERO
        };
        device.write(offset, &block.0)?;
    }
    device.flush()
}

fn first_group(device: &Device, entry: &SegmentEntry) -> Result<crate::format::geometry::Group> {
    let wrong = || device.damaged("the table of segments", 0, Damage::Value { what: "a segment's groups", found: 0 });
    entry.groups.first().copied().ok_or_else(wrong)
}

impl Segment {
    /// Reads the newest committed state. Chunks of the log that are newer are to be marked by whoever replays it, who calls
    /// [`Self::ready`] then.
    pub(crate) fn open(device: Arc<Device>, entry: SegmentEntry) -> Result<Self> {
        let copies = first_group(&device, &entry)?.superblocks();
        let Some(Newest { copy, block, .. }) = device.read_pair(Kind::Superblock, copies, u64::MAX)? else {
            return Err(device.damaged("the superblock", copies[0], Damage::Checksum));
        };
        let damaged = |damage| device.damaged("the superblock", copies[copy], damage);
        let sealed = unseal(&block.0, Kind::Superblock, copies[copy]).map_err(damaged)?;
        if sealed.uuid != entry.uuid {
            return Err(damaged(Damage::Foreign));
        }
        let (epoch, superblock) = (sealed.epoch, Superblock::from_block(&sealed).map_err(damaged)?);
        if superblock.incompatible != 0 {
            let volume = device.name().to_owned();
            return Err(Error::UnknownFeatures { volume, features: superblock.incompatible });
        }
        let read = |kind: Kind, offsets: [u64; 2]| match device.read_pair(kind, offsets, epoch)? {
            Some(found) => Ok(found),
            None => Err(device.damaged("the allocator's block", offsets[0], Damage::Checksum)),
        };
        let wrong = |offset, damage| device.damaged("the allocator's block", offset, damage);
        let mut allocator = Allocator::read(&entry.groups, read, wrong)?;
        if !superblock.allocator_epochs.allows(allocator.epochs()) {
            let first = entry.groups[0].bitmaps(0)[0];
            return Err(device.damaged("the bitmap or the unit table", first, Damage::Stale));
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
                // Each commit writes its own.
                match (sealed.uuid == entry.uuid, sealed.epoch) {
                    (false, _) => Err(Damage::Foreign),
                    (true, found) if found != epoch => Err(Damage::Epoch { found, wanted: epoch }),
                    _ => free_log::from_block(&sealed),
                }
            });
            let (freed, behind) = rows.map_err(|damage| device.damaged("the free log", next, damage))?;
            // Who might have read them is gone.
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
        let mut regions = Vec::new();
        for reference in &superblock.catalogue {
            regions.push(read_catalogue(&device, entry.uuid, *reference)?);
        }
        let committed = Committed::new(epoch, superblock, regions, free_log_blocks);
        Ok(Segment {
            lives: UnitLives::new(device.len() / UNIT_BYTES),
            reserve: Reserve::default(),
            device,
            uuid: entry.uuid,
            retired: Arc::default(),
            entry,
            allocator: Mutex::new(allocator),
            committed: Mutex::new(committed),
        })
    }

    /// All that is taken has been marked: what is not is free. Tells the device which units hold nodes.
    pub(crate) fn ready(&self) -> Result<()> {
        let opened = self.epoch();
        let mut allocator = self.allocator();
        allocator.find_free_units();
        for (unit, of) in allocator.units() {
            self.lives.know(unit, (of.purpose == Purpose::Log).then_some(of.former_epoch), opened);
            if matches!(of.purpose, Purpose::Leaves(_) | Purpose::Branches(_)) {
                self.device.know_unit(unit, true, priority(of.purpose))?;
            }
        }
        Ok(())
    }

    pub(crate) fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last commit said.
    pub(crate) fn superblock(&self) -> Superblock {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).superblock.clone()
    }

    /// The error that the superblock is not what it should be.
    pub(crate) fn damaged_superblock(&self, damage: Damage) -> Error {
        let epoch = self.next_epoch() - 1;
        self.device.damaged("the superblock", self.entry.groups[0].superblocks()[epoch as usize % 2], damage)
    }

    /// The regions that were committed.
    pub(crate) fn regions(&self) -> Vec<RegionEntry> {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.regions().cloned().collect()
    }

    /// The number of the last commit.
    pub(crate) fn epoch(&self) -> u64 {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).epoch
    }

    /// The number of the commit under way, or of the next: what nodes that are built now say.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch() + 1
    }

    pub(crate) fn full(&self, wanted: u64) -> Error {
        Error::Full { volume: self.device.name().to_owned(), wanted }
    }

    /// Refuses a claim to so many chunks if what is reserved for others would not be left.
    pub(crate) fn check_room(&self, claim: Claim, chunks: u64) -> Result<()> {
        if self.allocator().free_units() >= self.reserve.least_free(claim) + chunks {
            return Ok(());
        }
        Err(self.full(chunks.max(1) * UNIT_BYTES))
    }

    /// Takes a unit for a chunk of the log.
    pub(crate) fn take_chunk(&self) -> Result<u64> {
        let taken = self.allocator().take_chunk(|unit| self.lives.begin(unit));
        let unit = taken.ok_or_else(|| self.full(UNIT_BYTES))?;
        self.device.begin_unit(unit, false, priority(Purpose::Log))?;
        Ok(unit * UNIT_BYTES)
    }

    /// Takes a block for a node, pending until it is committed.
    pub(crate) fn take_node(&self, cursor: &mut Cursor, purpose: Purpose, region: u32) -> Result<u64> {
        let taken = self.allocator().take_block(cursor, purpose, region);
        let (offset, entered) = taken.ok_or_else(|| self.full(UNIT_BYTES))?;
        match entered {
            Entered::No => {}
            Entered::New(unit) => self.device.begin_unit(unit, true, priority(purpose))?,
            Entered::Again(free) => {
                // What the device has there is no node, or not ours any more: it must not be read.
                for freed in free {
                    self.device.forget_blocks(freed.offset, freed.blocks)?;
                }
            }
        }
        Ok(offset)
    }

    /// Counts a record that nobody points to any longer.
    pub(crate) fn count_garbage(&self, record: Pointer) {
        self.allocator().add_garbage(unit_of(record.offset()), record.record_bytes());
    }

    /// Gives blocks back that nobody has published.
    pub(crate) fn abandon(&self, offsets: &[u64]) {
        let mut allocator = self.allocator();
        for offset in offsets {
            allocator.free(Freed { offset: *offset, blocks: 1 });
        }
    }
}

fn read_catalogue(device: &Device, segment: Uuid, reference: BlockReference) -> Result<Vec<RegionEntry>> {
    let BlockReference { offset, epoch } = reference;
    let damaged = |damage| device.damaged("the catalogue of regions", offset, damage);
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

/// Kreon's order of eviction (§3.3.1): of level N inner nodes 2N − 1 and leaves 2N, the log behind them all.
pub(crate) fn priority(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Leaves(level) => 2 * level,
        Purpose::Branches(level) => (2 * level).saturating_sub(1),
        _ => 64,
    }
}
