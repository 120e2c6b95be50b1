//! A segment of a store that is open: its log, and what is done to its keyspaces.

use std::sync::{Arc, Mutex, Weak};

use crate::db::Store;
use crate::db::collector::Collector;
use crate::db::reorganization::Reorganized;
use crate::error::{Error, Result};
use crate::extents::Stored;
use crate::format::catalogue::{KEYSPACES, KeyspaceEntry};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::record::RecordKind;
use crate::format::superblock::CATALOGUE_BLOCKS_MAX;
use crate::log::{Append, Appended, LOG_VALUE_BYTES_MAX, Log, LogWriter};
use crate::options::Durability;
use crate::keyspace::memtable::{space_for, space_for_large};
use crate::keyspace::{Admitted, Hope, Keyspace, WriteTurn};
use crate::volume::commit::Changes;
use crate::volume::space_reservation::SpacePriority;
use crate::volume::segment::Segment;
use crate::write_batch::Operation;

/// A segment of a store, with what it has of its own beside what all share.
pub(crate) struct OpenSegment {
    pub(crate) store: Arc<Store>,
    pub(crate) segment: Arc<Segment>,
    pub(crate) log: Arc<Log>,
    /// Whoever holds it commits a compaction, and has it seen: one after the other.
    pub(super) committing: Mutex<()>,
    pub(super) collector: Collector,
    pub(super) reorganized: Reorganized,
    /// Keyspaces that are no more, and that somebody may still read.
    pub(super) dropped: Mutex<Vec<Weak<Keyspace>>>,
}

impl OpenSegment {
    /// Starts the thread that writes its log.
    pub(super) fn start_writer(&self) -> Result<LogWriter> {
        LogWriter::start(&self.log).map_err(self.store.failed("starting threads"))
    }

