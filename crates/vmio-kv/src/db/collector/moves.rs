//! Appends the live records of a chunk to the log again.
//!
//! A move is a second put or deletion within the keyspace's write turn, and only if the index still points to the old record. So the log
//! keeps the order of the writes, and recovery needs no rule for moved records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::db::collector::garbage_search::Effort;
use crate::db::open_segment::OpenSegment;
use crate::error::Result;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::pointer::Pointer;
use crate::keyspace::memtable::space_for;
use crate::keyspace::{Admitted, Keyspace, WriteTurn};
use crate::log::{Append, Appended, Visited};
use crate::volume::free_reserve::SpacePriority;

/// Keys per batch of look-ups.
const KEYS_MAX: usize = 512;
/// Bytes of records moved within one turn: writers of the keyspace wait for no more.
const TURN_BYTES: usize = 64 << 10;

impl OpenSegment {
    /// Moves a chunk's live records, and makes merges drop pointers into the chunk. Returns whether the chunk is empty: it leaves a chunk
    /// with records in a memtable as it is.
    pub(super) fn move_live_records(&self, unit: u64) -> Result<bool> {
        let chunk = unit * ALLOCATION_UNIT_BYTES;
        let superblock = self.published_superblock();
        let is_open = || self.log.open_chunks().contains(&chunk);
        if unit == unit_of(superblock.log_replay_from) || is_open() {
            self.segment.allocator().log_chunks.forbid(unit);
            return Ok(false);
        }
        let read = self.log.read_chunk(chunk)?;
        if read.first_sequence() >= superblock.log_replay_sequence {
            self.segment.allocator().log_chunks.forbid(unit);
            return Ok(false);
        }
        let mut by_keyspace: BTreeMap<u32, Vec<Visited<'_>>> = BTreeMap::new();
        self.log.walk(&read, |record| by_keyspace.entry(record.keyspace).or_default().push(record))?;
        for keyspace in self.keyspaces() {
            // Records of keyspaces that do not exist were never committed.
            let Some(mut records) = by_keyspace.remove(&keyspace.number) else { continue };
            // Neighbours are in the same leaves. The keys' first bytes are compared first, which needs no look at the keys.
            records.sort_by_cached_key(|record| (front(record.key), record.key));
            for some in records.chunks(KEYS_MAX) {
                self.move_live(&keyspace, some)?;
            }
        }
        self.segment.chunk_generations.empty(unit);
        // None of it is live: the whole chunk counts as garbage until it is freed.
        let mut allocator = self.segment.allocator();
        allocator.log_chunks.forbid(unit);
        allocator.log_chunks.add_garbage(unit, ALLOCATION_UNIT_BYTES);
        Ok(true)
    }

    /// Moves those of the records that are the newest of their keys.
    fn move_live(&self, keyspace: &Arc<Keyspace>, records: &[Visited<'_>]) -> Result<()> {
        let mut left: Vec<&Visited<'_>> = records.iter().collect();
        while !left.is_empty() {
            let version = keyspace.version();
            let places: Vec<(&[u8], Pointer)> = left.iter().map(|record| (record.key, record.pointer)).collect();
            let are_newest = keyspace.are_newest(&version, &places)?;
            let newest = left.drain(..).zip(are_newest).filter(|(_, is_newest)| *is_newest);
            let mut live: Vec<&Visited<'_>> = newest.map(|(record, _)| record).collect();
            let mut at = 0;
            while at < live.len() {
                let mut bytes = 0;
                let is_within = |record: &&&Visited<'_>| {
                    bytes += record.key.len() + record.value.len();
                    bytes <= TURN_BYTES
                };
                let some = &live[at..];
                let some = &some[..some.iter().take_while(is_within).count().max(1)];
                let _admitted = self.admit_moves(some)?;
                let turn = self.turn_to_move(keyspace)?;
                // The levels on the device have changed meanwhile: the look-up may no longer hold.
                if keyspace.current().epoch != version.epoch {
                    left = live.split_off(at);
                    break;
                }
                self.move_within(turn, keyspace, some)?;
                at += some.len();
            }
        }
        Ok(())
    }

    /// Reserves memtable budget for records that are moved. A writer that waits for budget may wait for this thread, so this thread waits
    /// only for a flush. If other writers have the whole budget, moves take a sixteenth more.
    fn admit_moves(&self, records: &[&Visited<'_>]) -> Result<Admitted<'_>> {
        let bytes = records.iter().map(|record| space_for(record.key)).sum();
        let budget = &self.store.memtable_budget;
        if let Some(admitted) = budget.try_admit(bytes) {
            return Ok(admitted);
        }
        let keyspaces = self.keyspaces();
        if keyspaces.iter().map(|keyspace| keyspace.memtable_bytes()).sum::<u64>()
            >= self.store.options.memtable_budget_bytes() / 16
        {
            self.uncover_all_garbage(Effort::FlushMemtables)?;
            if keyspaces.iter().any(|keyspace| keyspace.lacks_space()) {
                return Err(self.segment.full(ALLOCATION_UNIT_BYTES));
            }
        }
        Ok(budget.admit_anyway(bytes))
    }

    fn turn_to_move<'keyspace>(&self, keyspace: &'keyspace Arc<Keyspace>) -> Result<WriteTurn<'keyspace>> {
        if let Some(turn) = keyspace.try_begin_write()? {
            return Ok(turn);
        }
        // The holder of the turn may wait for space, and thus for this thread.
        self.compact_all(keyspace)?;
        keyspace.begin_write()
    }

    /// Moves records within a turn, except those whose keys are in a memtable: such a key has a newer record.
    fn move_within(&self, turn: WriteTurn<'_>, keyspace: &Arc<Keyspace>, records: &[&Visited<'_>]) -> Result<()> {
        let is_newest = |record: &&&Visited<'_>| turn.in_memory(record.key).is_none();
        let appends: Vec<Append<'_>> = records
            .iter()
            .filter(is_newest)
            .map(|record| Append { kind: record.kind, keyspace: keyspace.number, key: record.key, value: record.value })
            .collect();
        let mut appended: Vec<Appended> = Vec::with_capacity(appends.len());
        // Not as a batch: one move without space does no harm to the others.
        let done = appends.iter().try_for_each(|append| {
            appended.push(self.log.append_one_record(append, SpacePriority::Move)?);
            Ok(())
        });
        let mut memtable = turn.fill();
        for (append, at) in appends.iter().zip(&appended) {
            memtable.insert(append.key, at.sequence, at.pointer);
        }
        drop(memtable);
        let moved = appended.iter().map(|at| u64::from(at.pointer.record_bytes())).sum();
        let is_full = turn.is_full();
        drop(turn);
        self.collector.moved_bytes.fetch_add(moved, Ordering::Relaxed);
        self.compact_if_due(keyspace, is_full);
        done
    }
}

/// The first bytes of a key, in the order of keys.
fn front(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let known = key.len().min(bytes.len());
    bytes[..known].copy_from_slice(&key[..known]);
    u64::from_be_bytes(bytes)
}
