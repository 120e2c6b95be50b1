//! One end of a scan: the next keys there, and their records, which are read ahead.

use std::collections::VecDeque;

use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reorganization::Gathering;
use crate::device::BypassBatch;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{Entry, KnownKey};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::keyspace::{KeyspaceCursor, ScanSpace};
use crate::log::Log;

/// How many records are read ahead in the order of their keys.
const BY_KEY_MAX: usize = 32;
/// More records than that are read in the order of their places: one for each four that the scan has passed. So a scan that stops has read
/// little in vain.
const GONE_BY_SHARE: u64 = 4;
/// Where fewer than one record in this many is read past the cache, reading by place is not worth it.
const BYPASSED_SHARE: usize = 4;
/// Longer records are read when the scan comes to them.
const BY_PLACE_BYTES_MAX: u32 = 2 * BLOCK_BYTES as u32;
/// Bytes of a record that is ahead, besides its key and value: itself, its place in the order of reading, and the allocator's overhead for
/// both.
const AHEAD_BYTES: u64 = (size_of::<Ahead>() + size_of::<Wanted>() + 4 * size_of::<usize>()) as u64;

/// One end of a scan: a cursor, the keys that it has read ahead, and their records.
pub(super) struct End {
    cursor: KeyspaceCursor,
    ahead: VecDeque<Ahead>,
    /// The records' blocks, if they were read in the order of their keys.
    pub(super) bypassed: BypassBatch,
    ahead_max: usize,
    /// How many keys the scan has passed.
    gone_by: u64,
    space: ScanSpace,
    /// How many of the next keys `is_apart` is about.
    looked_at: usize,
    /// Whether the records of these keys lie apart, and scans have often read them so.
    pub(super) is_apart: bool,
    /// Those of these records that the scan has passed.
    pub(super) gathering: Option<Gathering>,
    is_over: bool,
    /// The error that comes after the keys.
    failure: Option<Error>,
}

/// A key that is ahead.
pub(super) struct Ahead {
    /// It is complete once its record was read.
    pub(super) known: KnownKey,
    /// The value, if the scan wants values, and has read the record or found it in a leaf.
    pub(super) value: Option<Vec<u8>>,
    /// Whether the record was read past the cache.
    is_bypassed: bool,
}

impl Ahead {
    fn block(&self) -> u64 {
        self.known.pointer.offset() / BLOCK_BYTES as u64
    }
}

/// A key whose record is to be read, by its place among those ahead.
struct Wanted {
    record: Pointer,
    place: u32,
    wants_key: bool,
}

impl Wanted {
    fn new(place: usize, known: &KnownKey) -> Self {
        Wanted { record: known.pointer, place: place as u32, wants_key: !known.complete }
    }
}

impl End {
    pub(super) fn new(open: &OpenKeyspace, cursor: KeyspaceCursor) -> Self {
        End {
            cursor,
            ahead: VecDeque::new(),
            bypassed: BypassBatch::default(),
            ahead_max: 1,
            gone_by: 0,
            space: ScanSpace::new(&open.home.store.memtable_budget),
            looked_at: 0,
            is_apart: false,
            gathering: None,
            is_over: false,
            failure: None,
        }
    }

    pub(super) fn next(
        &mut self,
        open: &OpenKeyspace,
        wants_values: bool,
        is_beyond_end: impl Fn(&KnownKey) -> bool,
    ) -> Result<Option<Ahead>> {
        if self.ahead.is_empty() && !self.is_over {
            self.fill(is_beyond_end);
            self.read(&open.keyspace.log, wants_values);
        }
        let Some(next) = self.ahead.pop_front() else { return self.failure.take().map_or(Ok(None), Err) };
        if self.looked_at == 0 {
            self.look_whether_apart(open, wants_values, &next);
        }
        self.looked_at -= 1;
        self.gone_by += 1;
        Ok(Some(next))
    }