    /// Its keyspaces.
    pub(super) fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let of_all = self.store.keyspaces();
        of_all.values().filter(|keyspace| keyspace.segment() == self.segment.number).cloned().collect()
    }

    /// Creates a keyspace, durably, whose name no other one has.
    pub(super) fn create_keyspace(&self, name: &str) -> Result<Arc<Keyspace>> {
        self.store.check_writable()?;
        let most = KEYSPACES * CATALOGUE_BLOCKS_MAX;
        if self.keyspaces().len() == most {
            return Err(Error::Option { option: "keyspaces", value: most as u64 + 1, why: "a segment has 1400 at most" });
        }
        let store = &self.store;
        store.options.check_keyspaces(store.keyspaces().len() + 1)?;
        let number = self.segment.superblock().next_keyspace;
        let (log_offset, log_sequence) = self.log.end();
        // Numbers of records that a crash loses are given again: those of the keyspace have to be higher.
        self.log.sync(log_sequence)?;
        let entry = Keyspace::empty_entry(number, name, log_offset, log_sequence);
        let keyspace = Keyspace::new(&self.log, store.limits(), &store.memtable_budget, &entry);
        let changes = Changes { keyspaces: vec![entry], next_keyspace: Some(number + 1), ..Changes::default() };
        self.segment.commit(changes, &[])?;
        let keyspace = store.add_keyspace(keyspace);
        self.update_free_reserve();
        Ok(keyspace)
    }

    /// From where the log has to be read if a crash comes once this keyspace is as it is about to be.
    pub(super) fn replay_from(&self, changed: &KeyspaceEntry) -> (u64, u64) {
        // First: whatever is written later lies behind it.
        let end = self.log.end();
        let keyspaces = self.keyspaces();
        let others = keyspaces.iter().filter(|keyspace| keyspace.number != changed.number);
        let places = others.filter_map(|keyspace| keyspace.oldest_in_memory());
        places
            .chain([(changed.log_offset, changed.log_sequence), end])
            .min_by_key(|(_, sequence)| *sequence)
            .unwrap_or(end)
    }

    /// Writes, and has garbage collected if there is no space.
    pub(super) fn write_or_make_space<Done>(&self, priority: SpacePriority, write: impl Fn() -> Result<Done>) -> Result<Done> {
        self.store.check_writable()?;
        let done = loop {
            match write() {
                Err(full @ Error::Full { wanted, .. }) => {
                    if !self.grow_for(priority, wanted / ALLOCATION_UNIT_BYTES) && !self.make_space(priority, wanted / ALLOCATION_UNIT_BYTES)? {
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

    /// Waits until one more memtable of a keyspace has been flushed than so many. A flush that has found no space is tried again: there
    /// may be some by now.
    pub(super) fn wait_for_flush_after(&self, keyspace: &Keyspace, compacted: u64) -> Result<()> {
        match keyspace.wait_for_flush_after(compacted) {
            Err(Error::Full { .. }) => {
                self.make_space(SpacePriority::Put, 0)?;
                keyspace.wait_for_flush_after(compacted)
            }
            waited => waited,
        }
    }

    pub(super) fn write(&self, batch: &[Operation], durability: Durability) -> Result<()> {
        let are_deletions = batch.iter().all(|operation| operation.append().kind == RecordKind::Delete);
        let priority = if are_deletions { SpacePriority::Delete } else { SpacePriority::Put };
        let store_large = |operation: &Operation| {
            let Append { key, value, .. } = operation.append();
            let is_large = value.len() > LOG_VALUE_BYTES_MAX;
            is_large.then(|| self.store_value(&operation.keyspace, key, value.len() as u64, &mut &*value)).transpose()
        };
        let stored = batch.iter().map(store_large).collect::<Result<Vec<_>>>()?;
        self.write_or_make_space(priority, || self.try_write(batch, &stored, priority, durability))
    }

    /// Large values have been `stored`.
    fn try_write(
        &self,
        operations: &[Operation],
        stored: &[Option<Stored>],
        priority: SpacePriority,
        durability: Durability,
    ) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        // In order, so that no two writers wait for each other.
        let mut keyspaces: Vec<&Arc<Keyspace>> = operations.iter().map(|operation| &operation.keyspace).collect();
        keyspaces.sort_unstable_by_key(|keyspace| keyspace.number);
        keyspaces.dedup_by_key(|keyspace| keyspace.number);
        let admitted = self.admit(space_for_all(&keyspaces, operations, stored))?;
        let turns = Self::begin_writes(&keyspaces)?;
        let appends = operations.iter().zip(stored).map(|(operation, stored)| operation.append_as(stored.as_ref()));
        let records: Vec<Append<'_>> = appends.collect();
        let mut appended: Vec<Appended> = Vec::with_capacity(records.len());
        self.log.append(&records, priority, &mut appended)?;
        // All levels at once: who begins a view sees all of it, or nothing.
        let mut levels: Vec<_> = turns.iter().map(WriteTurn::fill).collect();
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
            replaced.extend(levels[place].insert(record.key, at.sequence, pointer));
        }
        drop(levels);
        replaced.into_iter().for_each(|pointer| self.segment.count_garbage(pointer));
        let full: Vec<bool> =
            turns.iter().zip(has_many_large).map(|(turn, has_many)| has_many || turn.is_full()).collect();
        drop(turns);
        drop(admitted);
        for (keyspace, is_full) in keyspaces.iter().zip(full) {
            self.compact_if_due(keyspace, is_full);
        }
        self.slow_down(records.len(), appended.iter().map(|at| u64::from(at.pointer.record_bytes())).sum());
        appended.last().map_or(Ok(()), |last| self.log.keep(durability, last.sequence + 1))
    }

    /// Waits until so many bytes more may be in memtables. Who waits has no turn; what he is admitted to is counted until he has written,
    /// or given up.
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
            // Whoever makes space in this segment has it compacted, and then it can be waited for. What cannot be compacted elsewhere, or any
            // more, is beside what he may add.
            match keyspaces.iter().any(|keyspace| keyspace.segment() == self.segment.number && keyspace.lacks_space()) {
                true => Err(self.segment.full(ALLOCATION_UNIT_BYTES)),
                false => Ok(Hope::Nothing),
            }
        })
    }

    /// Has a keyspace's memtable flushed if it is full, or the largest of all if these have come to what they may take.
    pub(super) fn compact_if_due(&self, keyspace: &Arc<Keyspace>, is_full: bool) {
        if is_full {
            if keyspace.rotate_memtable() {
                self.store.compactions.put(keyspace);
            }
        } else if self.store.memtable_budget.is_crowded() {
            self.store.compactions.relieve();
        }
    }

    /// Has a writer wait, the longer the closer the memtables come to what they may take, and the log to its bounds: so flushes
    /// and collections keep up with writers, and nobody waits for a whole one.
    pub(super) fn slow_down(&self, records: usize, bytes: u64) {
        if let Some(delay) = self.store.memtable_budget.delay(records) {
            std::thread::sleep(delay);
        }
        self.collector.pace.keep(bytes);
    }

    /// Turns of all these keyspaces. Who has to wait for a compaction of one holds none meanwhile: the compaction may need them.
    fn begin_writes<'keyspace>(keyspaces: &[&'keyspace Arc<Keyspace>]) -> Result<Vec<WriteTurn<'keyspace>>> {
        loop {
            let mut turns = Vec::with_capacity(keyspaces.len());
            let mut full = None;
            for keyspace in keyspaces {
                match keyspace.try_begin_write()? {
                    Some(turn) => turns.push(turn),
                    None => {
                        full = Some(keyspace);
                        break;
                    }
                }
            }
            let Some(full) = full else { return Ok(turns) };
            drop(turns);
            drop(full.begin_write()?);
        }
    }
}

/// What a batch adds to memtables at most, of which large values have been `stored`.
fn space_for_all(keyspaces: &[&Arc<Keyspace>], operations: &[Operation], stored: &[Option<Stored>]) -> u64 {
    let begun: u64 = keyspaces.iter().map(|keyspace| keyspace.space_to_begin()).sum();
    let keys: u64 = operations.iter().map(|operation| space_for(operation.append().key)).sum();
    let large: u64 = stored.iter().flatten().map(|stored| space_for_large(stored.record())).sum();
    begun + keys + large
}

#[cfg(test)]
mod tests;
