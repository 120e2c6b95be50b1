//! Opening a store: what was committed, and then what the log has beyond that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::db::collector::{Collected, Upkeep};
use crate::db::found_records::FoundRecords;
use crate::db::reorganization::Reorganized;
use crate::db::segments::Segments;
use crate::db::{OpenSegment, Store};
use crate::error::{Damage, Result};
use crate::format::catalogue::RegionEntry;
use crate::format::volume_header::SegmentEntry;
use crate::log::{Log, replay};
use crate::options::Options;
use crate::region::Region;
use crate::volume::Volume;
use crate::volume::commit::Changes;
use crate::volume::segment::Segment;
use crate::volume::take_over::Claim;

/// What opening a store has brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Records of the log that no level had.
    pub records: u64,
    /// Bytes of the log that were read for them.
    pub log_bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// So many numbers no level in memory comes by: it tells its records apart by fewer bits.
const NUMBERS_MAX: u64 = 1 << 46;

impl Segments {
    /// Opens all segments of a volume.
    pub(super) fn recover(mut volume: Volume, options: Options) -> Result<(Segments, Recovery)> {
        let started = Instant::now();
        // First: what is read from here on the former owner does not change any more, or has not acknowledged.
        let may_open =
            |segments, regions| options.check_segments(segments).and_then(|()| options.check_regions(regions));
        let mut claims = BTreeMap::new();
        if !options.reads_only() {
            match options.takes_over() {
                true => claims = volume.claim(may_open)?,
                false => volume.note_claims()?,
            }
            volume.mend()?;
            // What is read may be in a cache of the system's alone, after a kill: nothing is written over before it is durable.
            volume.device.flush()?;
        }
        let entries = volume.segments().to_vec();
        options.check_segments(entries.len())?;
        let store = Arc::new(Store::new(volume, options)?);
        let (mut all, mut recovery) = (Vec::new(), Recovery::default());
        for entry in &entries {
            let (segment, of_segment) = OpenSegment::open(&store, entry, claims.remove(&entry.number))?;
            recovery.records += of_segment.records;
            recovery.log_bytes += of_segment.log_bytes;
            all.push(Arc::new(segment));
        }
        recovery.time = started.elapsed();
        let Recovery { records, log_bytes, time } = recovery;
        tracing::info!(volume = store.device.name(), segments = all.len(), records, log_bytes, ?time, "opened");
        Ok((Segments::new(store, all), recovery))
    }
}

impl OpenSegment {
    /// Opens a segment, with its regions.
    pub(super) fn open(store: &Arc<Store>, entry: &SegmentEntry, claim: Option<Claim>) -> Result<(Self, Recovery)> {
        let options = &store.options;
        let device = Arc::clone(&store.device);
        let segment = Arc::new(Segment::open(device, &store.lives, &store.looks_after_flushes, entry)?);
        let superblock = segment.superblock();
        let entries = segment.regions();
        options.check_regions(store.regions().len() + entries.len())?;
        check_names(store, &segment, &entries)?;
        let mut found = FoundRecords::new(&segment, &superblock, &entries);
        let mut end = replay(&segment, &superblock, |record| found.take(record))?;
        found.take_extents()?;
        let is_behind = |entry: &&RegionEntry| end.next_sequence.saturating_sub(entry.log_sequence) >= NUMBERS_MAX;
        if let Some(behind) = entries.iter().find(is_behind) {
            let what = "of the records that a region's levels lack the first one's number";
            return Err(segment.damaged_superblock(Damage::Value { what, found: behind.log_sequence }));
        }
        match &claim {
            Some(claim) => {
                segment.keep_off(claim, &entry.groups);
                end.leave_next_chunk(&segment);
            }
            None => segment.allocator().forget_former_owners(),
        }
        segment.ready()?;
        // The owner's epoch is in every generation of its log: it has to be durable before any is used.
        // One that the log has seen, and no superblock has any more, is not used again either.
        let mut owner_epoch = superblock.owner_epoch.max(end.generation >> 32) + 1;
        let left_chunk = claim.is_some().then_some(end.last_chunk);
        match claim {
            Some(claim) => {
                owner_epoch = owner_epoch.max(claim.owner_epoch());
                segment.establish(&mut store.volume(), claim, owner_epoch)?;
                end.next_chunk = segment.take_chunk()?;
            }
            None if options.reads_only() => {}
            None => {
                // Of those who had taken it over, or wanted to, none may own it again; who has come since may, and we are told.
                owner_epoch = owner_epoch.max(store.volume().least_epoch(segment.number));
                segment.own(owner_epoch);
                segment.commit(Changes { owner_epoch: Some(owner_epoch), ..Changes::default() }, &[])?;
            }
        }
        let (records, log_bytes) = (found.count(), end.bytes);
        let log = if options.reads_only() {
            Log::read_only(Arc::clone(&segment), owner_epoch, end)
        } else {
            store.volume().finish_growth(&segment)?;
            Log::new(Arc::clone(&segment), owner_epoch, end)?
        };
        let log = Arc::new(log);
        for entry in &entries {
            let region = Region::new(&log, store.limits(), &store.level_memory, entry);
            found.replay(entry.number, &region);
            let region = store.add_region(region);
            if let Err(error) = log.check_goes_on() {
                region.fail(&error.with_causes());
            }
        }
        let opened = OpenSegment {
            store: Arc::clone(store),
            segment,
            log,
            upkeep: RwLock::default(),
            committing: Mutex::default(),
            collected: Collected::default(),
            reorganized: Reorganized::default(),
            dropped: Mutex::default(),
        };
        store.add_segment();
        opened.keep_reserve();
        if let Some(chunk) = left_chunk {
            opened.leave_chunk(chunk)?;
        }
        Ok((opened, Recovery { records, log_bytes, ..Recovery::default() }))
    }

    /// Bytes of the log's chunks that an opening would read back now.
    pub(super) fn recovery_log_bytes(&self) -> u64 {
        self.log.bytes_since(self.segment.superblock().log_replay_sequence)
    }

    /// Spills levels in memory, full or not, until an opening has little enough to read back: those with the oldest records first.
    /// Takes [`Self::upkeep_beside`] if the caller has none.
    pub(super) fn keep_recovery_short(&self, held: Option<&Upkeep>) -> Result<()> {
        let segments = self.store.segments.load(Ordering::Relaxed);
        let most = self.store.options.recovery_log_bytes(segments);
        let is_long = || self.recovery_log_bytes() > most;
        if !is_long() {
            return Ok(());
        }
        let mut regions = self.regions();
        regions.sort_by_cached_key(|region| region.oldest_in_memory().map_or(u64::MAX, |(_, sequence)| sequence));
        for region in regions.iter().take_while(|_| is_long() && !self.store.spills.is_stopping()) {
            match held {
                Some(upkeep) => self.spill_memory(region, upkeep)?,
                None => self.spill_memory(region, &self.upkeep_beside())?,
            }
        }
        Ok(())
    }
}

/// Of two regions with one name nobody could say which is meant.
fn check_names(store: &Store, segment: &Segment, entries: &[RegionEntry]) -> Result<()> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let regions = store.regions();
    let second = entries.iter().find(|entry| !names.insert(&entry.name) || regions.contains_key(&entry.name));
    second.map_or(Ok(()), |entry| {
        let what = "another region has the name of one whose number";
        Err(segment.damaged_superblock(Damage::Value { what, found: entry.number.into() }))
    })
}