    fn fill(&mut self, is_beyond_end: impl Fn(&KnownKey) -> bool) {
        let mut bytes = 0;
        while self.ahead.len() < self.ahead_max && !self.is_over {
            match self.cursor.next(&is_beyond_end) {
                Ok(Some(Entry { key: known, value })) => {
                    let record_bytes = known.pointer.record_bytes();
                    let is_short = record_bytes <= BY_PLACE_BYTES_MAX;
                    bytes += AHEAD_BYTES + if is_short { u64::from(record_bytes) } else { known.bytes.len() as u64 };
                    if self.ahead.len() == self.ahead.capacity() {
                        // Not twice as many, which were not admitted.
                        self.ahead.reserve_exact(BY_KEY_MAX.max(self.ahead.len() / 8));
                    }
                    self.ahead.push_back(Ahead { known, value, is_bypassed: false });
                    if self.ahead.len() >= BY_KEY_MAX && !self.space.reaches(bytes) {
                        break;
                    }
                }
                Ok(None) => self.is_over = true,
                Err(error) => (self.is_over, self.failure) = (true, Some(error)),
            }
        }
    }

    /// Reads the records of the keys ahead, and decides how many keys are read ahead the next time.
    fn read(&mut self, log: &Log, wants_values: bool) {
        // First it gives its memory back, which the next batch takes.
        self.bypassed = BypassBatch::default();
        let bypassed = match self.ahead.len() {
            // A single record is read when the scan comes to it.
            0 | 1 => 0,
            2..=BY_KEY_MAX => {
                let is_wanted = |ahead: &&Ahead| ahead.value.is_none() && (wants_values || !ahead.known.complete);
                let wanted = self.ahead.iter().filter(is_wanted);
                self.bypassed = log.bypass_read(wanted.map(|ahead| ahead.known.pointer));
                self.bypassed.blocks()
            }
            _ => self.read_by_place(log, wants_values),
        };
        self.ahead_max = if self.ahead_max < BY_KEY_MAX {
            2 * self.ahead_max
        } else if bypassed * BYPASSED_SHARE >= self.ahead.len() {
            let gone_by = self.gone_by + self.ahead.len() as u64;
            BY_KEY_MAX.max(usize::try_from(gone_by / GONE_BY_SHARE).unwrap_or(usize::MAX))
        } else {
            BY_KEY_MAX
        };
        if self.ahead.len() <= BY_KEY_MAX && self.ahead_max <= BY_KEY_MAX {
            self.space.give_back();
            self.ahead.shrink_to(BY_KEY_MAX);
        }
    }

    /// Looks whether the records of this key and the next ones lie apart.
    fn look_whether_apart(&mut self, open: &OpenKeyspace, wants_values: bool, next: &Ahead) {
        let some = || std::iter::once(next).chain(&self.ahead).take(BY_KEY_MAX);
        self.looked_at = some().count();
        let store = &open.home.store;
        let reorganizes = wants_values && store.options.reorganizes_scanned();
        self.is_apart = reorganizes && {
            let pointers = some().map(|ahead| ahead.known.pointer).filter(|record| record.kind() == PointerKind::Value);
            let mut by_place: Vec<u64> = some().filter(|ahead| ahead.is_bypassed).map(Ahead::block).collect();
            by_place.sort_unstable();
            by_place.dedup();
            store.scanned.are_apart_again(pointers, self.bypassed.blocks() + by_place.len())
        };
        if !self.is_apart {
            self.gathering = None;
        }
    }

    /// Reads records in the order of their places. Returns how many were not in the cache.
    fn read_by_place(&mut self, log: &Log, wants_values: bool) -> usize {
        let is_wanted = |Ahead { known, value, .. }: &Ahead| {
            value.is_none()
                && (wants_values || !known.complete)
                && known.pointer.kind() != PointerKind::Extents
                && known.pointer.record_bytes() <= BY_PLACE_BYTES_MAX
        };
        let wanted = self.ahead.iter().enumerate().filter(|(_, ahead)| is_wanted(ahead));
        let mut order: Vec<Wanted> = wanted.map(|(place, ahead)| Wanted::new(place, &ahead.known)).collect();
        order.sort_unstable_by_key(|wanted| wanted.record.offset());
        let (mut count, ahead) = (0, &mut self.ahead);
        let take = |wanted: &Wanted, record: &Record<'_>| {
            let key = wanted.wants_key.then(|| record.key.to_vec());
            (key, wants_values.then(|| record.value.to_vec()))
        };
        log.read_by_place(
            &order,
            |wanted| wanted.record,
            take,
            |wanted, (key, value), is_bypassed| {
                let ahead = &mut ahead[wanted.place as usize];
                if let Some(key) = key {
                    (ahead.known.bytes, ahead.known.complete) = (key, true);
                }
                (ahead.value, ahead.is_bypassed) = (value, is_bypassed);
                count += usize::from(is_bypassed);
            },
        );
        count
    }
}
