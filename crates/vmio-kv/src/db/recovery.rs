//! Opening a store: first the committed state, then the records of the log that came after.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::db::collector::collecting::Collector;
use crate::db::collector::pace::Bound;
use crate::db::open_segment::OpenSegment;
use crate::db::recovered_records::{NUMBERS_MAX, RecoveredRecords};
use crate::db::segments::Segments;
use crate::db::store::Store;
use crate::error::{Damage, Result};
use crate::format::catalogue::KeyspaceEntry;
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::record::RecordKind;
use crate::format::superblock::Superblock;
use crate::format::volume_header::SegmentEntry;
use crate::keyspace::Keyspace;
use crate::keyspace::memtable::space_for;
use crate::log::{Log, replay, replay_again};
use crate::options::Options;
use crate::volume::Volume;
use crate::volume::committed::Changes;
use crate::volume::segment::Segment;
use crate::volume::take_over::Claim;

/// The records recovered when a store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Records of the log that no level had.
    pub records: u64,
    /// Bytes of the log that were read.
    pub log_bytes: u64,
    /// How long the opening took.
    pub time: Duration,
}

impl Segments {
    /// Opens all segments of a volume.
    pub(super) fn recover(mut volume: Volume, options: Options) -> Result<(Segments, Recovery)> {
        let started = Instant::now();
        // First the claims: from here on the former owner changes nothing that is read, or does not acknowledge it.
        let may_open =
            |segments, keyspaces| options.check_segments(segments).and_then(|()| options.check_keyspaces(keyspaces));
        let mut claims = BTreeMap::new();
        if !options.reads_only() {
            match options.takes_over() {
                true => claims = volume.claim(may_open)?,
                false => volume.note_claims()?,
            }
            volume.mend()?;
            volume.ensure_fixed_space();
            // After a kill, the contents just read may be in a cache of the system's alone. They must be durable before anything is
            // overwritten.
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
    /// Opens a segment and its keyspaces.
    pub(super) fn open(store: &Arc<Store>, entry: &SegmentEntry, claim: Option<Claim>) -> Result<(Self, Recovery)> {
        let options = &store.options;
        let device = Arc::clone(&store.device);
        let segment = Arc::new(Segment::open(device, &store.chunk_generations, &store.looks_after_flushes, entry)?);
        let superblock = segment.superblock();
        let entries = segment.keyspaces();
        options.check_keyspaces(store.keyspaces().len() + entries.len())?;
        if superblock.log_replay_sequence.saturating_sub(superblock.log_durable) >= NUMBERS_MAX {
            let what = "the number from which the log is read, far beyond the durable ones,";
            return Err(segment.damaged_superblock(Damage::Value { what, found: superblock.log_replay_sequence }));
        }
        check_names(store, &segment, &entries)?;
        // A read-only store flushes nothing. Nor does a new owner, before the log is its own from its beginning on.
        let may_flush = claim.is_none() && !options.reads_only();
        let mut found = RecoveredRecords::new(&segment, &superblock, &entries, &store.memtable_budget, may_flush);
        let mut end = replay(&segment, &superblock, |record| found.take(record))?;
        if found.must_take_all() {
            drop(found);
            found = RecoveredRecords::new(&segment, &superblock, &entries, &store.memtable_budget, false);
            end = replay(&segment, &superblock, |record| found.take(record))?;
        }
        found.take_extents()?;
        match &claim {
            Some(claim) => {
                segment.keep_off(claim, &entry.groups);
                end.leave_next_chunk(&segment);
            }
            None => segment.allocator().forget_former_owners(),
        }
        segment.ready()?;
        // The owner's epoch is in each generation of its log: it must be durable before any chunk has it.
        // An epoch that only the log still has, and no superblock, is not used again either.
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
                // None of the former owners and claimants may own the segment again. One that has come since may, and then
                // we are fenced.
                owner_epoch = owner_epoch.max(store.volume().least_epoch(segment.number));
                segment.ownership.own(owner_epoch);
                segment.commit(Changes { owner_epoch: Some(owner_epoch), ..Changes::default() }, &[])?;
            }
        }
        let (records, log_bytes, left_from) = (found.count(), end.bytes, found.left_from());
        let log_end = end.next_sequence;
        let log = if options.reads_only() {
            Log::read_only(Arc::clone(&segment), owner_epoch, end)
        } else {
            store.volume().finish_growth(&segment)?;
            Log::new(Arc::clone(&segment), owner_epoch, end)?
        };
        let log = Arc::new(log);
        for entry in &entries {
            // A keyspace that was idle for long has no record near the number that was committed.
            let (log_offset, log_sequence) = found.begins_at(entry.number).unwrap_or_else(|| log.end());
            let its = KeyspaceEntry { log_offset, log_sequence, ..entry.clone() };
            let mut keyspace = Keyspace::new(&log, store.limits(), &store.memtable_budget, &its);
            if let Some(memtable) = found.take_memtable(entry.number) {
                keyspace = keyspace.with_memtable(memtable);
            }
            let keyspace = store.add_keyspace(keyspace);
            if let Err(error) = log.check_goes_on() {
                keyspace.fail(&error.with_causes());
            }
        }
        let opened = OpenSegment {
            store: Arc::clone(store),
            segment,
            log,
            committing: Mutex::default(),
            collector: Collector::default(),
            reorganized_bytes: AtomicU64::new(0),
            dropped: Mutex::default(),
            calm: Mutex::default(),
        };
        store.add_segment();
        opened.update_free_reserve();
        opened.allow_collection_of_old();
        if let Some(from) = left_from {
            opened.read_again(&superblock, &entries, from, log_end)?;
        }
        if let Some(chunk) = left_chunk {
            opened.empty_former_owners_chunk(chunk)?;
        }
        Ok((opened, Recovery { records, log_bytes, ..Recovery::default() }))
    }

