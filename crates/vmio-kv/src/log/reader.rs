//! Reads of records by their pointers, from memory or from the device.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::device::BypassBatch;
use crate::error::{Damage, Error, Result};
use crate::format::block::{Kind, Sealed, unseal_checked};
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::format::leaf::{KnownKey, Leaf};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::{FRONT_BYTES, Record, Seed};
use crate::log::Log;
use crate::log::tail_chunk::TailChunk;

impl Log {
    /// The chunk that a byte of the volume is in, if it is in memory.
    fn tail_of(&self, offset: u64) -> Option<Arc<TailChunk>> {
        let start = offset - offset % ALLOCATION_UNIT_BYTES;
        self.tails.load().iter().find(|chunk| chunk.header.offset == start).cloned()
    }

    fn damaged_record(&self, pointer: Pointer) -> impl Fn(Damage) -> Error {
        let structure = match pointer.kind() {
            PointerKind::Extents => "the head of a large value",
            PointerKind::Inline => "a record of a leaf",
            PointerKind::Value | PointerKind::Tombstone => "a record of the log",
        };
        move |damage| self.device().damaged(structure, pointer.offset(), damage)
    }

    /// Calls `read` with a record whose checksum is right; twice, if the page changed the first time.
    pub(crate) fn read<Answer>(&self, pointer: Pointer, read: impl Fn(&Record<'_>) -> Answer) -> Result<Answer> {
        if pointer.kind() == PointerKind::Inline {
            return self
                .device()
                .bypass_look_at_node(Kind::Leaf, leaf_of(pointer), |sealed| self.read_inline(sealed, pointer, &read));
        }
        let damaged = self.damaged_record(pointer);
        // Otherwise it may have been written and dropped since we looked: then the device has it.
        if let Some(tail) = self.tail_of(pointer.offset()) {
            return read_tail(&tail, pointer).map(|record| read(&record)).map_err(damaged);
        }
        let seed = self.seed_of(pointer)?;
        let whole = |bytes: &[u8]| Record::read(seed, bytes).map(|record| read(&record)).map_err(&damaged);
        let most = (range_of(pointer).end - pointer.offset()) as usize;
        if let Some(answer) = self.device().bypass_look(pointer.offset(), most, whole)? {
            return Ok(answer);
        }
        // First up to the end of its page, where most records end.
        let in_page = front_in_page(pointer);
        let answer = self.device().look(pointer.offset(), in_page, |bytes| {
            let length = self.length(pointer, bytes)?;
            Ok(if length > bytes.len() { Err(length) } else { Ok(whole(bytes)?) })
        })?;
        match answer {
            Ok(answer) => Ok(answer),
            Err(length) => self.device().look(pointer.offset(), length, whole),
        }
    }

    /// Calls `read` with a record in place. Its pages stay pinned meanwhile.
    pub(crate) fn read_pinned<Answer>(
        &self,
        pointer: Pointer,
        read: impl FnOnce(&Record<'_>) -> Answer,
    ) -> Result<Answer> {
        let damaged = self.damaged_record(pointer);
        if pointer.kind() == PointerKind::Inline {
            return self.device().look_pinned(leaf_of(pointer), BLOCK_BYTES, |bytes| {
                let block = bytes.first_chunk::<BLOCK_BYTES>().ok_or(Damage::Length);
                let sealed = block.and_then(|block| unseal_checked(block, Kind::Leaf, leaf_of(pointer)));
                self.read_inline(&sealed.map_err(&damaged)?, pointer, read)
            });
        }
        if let Some(tail) = self.tail_of(pointer.offset()) {
            return read_tail(&tail, pointer).map(|record| read(&record)).map_err(damaged);
        }
        let seed = self.seed_of(pointer)?;
        let in_page = front_in_page(pointer);
        let length = self.device().look(pointer.offset(), in_page, |bytes| self.length(pointer, bytes))?;
        self.device().look_pinned(pointer.offset(), length, |bytes| {
            Record::read(seed, bytes).map(|record| read(&record)).map_err(damaged)
        })
    }

    /// Calls `read` with a record that a leaf holds.
    fn read_inline<Answer>(
        &self,
        sealed: &Sealed<'_>,
        pointer: Pointer,
        read: impl FnOnce(&Record<'_>) -> Answer,
    ) -> Result<Answer> {
        if sealed.uuid != self.segment.uuid {
            return Err(self.damaged_record(pointer)(Damage::Foreign));
        }
        let found = Leaf::from_block(sealed).and_then(|leaf| Ok((leaf, leaf.inline_at(pointer.place_in_block())?)));
        let (leaf, inline) = found.map_err(self.damaged_record(pointer))?;
        let key = leaf.inline_key(&inline);
        Ok(read(&Record::of_leaf(sealed.keyspace, &key, inline.value)))
    }

    /// The length of a record that begins with these bytes.
    fn length(&self, pointer: Pointer, front: &[u8]) -> Result<usize> {
        let length = front.first_chunk::<FRONT_BYTES>().ok_or(Damage::Length).and_then(Record::length);
        let fits = |length: &usize| (pointer.offset() % ALLOCATION_UNIT_BYTES) as usize + length <= CHUNK_BYTES;
        length
            .and_then(|length| if fits(&length) { Ok(length) } else { Err(Damage::Length) })
            .map_err(self.damaged_record(pointer))
    }

    /// Whether a record has that key.
    pub(crate) fn has_key(&self, pointer: Pointer, key: &[u8]) -> Result<bool> {
        Ok(self.read(pointer, |record| (record.key == key).then_some(()))?.is_some())
    }

    /// Begins to read records that will be wanted, all at once.
    pub(crate) fn fetch(&self, records: impl Iterator<Item = Pointer>) {
        self.device().fetch(self.on_device(records));
    }

    /// Reads records that will be wanted, all at once, if they are neither in the cache nor worth a place there.
    pub(crate) fn bypass_read(&self, records: impl Iterator<Item = Pointer>) -> BypassBatch {
        // Heads are read in place, and so are records that leaves hold.
        let is_of_log = |record: &Pointer| matches!(record.kind(), PointerKind::Value | PointerKind::Tombstone);
        let records = records.filter(is_of_log);
        self.device().bypass_read(self.on_device(records))
    }

    /// The same as [`Self::read`], from a bypass batch if it has the record.
    pub(crate) fn read_from_bypass<Answer>(
        &self,
        bypassed: &BypassBatch,
        pointer: Pointer,
        read: impl Fn(&Record<'_>) -> Answer,
    ) -> Result<Answer> {
        if pointer.kind() != PointerKind::Inline
            && let Some(bytes) = bypassed.get(range_of(pointer))
            && let Ok(record) = Record::read(self.seed_of(pointer)?, bytes)
        {
            return Ok(read(&record));
        }
        self.read(pointer, read)
    }

    /// Reads the records of some items, which are in the order of their records' places. For each it calls `take`, and then `taken` with
    /// the answer and whether the record was not in the cache. It leaves out items with unreadable records.
    pub(crate) fn read_by_place<Item, Answer>(
        &self,
        wanted: &[Item],
        record_of: impl Fn(&Item) -> Pointer,
        take: impl Fn(&Item, &Record<'_>) -> Answer,
        mut taken: impl FnMut(&Item, Answer, bool),
    ) {
        let mut rest = wanted;
        while !rest.is_empty() {
            let tails = self.tails.load();
            let is_in_tail = |at: u64| tails.iter().any(|tail| tail.header.offset == at - at % ALLOCATION_UNIT_BYTES);
            let is_in_memory = |record: &Pointer| record.kind() == PointerKind::Inline || is_in_tail(record.offset());
            let ranges = rest.iter().map(&record_of).map(|record| match is_in_memory(&record) {
                true => 0..0,
                false => range_of(record),
            });
            let (bypassed, count) = self.device().bypass_read_nearby(ranges);
            let (now, later) = rest.split_at(count);
            for item in now {
                let record = record_of(item);
                let is_bypassed = record.kind() != PointerKind::Inline && bypassed.get(range_of(record)).is_some();
                if let Ok(answer) = self.read_from_bypass(&bypassed, record, |record| take(item, record)) {
                    taken(item, answer, is_bypassed);
                }
            }
            rest = later;
        }
    }

    /// The places of those records that are not in memory.
    fn on_device(&self, records: impl Iterator<Item = Pointer>) -> impl Iterator<Item = Range<u64>> {
        let tails = self.tails.load();
        records.filter_map(move |record| {
            if record.kind() == PointerKind::Inline {
                return Some(leaf_of(record)..leaf_of(record) + BLOCK_BYTES as u64);
            }
            let chunk = record.offset() - record.offset() % ALLOCATION_UNIT_BYTES;
            tails.iter().all(|tail| tail.header.offset != chunk).then(|| range_of(record))
        })
    }

    /// The seed of a record's checksum on the device.
    fn seed_of(&self, pointer: Pointer) -> Result<Seed> {
        if pointer.kind() == PointerKind::Extents {
            return Ok(Seed::of_head(self.segment.uuid, pointer.offset(), pointer.head_number()));
        }
        let at = (pointer.offset() % ALLOCATION_UNIT_BYTES) as usize;
        if !(RECORDS_AT..=CHUNK_BYTES - FRONT_BYTES).contains(&at) {
            let damage = Damage::Value { what: "its place in the chunk", found: at as u64 };
            return Err(self.damaged_record(pointer)(damage));
        }
        let chunk = pointer.offset() - at as u64;
        if let Some(seed) = self.seeds.get(chunk) {
            return Ok(seed);
        }
        let header = self.device().look(chunk, RECORDS_AT, |bytes| {
            let header = ChunkHeader::from_bytes(bytes).and_then(|header| {
                let is_ours = header.segment == self.segment.uuid && header.offset == chunk;
                if is_ours { Ok(header) } else { Err(Damage::Foreign) }
            });
            header.map_err(|damage| self.device().damaged("a chunk of the log", chunk, damage))
        })?;
        let seed = Seed::new(header.segment, header.generation);
        self.seeds.put(chunk, seed);
        Ok(seed)
    }

    /// Reads the rest of a key from its record.
    pub(crate) fn complete(&self, known: &mut KnownKey) -> Result<()> {
        if !known.complete {
            known.bytes = self.read(known.pointer, |record| record.key.to_vec())?;
            known.complete = true;
        }
        Ok(())
    }

    /// Compares two keys, and reads their records where their known bytes do not decide.
    pub(crate) fn compare(&self, left: &mut KnownKey, right: &mut KnownKey) -> Result<Ordering> {
        if let Some(known) = left.compare(right) {
            return Ok(known);
        }
        self.complete(left)?;
        if let Some(known) = left.compare(right) {
            return Ok(known);
        }
        self.complete(right)?;
        Ok(left.bytes.cmp(&right.bytes))
    }
}

fn read_tail(tail: &TailChunk, pointer: Pointer) -> Result<Record<'_>, Damage> {
    let at = (pointer.offset() % ALLOCATION_UNIT_BYTES) as usize;
    Record::read(tail.seed, tail.bytes().get(at..).ok_or(Damage::Length)?)
}

/// The place of the leaf that holds a record.
fn leaf_of(pointer: Pointer) -> u64 {
    pointer.offset() - pointer.place_in_block() as u64
}

/// The range of a record, as far as its pointer tells: up to an eighth too long.
fn range_of(pointer: Pointer) -> Range<u64> {
    let chunk = pointer.offset() - pointer.offset() % ALLOCATION_UNIT_BYTES;
    pointer.offset()..(chunk + ALLOCATION_UNIT_BYTES).min(pointer.offset() + u64::from(pointer.record_bytes()))
}

/// How many bytes of a record are read first: up to the end of its page, or its front.
fn front_in_page(pointer: Pointer) -> usize {
    (BLOCK_BYTES - pointer.offset() as usize % BLOCK_BYTES).max(FRONT_BYTES)
}
