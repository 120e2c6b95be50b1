//! A step of a merge into the bottom level: some entries of the level above, in the order of their keys, and their records.
//!
//! The records are read in the order of their places in the log. They take mapped memory, which goes back to the system at once.

use std::mem::size_of;

use crate::error::Result;
use crate::format::leaf::{Entry, KnownKey};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::keyspace::ScanSpace;
use crate::keyspace::arena::Arena;
use crate::keyspace::bottom::is_short;
use crate::keyspace::contents::Records;
use crate::log::Log;
use crate::tree::{MergeInput, Source};

/// A step takes this many entries whatever memory there is.
const ENTRIES_MIN: usize = 4 << 10;

/// A key, and the value behind it if a leaf is to hold that.
#[derive(Clone, Copy, Default)]
struct Place {
    at: u32,
    /// 0 until the record is read.
    key_bytes: u32,
    value_bytes: Option<u16>,
}

/// The memory of an entry, besides its key and value.
pub(super) const ENTRY_BYTES: u64 =
    (size_of::<(Pointer, u32)>() + size_of::<Place>() + size_of::<u32>() + size_of::<u64>()) as u64;

/// The entries of a step.
pub(super) struct Step {
    /// The record of each entry, and the hash of its key.
    entries: Vec<(Pointer, u32)>,
    places: Vec<Place>,
    bytes: Arena,
    entries_max: usize,
    used: u64,
    used_max: u64,
    /// Given back last.
    _space: ScanSpace,
}

impl Step {
    /// A step of at most `entries_max` entries, which takes `bytes` bytes of memory if there are as many.
    pub(super) fn new(mut space: ScanSpace, entries_max: usize, bytes: u64) -> Self {
        let used_max = space.take_up_to(bytes);
        Step {
            entries: Vec::new(),
            places: Vec::new(),
            bytes: Arena::default(),
            entries_max,
            used: 0,
            used_max,
            _space: space,
        }
    }

    /// Takes more entries. Returns whether it can take yet more: the memory, or the space on the device, has a place for them.
    pub(super) fn take(&mut self, entries: &[(Pointer, u32)]) -> bool {
        let inline = |record: Pointer| if is_short(record) { u64::from(record.record_bytes()) } else { 0 };
        self.used += entries.iter().map(|(record, _)| ENTRY_BYTES + inline(*record)).sum::<u64>();
        self.entries.extend_from_slice(entries);
        let has_memory = self.entries.len() < ENTRIES_MIN || self.used < self.used_max;
        has_memory && self.entries.len() < self.entries_max
    }

    /// The records in the log that the entries point to.
    pub(super) fn records(&self) -> Records {
        let records = self.entries.iter().map(|(record, _)| *record);
        let of_log = records.filter(|record| record.kind() != PointerKind::Extents);
        of_log.fold(Records::default(), |sum, record| Records {
            bytes: sum.bytes + u64::from(record.record_bytes()),
            deletions: sum.deletions + u64::from(record.kind() == PointerKind::Tombstone),
        })
    }

    /// Reads all keys, and the values that leaves are to hold.
    pub(super) fn read(&mut self, log: &Log) -> Result<()> {
        let Step { entries, places, bytes, .. } = self;
        places.resize(entries.len(), Place::default());
        let record_of = |entry: &u32| entries[*entry as usize].0;
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.retain(|entry| record_of(entry).kind() != PointerKind::Extents);
        order.sort_unstable_by_key(|entry| record_of(entry).offset());
        let take = |entry: &u32, record: &Record<'_>| {
            (record.key.to_vec(), is_short(record_of(entry)).then(|| record.value.to_vec()))
        };
        log.read_by_place(&order, record_of, take, |entry, (key, value), _| {
            places[*entry as usize] = keep(bytes, &key, value.as_deref());
        });
        drop(order);
        // Large values, and records that could not be read: that is an error now.
        for (place, (record, _)) in places.iter_mut().zip(entries).filter(|(place, _)| place.key_bytes == 0) {
            *place = keep(bytes, &log.read(*record, |record| record.key.to_vec())?, None);
        }
        Ok(())
    }

    fn key(&self, entry: usize) -> &[u8] {
        let Place { at, key_bytes, .. } = self.places[entry];
        &self.bytes.at(at)[..key_bytes as usize]
    }

    fn entry(&self, entry: usize) -> Entry {
        let (pointer, hash) = self.entries[entry];
        let (key, place) = (self.key(entry), self.places[entry]);
        let known = KnownKey { bytes: key.to_vec(), complete: true, hash, pointer };
        match place.value_bytes {
            Some(bytes) => Entry::inline(known, self.bytes.at(place.at)[key.len()..][..usize::from(bytes)].to_vec()),
            None => Entry::to_record(known),
        }
    }
}

/// Stores a key, and a value.
fn keep(bytes: &mut Arena, key: &[u8], value: Option<&[u8]>) -> Place {
    let (end, value_bytes) = (key.len() + value.map_or(0, <[u8]>::len), value.map(|value| value.len() as u16));
    let at = bytes.take(end);
    let (of_key, of_value) = bytes.at_mut(at)[..end].split_at_mut(key.len());
    of_key.copy_from_slice(key);
    of_value.copy_from_slice(value.unwrap_or_default());
    Place { at, key_bytes: key.len() as u32, value_bytes }
}

impl MergeInput for Step {
    fn source(&self, from: &[u8]) -> Result<Box<dyn Source + '_>> {
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < from { low = middle + 1 } else { high = middle }
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
        let entry = (self.at < self.step.entries.len()).then(|| self.step.entry(self.at));
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
