//! Partial reorganization (Kreon, §3.2.3) rewrites small records side by side that scans read again and again, and that lie apart in the
//! log. The next scan then reads a few blocks for them in place of one block each.
//!
//! A move is a put of the same value. It is done within the keyspace's write turn, and only if the index still points to the record that
//! the scan has read. To the log, recovery and the collector it is a put like any other.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::db::open_keyspace::OpenKeyspace;
use crate::db::open_segment::OpenSegment;
use crate::db::records_apart::{ReadRecord, RecordsApart};
use crate::db::scanned_records::BLOCKS_MIN;
use crate::error::{Error, Result};
use crate::format::pointer::Pointer;
use crate::format::record::RecordKind;
use crate::keyspace::memtable::space_for;
use crate::keyspace::{Keyspace, Version, View};
use crate::log::Append;
use crate::tree::Direction;
use crate::volume::free_reserve::SpacePriority;

/// The most records of one rewrite, and their most bytes.
const RECORDS_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 10;

/// Gathers the records of a scan that are to be moved. The drop queues them.
pub(super) struct Gathering {
    home: Arc<OpenSegment>,
    apart: RecordsApart,
    bytes: usize,
}

impl Gathering {
    pub(super) fn new(open: &OpenKeyspace, view: &Arc<View>, from: Bound<Vec<u8>>, direction: Direction) -> Self {
        let (keyspace, view) = (Arc::clone(&open.keyspace), Arc::clone(view));
        let apart = RecordsApart { keyspace, view, from, direction, records: BTreeMap::new() };
        Gathering { home: Arc::clone(&open.home), apart, bytes: 0 }
    }

    /// Adds a record. Returns whether there is space for more.
    pub(super) fn take(&mut self, pointer: Pointer, key: &[u8], value: &[u8]) -> bool {
        self.bytes += key.len() + value.len();
        let record = ReadRecord { key: key.to_vec(), value: value.to_vec() };
        self.apart.records.insert(pointer.offset(), record);
        self.apart.records.len() < RECORDS_MAX && self.bytes < BYTES_MAX
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let RecordsApart { keyspace, view, from, direction, records } = &mut self.apart;
        if records.len() >= BLOCKS_MIN {
            let (keyspace, view) = (Arc::clone(keyspace), Arc::clone(view));
            let (from, records) = (mem::replace(from, Bound::Unbounded), mem::take(records));
            let apart = RecordsApart { keyspace, view, from, direction: *direction, records };
            self.home.store.compactions.reorganize(apart);
        }
    }
}

impl OpenSegment {
    /// Writes those of the records side by side that are still the newest of their keys, if that can be done now.
    pub(super) fn reorganize(&self, apart: RecordsApart) -> Result<()> {
        // A segment that was taken over must not be written to, least of all by scans.
        self.segment.ownership.check_claims()?;
        let keyspace = Arc::clone(&apart.keyspace);
        let now = Arc::new(View::begin(&keyspace));
        let records = apart.newest(&now)?;
        self.write_side_by_side(&keyspace, &now.version, records)
    }

