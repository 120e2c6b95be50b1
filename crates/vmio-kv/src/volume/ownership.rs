//! Ownership of a segment: how an owner finds out that another one has taken it over.
//!
//! A new owner writes a record before it reads anything else. An owner reads the records after the superblock of each commit, before it
//! acknowledges the commit. With `Options::fenced` it reads them after each flush of the log as well. One of the two sees the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use zerocopy::IntoBytes;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::owner::{OWNER_RECORDS, OwnerRecord, owner_records};
use crate::format::superblock::Superblock;
use crate::format::volume_header::SegmentEntry;

/// The state of a segment's owner.
pub(crate) struct Ownership {
    device: Arc<Device>,
    /// The segment.
    number: u32,
    uuid: Uuid,
    /// Its epoch; 0 while it has none.
    epoch: AtomicU64,
    /// Whether each flush of the log ends with a look at the records. All segments of a store share it: if one was taken over, the others
    /// were, or will be soon.
    looks_after_flushes: Arc<AtomicBool>,
    /// The epoch of another owner that has taken the segment over.
    fenced_by: OnceLock<u64>,
}

impl Ownership {
    /// Of a segment that has no owner yet.
    pub(super) fn new(device: &Arc<Device>, segment: &SegmentEntry, looks_after_flushes: &Arc<AtomicBool>) -> Self {
        Ownership {
            device: Arc::clone(device),
            number: segment.number,
            uuid: segment.uuid,
            epoch: AtomicU64::new(0),
            looks_after_flushes: Arc::clone(looks_after_flushes),
            fenced_by: OnceLock::new(),
        }
    }

    fn is_fenced_by(&self, epoch: u64) {
        debug_assert!(
            epoch > self.epoch.load(Ordering::Relaxed),
            "an owner of epoch {epoch} fences none that is newer"
        );
        self.fenced_by.get_or_init(|| epoch);
        self.looks_after_flushes.store(true, Ordering::Release);
    }

    /// Makes the opening the owner of the segment, with that epoch.
    pub(crate) fn own(&self, epoch: u64) {
        let before = self.epoch.swap(epoch, Ordering::Release);
        debug_assert!(before < epoch, "an owner's epoch {before} is followed by {epoch}");
    }

    /// The log's check before it says that flushed records are durable.
    pub(crate) fn check_flushed(&self) -> Result<()> {
        let looks = self.looks_after_flushes.load(Ordering::Acquire);
        if looks { self.check_claims() } else { self.fenced() }
    }

    /// Fails for ever once another owner has claimed the segment. That owner reads all that was on the device before this returned.
    pub(crate) fn check_claims(&self) -> Result<()> {
        let own = self.epoch.load(Ordering::Acquire);
        if self.fenced_by.get().is_none() && own > 0 {
            let newest = newest_epoch(&read_records(&self.device, self.number, self.uuid)?);
            if newest > own {
                self.is_fenced_by(newest);
            }
        }
        self.fenced()
    }

    /// The same, and looks at the superblocks as well, which are at `copies`: an opening without takeover leaves no other trace.
    pub(super) fn check_owner(&self, copies: [u64; 2]) -> Result<()> {
        self.check_claims()?;
        let own = self.epoch.load(Ordering::Acquire);
        if own == 0 {
            return Ok(());
        }
        let mut blocks = [Block::ZERO; 2];
        self.device.read(copies[0], blocks.as_mut_bytes())?;
        for (block, offset) in blocks.iter().zip(copies) {
            let superblock =
                unseal(&block.0, Kind::Superblock, offset).and_then(|sealed| Superblock::from_block(&sealed));
            if let Some(found) = superblock.ok().map(|superblock| superblock.owner_epoch).filter(|found| *found > own) {
                self.is_fenced_by(found);
            }
        }
        self.fenced()
    }

    /// Fails if it is known that another owner has taken the segment over.
    pub(crate) fn fenced(&self) -> Result<()> {
        match self.fenced_by.get() {
            Some(new_epoch) => Err(Error::Fenced {
                volume: self.device.name().to_owned(),
                own_epoch: self.epoch.load(Ordering::Acquire),
                new_epoch: *new_epoch,
            }),
            None => Ok(()),
        }
    }

    /// The error of a write that comes too late.
    pub(crate) fn stopped(&self, why: &str) -> Error {
        let stopped = || Error::Stopped { volume: self.device.name().to_owned(), why: why.to_owned() };
        self.fenced().err().unwrap_or_else(stopped)
    }
}

/// The state of an opening until it owns the segment: it may go on as long as no other owner has claimed it since.
#[derive(Clone)]
pub(super) struct Standing {
    pub(super) number: u32,
    pub(super) uuid: Uuid,
    /// Its least epoch: higher than all claims from before.
    pub(super) epoch: u64,
    /// Its name in the records, if it has claimed the segment.
    pub(super) claim: Option<Uuid>,
}

impl Standing {
    /// Of an opening that expects no other owner.
    pub(super) fn unclaimed(device: &Device, number: u32, uuid: Uuid) -> Result<Self> {
        let epoch = newest_epoch(&read_records(device, number, uuid)?) + 1;
        Ok(Standing { number, uuid, epoch, claim: None })
    }

    /// Fails if another owner has claimed the segment. If two claim it at the same time, perhaps neither gets it.
    pub(super) fn check(&self, device: &Device) -> Result<()> {
        let mut others = read_records(device, self.number, self.uuid)?;
        let own = others.extract_if(.., |(_, record)| self.claim == Some(record.claim)).count();
        let newest = newest_epoch(&others);
        if (own > 0 || self.claim.is_none()) && newest < self.epoch {
            return Ok(());
        }
        Err(Error::Fenced { volume: device.name().to_owned(), own_epoch: self.epoch, new_epoch: newest })
    }
}

/// The highest epoch of all claims; 0 if there is none.
fn newest_epoch(records: &[(usize, OwnerRecord)]) -> u64 {
    records.iter().map(|(_, record)| record.owner_epoch).max().unwrap_or(0)
}

/// The whole records of a segment, by their places.
pub(super) fn read_records(device: &Device, segment: u32, uuid: Uuid) -> Result<Vec<(usize, OwnerRecord)>> {
    let offsets = owner_records(segment);
    let mut blocks = vec![Block::ZERO; OWNER_RECORDS];
    device.read(offsets[0], blocks.as_mut_slice().as_mut_bytes())?;
    let read = |(place, block): (usize, &Block)| {
        let sealed = unseal(&block.0, Kind::Owner, offsets[place]).ok().filter(|sealed| sealed.uuid == uuid)?;
        Some((place, OwnerRecord::from_block(&sealed).ok()?))
    };
    Ok(blocks.iter().enumerate().filter_map(read).collect())
}

/// The record that says where the segment's state is, if there is one.
pub(super) fn in_force(records: &[(usize, OwnerRecord)]) -> Option<&(usize, OwnerRecord)> {
    records.iter().filter(|(_, record)| record.is_in_force()).max_by_key(|(_, record)| record.owner_epoch)
}
