//! A step of a merge into the bottom level: some entries of the level above, in the order of their keys, and their records.
//!
//! The records are read in the order of their places in the log. They take mapped memory, which goes back to the system at once.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::mem::size_of;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::Result;
use crate::format::leaf::{ENTRIES_MAX as LEAF_ENTRIES_MAX, Entry, KnownKey};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::keyspace::ScanSpace;
use crate::keyspace::arena::Arena;
use crate::keyspace::bottom::belongs_in_leaf;
use crate::keyspace::contents::Records;
use crate::keyspace::mapped_rows::MappedRows;
use crate::log::Log;
use crate::tree::{MergeInput, Source};

/// A step takes this many entries whatever memory there is.
const ENTRIES_MIN: usize = 4 << 10;

/// An entry of a step.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Row {
    /// The record.
    pointer: u64,
    hash: u32,
    /// Where the key is, as far as it is known, and the value behind it if there is one.
    at: u32,
    key_bytes: u32,
    /// [`NO_VALUE`] if no leaf is to hold it, or the record is not read yet.
    value_bytes: u32,
    /// Whether the key is known in full.
    is_complete: u32,
    reserved: u32,
}

const NO_VALUE: u32 = u32::MAX;

impl Row {
    fn record(&self) -> Pointer {
        Pointer::from_bits(self.pointer)
    }
}

/// The memory of an entry, besides its key and value: its row, its place in the order of reading, padding, and the key as it was known.
pub(super) const ENTRY_BYTES: u64 = (size_of::<Row>() + size_of::<u32>() + 5 * size_of::<u64>()) as u64;

/// The entries of a step.
pub(super) struct Step {
    log: Arc<Log>,
    rows: MappedRows<Row>,
    bytes: Arena,
    entries_max: usize,
    /// Whether records move from the log into leaves.
    moves: bool,
    used: u64,
    used_max: u64,
    /// Given back last.
    _space: ScanSpace,
}

impl Step {
    /// A step of at most `entries_max` entries, which takes `bytes` bytes of memory if there are as many.
    pub(super) fn new(log: &Arc<Log>, mut space: ScanSpace, entries_max: usize, bytes: u64, moves: bool) -> Self {
        let used_max = space.take_up_to(bytes);
        let entries_max = entries_max.min(((used_max / ENTRY_BYTES) as usize).max(ENTRIES_MIN));
        // The last leaf may have more.
        let rows = MappedRows::with_capacity(entries_max + LEAF_ENTRIES_MAX);
        Step {
            log: Arc::clone(log),
            rows,
            bytes: Arena::default(),
            entries_max,
            moves,
            used: 0,
            used_max,
            _space: space,
        }
    }

    /// Takes more entries. Returns whether it can take yet more: the memory, or the space on the device, has a place for them.
    pub(super) fn take(&mut self, entries: Vec<Entry>) -> bool {
        for Entry { key: KnownKey { bytes, complete, hash, pointer }, value } in entries {
            let is_read = value.is_none() && belongs_in_leaf(pointer, self.moves);
            let record = if is_read { u64::from(pointer.record_bytes()) } else { 0 };
            let value_length = value.as_ref().map_or(0, Vec::len);
            self.used += ENTRY_BYTES + record + bytes.len() as u64 + value_length as u64;
            let (pointer, is_complete) = (pointer.to_bits(), u32::from(complete));
            let mut row = Row { pointer, hash, at: 0, key_bytes: 0, value_bytes: NO_VALUE, is_complete, reserved: 0 };
            keep(&mut self.bytes, &mut row, &bytes, value.as_deref());
            self.rows.push(&row);
        }
        let count = self.rows.rows().len();
        let has_memory = count < ENTRIES_MIN || self.used < self.used_max;
        has_memory && count < self.entries_max && self.rows.space() >= LEAF_ENTRIES_MAX
    }

