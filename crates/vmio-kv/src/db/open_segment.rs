//! A segment of an open store: its log, and the work on its keyspaces.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::db::collector::collecting::Collector;
use crate::db::condition::Condition;
use crate::db::operation::Operation;
use crate::db::store::Store;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::extents::Stored;
use crate::format::catalogue::{KEYSPACES, KeyspaceEntry};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::record::RecordKind;
use crate::format::superblock::CATALOGUE_BLOCKS_MAX;
use crate::keyspace::memtable::{space_for, space_for_large};
use crate::keyspace::{Admitted, Hope, Keyspace, Stay, WriteTurn};
use crate::log::{Append, Appended, Log, LogWriter};
use crate::volume::committed::Changes;
use crate::volume::free_reserve::SpacePriority;
use crate::volume::segment::Segment;

/// A segment of a store, with the state that it does not share with other segments.
pub(crate) struct OpenSegment {
    pub(crate) store: Arc<Store>,
    pub(crate) segment: Arc<Segment>,
    pub(crate) log: Arc<Log>,
    /// Held while a compaction is committed and published: one at a time.
    pub(super) committing: Mutex<()>,
    pub(super) collector: Collector,
    /// Bytes of the records that were moved for scans since the store was opened.
    pub(super) reorganized_bytes: AtomicU64,
    /// Dropped keyspaces that may still be read.
    pub(super) dropped: Mutex<Vec<Weak<Keyspace>>>,
    /// The number of the next record at the last look for a calm.
    pub(super) calm: Mutex<Option<(Instant, u64)>>,
}

/// Fewer records a second leave time for other work.
const CALM_RECORDS_A_SECOND: f64 = 10_000.0;
/// The least time between two looks that tell.
const CALM_LOOK_MIN: Duration = Duration::from_millis(100);

impl OpenSegment {
    /// Whether there have been few writes since the last look.
    pub(super) fn is_calm(&self) -> bool {
        let (now, next) = (Instant::now(), self.log.end().1);
        let mut last = self.calm.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((then, before)) = *last else {
            *last = Some((now, next));
            return false;
        };
        let passed = now - then;
        if passed < CALM_LOOK_MIN {
            return false;
        }
        *last = Some((now, next));
        next.saturating_sub(before) as f64 <= CALM_RECORDS_A_SECOND * passed.as_secs_f64()
    }

    /// Starts the thread that writes the log.
    pub(super) fn start_writer(&self) -> Result<LogWriter> {
        LogWriter::start(&self.log).map_err(self.store.failed("starting threads"))
    }