    /// Writes records side by side that were the newest of their keys in a version that began a moment ago.
    fn write_side_by_side(
        &self,
        keyspace: &Arc<Keyspace>,
        version: &Arc<Version>,
        mut records: Vec<ReadRecord>,
    ) -> Result<()> {
        // Writers need the same device and the same memory.
        if records.len() < BLOCKS_MIN || self.log.is_behind() || self.store.memtable_budget.is_crowded() {
            return Ok(());
        }
        let bytes = records.iter().map(|record| space_for(&record.key)).sum::<u64>() + keyspace.space_to_begin();
        let Some(_admitted) = self.store.memtable_budget.try_admit(bytes) else { return Ok(()) };
        let Some(turn) = keyspace.try_begin_write()? else { return Ok(()) };
        // Newer puts may have been flushed into a level by now: that is left to the next scan.
        if !Arc::ptr_eq(&keyspace.version(), version) {
            return Ok(());
        }
        records.retain(|record| turn.in_memory(&record.key).is_none());
        if records.len() < BLOCKS_MIN {
            return Ok(());
        }
        let mut is_full = false;
        for ReadRecord { key, value } in &records {
            // Not as a batch: where one record finds no space, the others may still be moved.
            let append = Append { kind: RecordKind::Put, keyspace: keyspace.number, key, value };
            let at = match self.log.append_one_record(&append, SpacePriority::Background) {
                Err(Error::Full { .. }) => break,
                at => at?,
            };
            is_full = turn.put(key, at.sequence, at.pointer);
            self.reorganized_bytes.fetch_add(u64::from(at.pointer.record_bytes()), Ordering::Relaxed);
        }
        drop(turn);
        self.compact_if_due(keyspace, is_full);
        if self.log.take_begun_chunk() {
            self.store.collector.wake();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vmio::backing::MemoryBacking;

    use super::*;
    use crate::keyspace::memtable::NEWEST;
    use crate::{Db, Durability, Options};

    const KEYS: u64 = 20;

    fn key(number: u64) -> Vec<u8> {
        format!("key {number:04}").into_bytes()
    }

    fn pointer(db: &Db, number: u64) -> Pointer {
        let keyspace = db.default_keyspace().keyspace();
        keyspace.find(&keyspace.version(), NEWEST, &key(number)).unwrap().expect("it is there")
    }

    /// Moves records of a store that are in a level, as a scan has read them. `between` runs between the look whether they are the
    /// newest, and the move.
    fn moved_during(direction: Direction, between: impl FnOnce(&Db)) -> Db {
        let options = Options::new().memory_bytes(32 << 20).durability(Durability::None);
        let db = Db::create_on(MemoryBacking::new(64 << 20).unwrap(), options).unwrap();
        (0..KEYS).rev().for_each(|number| db.put(&key(number), &number.to_le_bytes()).unwrap());
        db.flush().unwrap();
        let OpenKeyspace { home, keyspace } = db.default_keyspace().open().unwrap();
        let view = Arc::new(View::begin(keyspace));
        let read = |number: u64| {
            let record = ReadRecord { key: key(number), value: number.to_le_bytes().to_vec() };
            (pointer(&db, number).offset(), record)
        };
        let records = (0..KEYS).map(read).collect();
        let from = Bound::Unbounded;
        let apart = RecordsApart { keyspace: Arc::clone(keyspace), view, from, direction, records };
        let now = Arc::new(View::begin(keyspace));
        let records = apart.newest(&now).unwrap();
        assert_eq!(records.len() as u64, KEYS);
        between(&db);
        home.write_side_by_side(keyspace, &now.version, records).unwrap();
        db
    }

    fn values(db: &Db) -> Vec<Option<u64>> {
        let value = |value: Vec<u8>| u64::from_le_bytes(value.try_into().unwrap());
        (0..KEYS).map(|number| db.get(&key(number)).unwrap().map(value)).collect()
    }

    #[test]
    fn moved_records_lie_in_the_order_of_their_keys() {
        for direction in [Direction::Up, Direction::Down] {
            let db = moved_during(direction, |_| ());
            assert!(values(&db).into_iter().eq((0..KEYS).map(Some)));
            assert!(db.stats().unwrap().reorganized_bytes > 0);
            db.flush().unwrap();
            let offsets: Vec<u64> = (0..KEYS).map(|number| pointer(&db, number).offset()).collect();
            assert!(offsets.is_sorted(), "{offsets:?}");
        }
    }

    #[test]
    fn a_put_or_a_deletion_before_the_move_wins() {
        let mut expected: Vec<_> = (0..KEYS).map(Some).collect();
        (expected[3], expected[7]) = (Some(100), None);
        let change = |db: &Db| {
            db.put(&key(3), &100_u64.to_le_bytes()).unwrap();
            db.delete(&key(7)).unwrap();
        };
        let flush = |db: &Db| {
            change(db);
            db.flush().unwrap();
        };
        let rotate = |db: &Db| {
            change(db);
            assert!(db.default_keyspace().keyspace().rotate_memtable());
        };
        let betweens: [&dyn Fn(&Db); 3] = [&change, &flush, &rotate];
        for between in betweens {
            let db = moved_during(Direction::Up, between);
            assert_eq!(values(&db), expected);
            db.flush().unwrap();
            assert_eq!(values(&db), expected);
        }
    }
}