    /// Reads a part of the log again whose records the memtables had no space for, and flushes as it goes.
    fn read_again(&self, superblock: &Superblock, entries: &[KeyspaceEntry], from: (u64, u64), end: u64) -> Result<()> {
        let keyspaces: BTreeMap<u32, Arc<Keyspace>> =
            self.keyspaces().into_iter().map(|keyspace| (keyspace.number, keyspace)).collect();
        let since: BTreeMap<u32, u64> = entries.iter().map(|entry| (entry.number, entry.log_sequence)).collect();
        let mut can_flush = self.log.check_goes_on().is_ok();
        // Where other keyspaces have nearly all of the budget, flushes would be many and small.
        let least = self.store.options.memtable_budget_bytes() / 16;
        self.log.set_replayed(Some(from));
        replay_again(&self.segment, superblock, from, end, |record| {
            let is_lacking = since.get(&record.keyspace).is_some_and(|since| record.sequence >= *since);
            let keyspace = keyspaces.get(&record.keyspace).filter(|_| is_lacking);
            let Some(keyspace) = keyspace.filter(|_| matches!(record.kind, RecordKind::Put | RecordKind::Delete))
            else {
                return Ok(());
            };
            self.log.set_replayed(Some((record.pointer.offset(), record.sequence)));
            if can_flush && !self.store.memtable_budget.has_space(space_for(record.key)) {
                let largest = keyspaces.values().max_by_key(|keyspace| keyspace.memtable_bytes());
                let taken: u64 = keyspaces.values().map(|keyspace| keyspace.memtable_bytes()).sum();
                if let Some(largest) = largest.filter(|_| taken >= least) {
                    if largest.rotate_memtable() {
                        self.compact_all(largest)?;
                    }
                    can_flush = !largest.lacks_space();
                }
            }
            keyspace.replay(record.key, record.sequence, record.pointer);
            Ok(())
        })?;
        self.log.set_replayed(None);
        Ok(())
    }

    /// Bytes of the log's chunks that an opening would read back now.
    pub(super) fn recovery_log_bytes(&self) -> u64 {
        self.log.bytes_since(self.segment.replay_sequence())
    }

    /// Requests flushes of memtables, full or not, before an opening has too much to read back. From half of the limit on it flushes those
    /// with the oldest records, and slows writers as the log approaches the limit.
    pub(super) fn keep_recovery_short(&self) {
        let (bytes, most) = (self.recovery_log_bytes(), self.recovery_log_bytes_max());
        let beyond = bytes.saturating_sub(most / 2);
        // Two chunks are begun before the next look.
        let left = (most / 2).saturating_sub(2 * ALLOCATION_UNIT_BYTES).max(ALLOCATION_UNIT_BYTES);
        let keyspaces = self.keyspaces();
        // The log of a memtable that cannot be flushed stays long anyway: writers do not wait for it.
        let is_stuck = keyspaces.iter().any(|keyspace| keyspace.has_failed() || keyspace.lacks_space());
        self.collector.pace.set(Bound::Recovery, if is_stuck { 0.0 } else { beyond as f64 / left as f64 });
        if beyond == 0 {
            return;
        }
        // The memtables that need the older half of that log.
        let (_, end) = self.log.end();
        let first = self.segment.replay_sequence();
        for keyspace in keyspaces {
            let is_old = keyspace.oldest_in_memory().is_some_and(|(_, sequence)| sequence <= first + (end - first) / 2);
            if is_old && !keyspace.has_failed() && !keyspace.has_immutable() && keyspace.rotate_memtable() {
                self.store.compactions.put(&keyspace);
            }
        }
    }

    fn recovery_log_bytes_max(&self) -> u64 {
        self.store.options.recovery_log_bytes(self.store.segments.load(Ordering::Relaxed))
    }
}

/// Fails if two keyspaces have one name: the name would be ambiguous.
fn check_names(store: &Store, segment: &Segment, entries: &[KeyspaceEntry]) -> Result<()> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let keyspaces = store.keyspaces();
    let second = entries.iter().find(|entry| !names.insert(&entry.name) || keyspaces.contains_key(&entry.name));
    second.map_or(Ok(()), |entry| {
        let what = "a keyspace with another one's name, whose number";
        Err(segment.damaged_superblock(Damage::Value { what, found: entry.number.into() }))
    })
}