    /// The records in the log that the entries point to.
    pub(super) fn records(&self) -> Records {
        let records = self.rows.rows().iter().map(Row::record);
        let is_in_log = |record: &Pointer| matches!(record.kind(), PointerKind::Value | PointerKind::Tombstone);
        let of_log = records.filter(is_in_log);
        of_log.fold(Records::default(), |sum, record| Records {
            bytes: sum.bytes + u64::from(record.record_bytes()),
            deletions: sum.deletions + u64::from(record.kind() == PointerKind::Tombstone),
        })
    }

    /// Reads the records that leaves are to hold. One that cannot be read stays where it is.
    pub(super) fn read(&mut self) {
        let Step { log, rows, bytes, moves, .. } = self;
        let mut order = MappedRows::<u32>::with_capacity(rows.rows().len());
        let is_read = |row: &Row| row.value_bytes == NO_VALUE && belongs_in_leaf(row.record(), *moves);
        let read = rows.rows().iter().enumerate().filter(|(_, row)| is_read(row));
        read.for_each(|(entry, _)| order.push(&(entry as u32)));
        order.rows_mut().sort_unstable_by_key(|entry| rows.rows()[*entry as usize].record().offset());
        // A row changes only after its record was looked for.
        let rows = RefCell::new(rows);
        let record_of = |entry: &u32| rows.borrow().rows()[*entry as usize].record();
        let take = |_: &u32, record: &Record<'_>| (record.key.to_vec(), record.value.to_vec());
        log.read_by_place(order.rows(), record_of, take, |entry, (key, value), _| {
            let mut rows = rows.borrow_mut();
            let row = &mut rows.rows_mut()[*entry as usize];
            keep(bytes, row, &key, Some(&value));
            row.is_complete = 1;
        });
    }

    fn known(&self, entry: usize) -> KnownKey {
        let row = &self.rows.rows()[entry];
        let bytes = self.bytes.at(row.at)[..row.key_bytes as usize].to_vec();
        KnownKey { bytes, complete: row.is_complete == 1, hash: row.hash, pointer: row.record() }
    }

    fn entry(&self, entry: usize) -> Entry {
        let row = &self.rows.rows()[entry];
        let known = self.known(entry);
        if row.value_bytes == NO_VALUE {
            return Entry::to_record(known);
        }
        let value = &self.bytes.at(row.at)[row.key_bytes as usize..][..row.value_bytes as usize];
        Entry::inline(known, value.to_vec())
    }
}

/// Stores an entry's key, and its value.
fn keep(bytes: &mut Arena, row: &mut Row, key: &[u8], value: Option<&[u8]>) {
    let end = key.len() + value.map_or(0, <[u8]>::len);
    row.at = bytes.take(end);
    row.key_bytes = key.len() as u32;
    row.value_bytes = value.map_or(NO_VALUE, |value| value.len() as u32);
    let (of_key, of_value) = bytes.at_mut(row.at)[..end].split_at_mut(key.len());
    of_key.copy_from_slice(key);
    of_value.copy_from_slice(value.unwrap_or_default());
}

impl MergeInput for Step {
    fn source(&self, from: &[u8]) -> Result<Box<dyn Source + '_>> {
        let (mut low, mut high) = (0, self.rows.rows().len());
        while low < high {
            let middle = low.midpoint(high);
            let mut known = self.known(middle);
            if known.compare_to(from).is_none() {
                self.log.complete(&mut known)?;
            }
            if known.compare_to(from) == Some(Ordering::Less) { low = middle + 1 } else { high = middle }
        }
        Ok(Box::new(Rest { step: self, at: low, next: None }))
    }
}

/// The entries from a place on.
struct Rest<'step> {
    step: &'step Step,
    at: usize,
    next: Option<Entry>,
}

impl Rest<'_> {
    fn take(&mut self) -> Option<Entry> {
        let entry = (self.at < self.step.rows.rows().len()).then(|| self.step.entry(self.at));
        self.at += 1;
        entry
    }
}

impl Source for Rest<'_> {
    fn peek(&mut self) -> Result<Option<&mut KnownKey>> {
        if self.next.is_none() {
            self.next = self.take();
        }
        Ok(self.next.as_mut().map(|entry| &mut entry.key))
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        Ok(match self.next.take() {
            Some(next) => Some(next),
            None => self.take(),
        })
    }
}