    /// The segment's keyspaces.
    pub(super) fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let of_all = self.store.keyspaces();
        of_all.values().filter(|keyspace| keyspace.segment() == self.segment.number).cloned().collect()
    }

    /// Creates a keyspace durably. No other one has its name.
    pub(super) fn create_keyspace(&self, name: &str) -> Result<Arc<Keyspace>> {
        self.store.check_writable()?;
        let most = KEYSPACES * CATALOGUE_BLOCKS_MAX;
        if self.keyspaces().len() == most {
            return Err(Error::Option {
                option: "keyspaces",
                value: most as u64 + 1,
                why: "a segment has 1400 or fewer",
            });
        }
        let store = &self.store;
        store.options.check_keyspaces(store.keyspaces().len() + 1)?;
        let number = self.segment.superblock().next_keyspace;
        let (log_offset, log_sequence) = self.log.end();
        // Record numbers that a crash loses are used again: those of the keyspace must be higher.
        self.log.sync(log_sequence)?;
        let entry = Keyspace::empty_entry(number, name, log_offset, log_sequence);
        let keyspace = Keyspace::new(&self.log, store.limits(), &store.memtable_budget, &entry);
        let changes = Changes { keyspaces: vec![entry], next_keyspace: Some(number + 1), ..Changes::default() };
        self.segment.commit(changes, &[])?;
        let keyspace = store.add_keyspace(keyspace);
        self.update_free_reserve();
        Ok(keyspace)
    }

    /// The place and number from which an opening reads the log back, once a commit has this entry of the keyspace.
    pub(super) fn replay_from(&self, changed: &KeyspaceEntry) -> (u64, u64) {
        // First of all: later writes lie behind it.
        let end = self.log.end();
        let keyspaces = self.keyspaces();
        let others = keyspaces.iter().filter(|keyspace| keyspace.number != changed.number);
        let places = others.filter_map(|keyspace| keyspace.oldest_in_memory());
        places
            .chain([(changed.log_offset, changed.log_sequence), end])
            .min_by_key(|(_, sequence)| *sequence)
            .unwrap_or(end)
    }

    /// Writes. Where there is no space, it grows the volume or collects garbage, and tries again.
    pub(super) fn write_or_make_space<Done>(
        &self,
        priority: SpacePriority,
        write: impl Fn() -> Result<Done>,
    ) -> Result<Done> {
        self.store.check_writable()?;
        let done = loop {
            match write() {
                Err(full @ Error::Full { wanted, .. }) => {
                    if !self.grow_for(priority, wanted / ALLOCATION_UNIT_BYTES)
                        && !self.make_space(priority, wanted / ALLOCATION_UNIT_BYTES)?
                    {
                        return Err(full);
                    }
                }
                done => break done,
            }
        }?;
        if self.log.take_begun_chunk() {
            self.keep_recovery_short();
            self.set_pace();
            self.store.collector.wake();
        }
        Ok(done)
    }

    /// Waits until more memtables of a keyspace have been flushed than `flushed`. A flush that has found no space is tried again.
    pub(super) fn wait_for_flush_after(&self, keyspace: &Keyspace, flushed: u64) -> Result<()> {
        match keyspace.wait_for_flush_after(flushed) {
            Err(Error::Full { .. }) => {
                self.make_space(SpacePriority::Put, 0)?;
                keyspace.wait_for_flush_after(flushed)
            }
            waited => waited,
        }
    }

    pub(super) fn write(&self, batch: &[Operation], durability: Durability) -> Result<()> {
        let stored = self.store_large(batch)?;
        self.write_if(&Condition::NONE, batch, &stored, durability).map(drop)
    }

    /// Stores the large values of a batch. Dropping the result frees them, unless the batch was written.
    pub(super) fn store_large(&self, batch: &[Operation]) -> Result<Vec<Option<Stored>>> {
        let store = |operation: &Operation| {
            let Append { key, value, .. } = operation.append();
            let store = || self.store_value(&operation.keyspace, key, value.len() as u64, &mut &*value);
            operation.is_large().then(store).transpose()
        };
        batch.iter().map(store).collect()
    }

    /// Writes a batch whose large values have been `stored` if a condition holds, and returns whether it did. Nobody writes to the
    /// condition's keyspaces in between.
    pub(super) fn write_if(
        &self,
        condition: &Condition<'_>,
        batch: &[Operation],
        stored: &[Option<Stored>],
        durability: Durability,
    ) -> Result<bool> {
        let are_deletions = batch.iter().all(|operation| operation.append().kind == RecordKind::Delete);
        let priority = if are_deletions { SpacePriority::Delete } else { SpacePriority::Put };
        self.write_or_make_space(priority, || self.try_write(condition, batch, stored, priority, durability))
    }

    /// Writes a batch whose large values have been `stored`.
    fn try_write(
        &self,
        condition: &Condition<'_>,
        operations: &[Operation],
        stored: &[Option<Stored>],
        priority: SpacePriority,
        durability: Durability,
    ) -> Result<bool> {
        if operations.is_empty() {
            return Ok(true);
        }
        let mut keyspaces: Vec<&Arc<Keyspace>> = operations.iter().map(|operation| &operation.keyspace).collect();
        keyspaces.sort_unstable_by_key(|keyspace| keyspace.number);
        keyspaces.dedup_by_key(|keyspace| keyspace.number);
        let admitted = self.admit(space_for_all(&keyspaces, operations, stored))?;
        let (turns, stays) = Self::begin_writes(&keyspaces, condition.keyspaces)?;
        if !(condition.holds)()? {
            return Ok(false);
        }
        let appends = operations.iter().zip(stored).map(|(operation, stored)| operation.append_as(stored.as_ref()));
        let records: Vec<Append<'_>> = appends.collect();
        let mut appended: Vec<Appended> = Vec::with_capacity(records.len());
        self.log.append(&records, priority, &mut appended)?;
        // All memtables at once: a view sees all of the batch, or nothing.
        let mut memtables: Vec<_> = turns.iter().map(WriteTurn::fill).collect();
        let mut replaced = Vec::new();
        let mut has_many_large = vec![false; turns.len()];
        for ((record, at), stored) in records.iter().zip(&appended).zip(stored) {
            let place = keyspaces.binary_search_by_key(&record.keyspace, |keyspace| keyspace.number);
            let Ok(place) = place else { unreachable!("each operation's keyspace is in the list") };
            let mut pointer = at.pointer;
            if let Some(stored) = stored {
                pointer = stored.keep(pointer);
                has_many_large[place] = turns[place].add_large(stored.record());
            }
            replaced.extend(memtables[place].insert(record.key, at.sequence, pointer));
        }
        drop(memtables);
        replaced.into_iter().for_each(|pointer| self.segment.count_garbage(pointer));
        let full: Vec<bool> =
            turns.iter().zip(has_many_large).map(|(turn, has_many)| has_many || turn.is_full()).collect();
        drop((turns, stays));
        drop(admitted);
        for (keyspace, is_full) in keyspaces.iter().zip(full) {
            self.compact_if_due(keyspace, is_full);
        }
        self.slow_down(records.len(), appended.iter().map(|at| u64::from(at.pointer.record_bytes())).sum());
        appended.last().map_or(Ok(()), |last| self.log.keep(durability, last.sequence + 1))?;
        Ok(true)
    }

    /// Waits until memtables may take that many more bytes. The caller has no turn. The bytes count as taken until the admission is dropped.
    pub(super) fn admit(&self, bytes: u64) -> Result<Admitted<'_>> {
        self.store.memtable_budget.admit(bytes, || {
            let keyspaces: Vec<Arc<Keyspace>> = self.store.keyspaces().values().cloned().collect();
            if keyspaces.iter().any(|keyspace| keyspace.is_flushing()) {
                return Ok(Hope::Flush);
            }
            let can_be_rotated = |keyspace: &&Arc<Keyspace>| !keyspace.has_immutable() && !keyspace.has_failed();
            let largest = keyspaces.iter().filter(can_be_rotated).max_by_key(|keyspace| keyspace.memtable_bytes());
            if let Some(largest) = largest.filter(|largest| largest.rotate_memtable()) {
                self.store.compactions.put(largest);
                return Ok(Hope::Flush);
            }
            // Making space in this segment flushes it, and then a writer can wait for the flush. Where nothing can be flushed,
            // the bytes are admitted beyond the budget.
            match keyspaces.iter().any(|keyspace| keyspace.segment() == self.segment.number && keyspace.lacks_space()) {
                true => Err(self.segment.full(ALLOCATION_UNIT_BYTES)),
                false => Ok(Hope::Nothing),
            }
        })
    }

    /// Requests a flush of a keyspace's memtable if it is full, or of the largest ones if all together take too much.
    pub(super) fn compact_if_due(&self, keyspace: &Arc<Keyspace>, is_full: bool) {
        if is_full {
            if keyspace.rotate_memtable() {
                self.store.compactions.put(keyspace);
            }
        } else if self.store.memtable_budget.is_crowded() {
            self.store.compactions.relieve();
        }
    }

    /// Delays a writer: the longer, the closer the memtables come to their budget and the log to its limits. So flushes and collections
    /// keep up, and writers seldom wait for a whole one.
    pub(super) fn slow_down(&self, records: usize, bytes: u64) {
        if let Some(delay) = self.store.memtable_budget.delay(records) {
            std::thread::sleep(delay);
        }
        self.collector.pace.delay_writer(bytes);
    }

    /// Takes the turns of all keyspaces that are `written`, and keeps writers out of others that `stay`. While it waits for one keyspace's
    /// flush it holds no turn, which the flush may need.
    fn begin_writes<'keyspace>(
        written: &[&'keyspace Arc<Keyspace>],
        stay: &[&'keyspace Arc<Keyspace>],
    ) -> Result<(Vec<WriteTurn<'keyspace>>, Vec<Stay<'keyspace>>)> {
        let is_written = |keyspace: &&Arc<Keyspace>| written.iter().any(|other| Arc::ptr_eq(other, keyspace));
        let others = stay.iter().copied().filter(|keyspace| !is_written(keyspace)).map(|keyspace| (keyspace, false));
        let mut all: Vec<_> = written.iter().map(|keyspace| (*keyspace, true)).chain(others).collect();
        // In one order, so that no two writers wait for each other.
        all.sort_unstable_by_key(|(keyspace, _)| (keyspace.segment(), keyspace.number));
        loop {
            let (mut turns, mut stays) = (Vec::with_capacity(written.len()), Vec::new());
            let mut full = None;
            for (keyspace, is_written) in &all {
                if !is_written {
                    stays.push(keyspace.begin_stay()?);
                    continue;
                }
                match keyspace.try_begin_write()? {
                    Some(turn) => turns.push(turn),
                    None => {
                        full = Some(keyspace);
                        break;
                    }
                }
            }
            let Some(full) = full else { return Ok((turns, stays)) };
            drop((turns, stays));
            drop(full.begin_write()?);
        }
    }
}

/// The most that a batch adds to memtables. Its large values have been `stored`.
fn space_for_all(keyspaces: &[&Arc<Keyspace>], operations: &[Operation], stored: &[Option<Stored>]) -> u64 {
    let begun: u64 = keyspaces.iter().map(|keyspace| keyspace.space_to_begin()).sum();
    let keys: u64 = operations.iter().map(|operation| space_for(operation.append().key)).sum();
    let large: u64 = stored.iter().flatten().map(|stored| space_for_large(stored.record())).sum();
    begun + keys + large
}

#[cfg(test)]
mod tests;
