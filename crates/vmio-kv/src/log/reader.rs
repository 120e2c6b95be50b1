//! Reading a record by its pointer, from memory or from the device.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};

use crate::error::{Damage, Result};
use crate::format::branch::PIVOT_BYTES_MAX;
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::geometry::{BLOCK_BYTES, UNIT_BYTES};
use crate::format::leaf::KnownKey;
use crate::format::pointer::Pointer;
use crate::format::record::{FRONT_BYTES, Record, Seed};
use crate::log::{Log, TailChunk};

/// What records' checksums begin with, by chunk: kept, so that reading a record does not take reading its chunk's header.
pub(super) struct ChunkSeeds(Box<[AtomicU64]>);

impl ChunkSeeds {
    const KNOWN: u64 = 1 << 32;

    pub(super) fn new(volume_bytes: u64) -> Self {
        ChunkSeeds((0..volume_bytes / UNIT_BYTES).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, chunk: u64) -> Option<Seed> {
        let word = self.0.get((chunk / UNIT_BYTES) as usize)?.load(atomic::Ordering::Relaxed);
        (word & Self::KNOWN != 0).then_some(Seed::from_bits(word as u32))
    }

    fn put(&self, chunk: u64, seed: Seed) {
        if let Some(place) = self.0.get((chunk / UNIT_BYTES) as usize) {
            place.store(Self::KNOWN | u64::from(seed.to_bits()), atomic::Ordering::Relaxed);
        }
    }
}

/// A key that is longer than any that can be put would fit no inner node.
pub(super) fn check_length(key: &[u8]) -> Result<(), Damage> {
    if key.len() <= PIVOT_BYTES_MAX {
        return Ok(());
    }
    Err(Damage::Value { what: "the length of its key", found: key.len() as u64 })
}

impl Log {
    /// The chunk that holds a byte of the volume, if it is in memory.
    fn tail_of(&self, offset: u64) -> Option<Arc<TailChunk>> {
        let start = offset - offset % UNIT_BYTES;
        self.tails.load().iter().find(|chunk| chunk.header.offset == start).cloned()
    }

    /// Hands a record to `read`, its checksum checked.
    pub(crate) fn read<Answer>(&self, pointer: Pointer, read: impl FnOnce(&Record<'_>) -> Answer) -> Result<Answer> {
        let offset = pointer.offset();
        let at = (offset % UNIT_BYTES) as usize;
        let damaged = |damage| self.device().damaged("a record of the log", offset, damage);
        // It may have been written and given up since we looked: then the device has it.
        if let Some(tail) = self.tail_of(offset) {
            let bytes = tail.bytes().get(at..).ok_or(damaged(Damage::Length))?;
            return Record::read(tail.seed, bytes).map(|record| read(&record)).map_err(damaged);
        }
        if !(RECORDS_AT..=CHUNK_BYTES - FRONT_BYTES).contains(&at) {
            return Err(damaged(Damage::Value { what: "its place in the chunk", found: at as u64 }));
        }
        // As far as its page, first: most records end there.
        let in_page = BLOCK_BYTES - at % BLOCK_BYTES;
        let front = self.device().published(offset, in_page.max(FRONT_BYTES))?;
        let front = front.first_chunk::<FRONT_BYTES>().ok_or(damaged(Damage::Length))?;
        let length = Record::length(front).map_err(damaged)?;
        if at + length > CHUNK_BYTES {
            return Err(damaged(Damage::Length));
        }
        let bytes = self.device().published(offset, length)?;
        Record::read(self.seed_of(offset - at as u64)?, bytes).map(|record| read(&record)).map_err(damaged)
    }

    /// The generation of a chunk on the device.
    fn seed_of(&self, chunk: u64) -> Result<Seed> {
        if let Some(seed) = self.seeds.get(chunk) {
            return Ok(seed);
        }
        let header = self.device().published(chunk, RECORDS_AT)?;
        let header = ChunkHeader::from_bytes(header)
            .and_then(|header| {
                let is_ours = header.segment == self.segment.uuid && header.offset == chunk;
                if is_ours { Ok(header) } else { Err(Damage::Foreign) }
            })
            .map_err(|damage| self.device().damaged("a chunk of the log", chunk, damage))?;
        let seed = Seed::new(header.segment, header.generation);
        self.seeds.put(chunk, seed);
        Ok(seed)
    }

    /// Learns all of a key from its record.
    pub(crate) fn complete(&self, known: &mut KnownKey) -> Result<()> {
        if !known.complete {
            known.bytes = self.read(known.pointer, |record| record.key.to_vec())?;
            known.complete = true;
            check_length(&known.bytes)
                .map_err(|damage| self.device().damaged("a record of the log", known.pointer.offset(), damage))?;
        }
        Ok(())
    }

    /// How two keys compare; their records are read if it takes that.
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
