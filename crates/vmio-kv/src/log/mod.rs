//! The value log of a segment. Records are appended to chunks of 2 MiB, written in large pieces, and made durable together.
//!
//! The newest chunks stay in memory until they are on the device, so that a reader never waits for the write of a record.

mod chunk_seeds;
mod chunk_walk;
mod deadline;
mod reader;
mod replay;
mod state;
mod tail_chunk;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex, MutexGuard};
use zerocopy::IntoBytes;

use crate::batching_lock::BatchingLock;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::block::Block;
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::{Record, RecordKind, Seed, VALUE_BYTES_MAX, record_bytes};
use crate::volume::free_reserve::SpacePriority;
use crate::volume::segment::Segment;
use crate::volume::space_reservation::SpaceReservation;
use chunk_seeds::ChunkSeeds;
pub(crate) use chunk_walk::Visited;
use deadline::Deadline;
pub(crate) use replay::{End, Replayed, has_lost_its_header, replay, replay_again, vouched};
use state::{State, TAIL_CHUNKS_MAX};
use tail_chunk::{ChunkMemory, TailChunk};
pub(crate) use writer::LogWriter;

/// How much is written at a time.
const WRITE_BYTES: usize = 256 << 10;
/// Appenders wait while more than this is in memory alone. The limit is less than the chunks hold, so that an appender waits for one write
/// at most, not for a whole chunk.
const UNWRITTEN_BYTES_MAX: usize = 5 << 20;
/// The longest value in the log; longer ones go to extents. A record lies within one chunk, so that a chunk wastes less than an eighth at its
/// end.
pub(crate) const LOG_VALUE_BYTES_MAX: usize = 256 << 10;
const _: () = assert!(8 * LOG_VALUE_BYTES_MAX <= CHUNK_BYTES && LOG_VALUE_BYTES_MAX <= VALUE_BYTES_MAX);
/// The bytes of the record that ends a chunk. There is always space for it.
const END_BYTES: usize = record_bytes(0, 0);

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Append<'bytes> {
    pub(crate) kind: RecordKind,
    pub(crate) keyspace: u32,
    pub(crate) key: &'bytes [u8],
    pub(crate) value: &'bytes [u8],
}

/// The number and the place of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) sequence: u64,
    pub(crate) pointer: Pointer,
}

/// The log of a segment.
pub(crate) struct Log {
    pub(super) segment: Arc<Segment>,
    /// The first generation since the opening, and the number of its first record.
    first_of_this_opening: (u64, u64),
    state: BatchingLock<State>,
    /// Signalled when appenders or the writer may go on.
    pub(super) changed: Condvar,
    /// Signalled when a flush has ended.
    flushed: Condvar,
    deadline: Deadline,
    /// Held by the one thread that writes.
    pub(super) writing: Mutex<()>,
    /// The chunks in memory, for readers: the oldest first.
    tails: ArcSwap<Vec<Arc<TailChunk>>>,
    /// The seeds of the checksums in all chunks.
    seeds: ChunkSeeds,
    /// Whether a chunk was begun since the last look.
    has_begun_chunk: AtomicBool,
    /// Whether the log has a chunk to go on in. Without one, no commit may say where the log is read from.
    goes_on: bool,
}

impl Log {
    /// Continues behind the recovered records, in another chunk. The commit that makes this process the owner must be durable by then.
    pub(crate) fn new(segment: Arc<Segment>, owner_epoch: u64, end: End) -> Result<Self> {
        let mut failed = None;
        let mut next_sequence = end.next_sequence;
        let header = match end.empty {
            // Nothing was written since the last opening: no more space is taken.
            Some(empty) => ChunkHeader { generation: owner_epoch << 32, begins_anew: true, ..empty },
            None => {
                let next = segment.take_chunk().or_else(|error| match error {
                    // The records that are there can be read all the same.
                    Error::Full { .. } => {
                        failed = Some("it is full".to_owned());
                        Ok(0)
                    }
                    error => Err(error),
                })?;
                if let Some((last, at)) = end.open
                    && failed.is_none()
                {
                    end_chunk(&segment, &last, at, next_sequence)?;
                    next_sequence += 1;
                }
                ChunkHeader {
                    segment: segment.uuid,
                    offset: end.next_chunk,
                    generation: owner_epoch << 32,
                    first_sequence: next_sequence,
                    previous: end.last_chunk,
                    next,
                    begins_anew: true,
                }
            }
        };
        segment.ensure_space(header.offset / CHUNK_BYTES as u64)?;
        segment.device.begin_unit(header.offset / CHUNK_BYTES as u64, false, 64)?;
        let mut to_read_back = end.to_read_back;
        if end.empty.is_none() {
            to_read_back.push_back((header.first_sequence, header.offset));
        }
        let log = Self::with(segment, header, next_sequence, to_read_back, failed);
        let state = log.state();
        if state.failed.is_none() {
            // A commit may say at once that the log is read from here on.
            let mut front = Box::new(Block::ZERO);
            let chunk = state.appender.chunk();
            front.0[..chunk.filled()].copy_from_slice(chunk.bytes());
            log.device().write(header.offset, &front.0)?;
            // Records that this opening has not found must never come back: nothing may lead to them before their loss is seen.
            log.device().flush()?;
        }
        drop(state);
        Ok(log)
    }

    /// A log of the recovered records, which takes no further ones.
    pub(crate) fn read_only(segment: Arc<Segment>, owner_epoch: u64, end: End) -> Self {
        let header = ChunkHeader {
            segment: segment.uuid,
            offset: end.next_chunk,
            generation: owner_epoch << 32,
            first_sequence: end.next_sequence,
            previous: end.last_chunk,
            next: 0,
            begins_anew: true,
        };
        let why = "it was opened read-only".to_owned();
        Self::with(segment, header, end.next_sequence, end.to_read_back, Some(why))
    }

    /// A log that goes on in a chunk, of which nothing is on the device.
    fn with(
        segment: Arc<Segment>,
        header: ChunkHeader,
        next_sequence: u64,
        to_read_back: VecDeque<(u64, u64)>,
        failed: Option<String>,
    ) -> Self {
        let seeds = ChunkSeeds::new(segment.device.units_max());
        seeds.put(header.offset, Seed::new(header.segment, header.generation));
        let (chunk, appender) = TailChunk::new(header, ChunkMemory::new());
        let chunks = vec![chunk];
        let goes_on = failed.is_none();
        let state = State {
            chunks: chunks.clone(),
            appender,
            spare: None,
            written: 0,
            refers_ahead: false,
            next_sequence,
            durable: next_sequence,
            vouched: next_sequence,
            to_read_back,
            replayed: None,
            is_appending: false,
            is_flushing: false,
            failed,
            stopping: false,
        };
        Log {
            segment,
            first_of_this_opening: (header.generation, header.first_sequence),
            state: BatchingLock::new(state),
            changed: Condvar::new(),
            flushed: Condvar::new(),
            deadline: Deadline::new(),
            writing: Mutex::new(()),
            tails: ArcSwap::from_pointee(chunks),
            seeds,
            has_begun_chunk: AtomicBool::new(false),
            goes_on,
        }
    }

    /// Fails if the log had no chunk to go on in when it was opened.
    pub(crate) fn check_goes_on(&self) -> Result<()> {
        let failed = || self.state().failed.clone().unwrap_or_default();
        if self.goes_on { Ok(()) } else { Err(self.stopped(&failed())) }
    }

    pub(super) fn device(&self) -> &Device {
        &self.segment.device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn stopped(&self, why: &str) -> Error {
        self.segment.ownership.stopped(why)
    }

    /// Appends records atomically, and returns where each is. They are durable after [`Self::sync`].
    ///
    /// It fails before the first record if its priority does not get enough chunks. Other writes cannot take these chunks meanwhile.
    pub(crate) fn append(
        &self,
        records: &[Append<'_>],
        priority: SpacePriority,
        appended: &mut Vec<Appended>,
    ) -> Result<()> {
        appended.clear();
        let mut state = self.turn();
        let mut space = self.reserve_space(&state, records, priority)?;
        state.is_appending = true;
        let mut done = Ok(());
        for (index, record) in records.iter().enumerate() {
            done = self.make_space(&mut state, record_bytes(record.key.len(), record.value.len()), &mut space);
            if let Err(error) = &done {
                if index > 0 {
                    // Half of the batch is in the log: nothing may follow it.
                    state.failed.get_or_insert_with(|| error.with_causes());
                }
                break;
            }
            let continues = index + 1 < records.len();
            appended.push(self.append_one(&mut state, record, continues));
        }
        self.end_turn(state);
        done
    }

    /// Appends a single record.
    pub(crate) fn append_one_record(&self, record: &Append<'_>, priority: SpacePriority) -> Result<Appended> {
        let mut state = self.turn();
        let mut space = self.reserve_space(&state, std::slice::from_ref(record), priority)?;
        let bytes = record_bytes(record.key.len(), record.value.len());
        let done = self.make_space(&mut state, bytes, &mut space);
        let appended = done.map(|()| self.append_one(&mut state, record, false));
        self.end_turn(state);
        appended
    }

    /// Waits until no thread appends.
    fn turn(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.is_appending {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Ends a turn, and wakes the writer if there is enough to write.
    fn end_turn(&self, mut state: MutexGuard<'_, State>) {
        let others_wait = std::mem::replace(&mut state.is_appending, false);
        let is_piece = state.unwritten() >= WRITE_BYTES;
        drop(state);
        if others_wait || is_piece {
            self.changed.notify_all();
        }
    }

    /// Reserves the chunks that records may take. The caller has the turn, so that no other record goes to the present chunk.
    fn reserve_space(
        &self,
        state: &State,
        records: &[Append<'_>],
        priority: SpacePriority,
    ) -> Result<SpaceReservation<'_>> {
        let overhead = record_bytes(0, 8) + END_BYTES;
        let (mut chunks, mut space) = (0, state.appender.space());
        for record in records {
            let bytes = record_bytes(record.key.len(), record.value.len());
            if space < bytes + overhead {
                chunks += 1;
                space = CHUNK_BYTES - RECORDS_AT;
            }
            space = space.saturating_sub(bytes + overhead);
        }
        match (priority, chunks) {
            // A move frees space.
            (SpacePriority::Move, 0) => Ok(self.segment.reserve_none()),
            // It takes no chunk; but the next opening takes one, and must be able to collect.
            (SpacePriority::Delete, 0) => self.segment.reserve(SpacePriority::Move, 0),
            // It fails before it takes space that others need.
            _ => self.segment.reserve(priority, chunks),
        }
    }

    fn append_one(&self, state: &mut State, record: &Append<'_>, continues: bool) -> Appended {
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        let Append { kind, keyspace, key, value } = *record;
        state.refers_ahead |= kind == RecordKind::Extents;
        let record = Record { kind, continues, keyspace, sequence, key, value };
        let bytes = record.bytes();
        let (seed, start) = (state.appender.chunk().seed, state.appender.chunk().header.offset);
        let at = state.appender.append(bytes, |place| record.write(seed, place));
        let pointed = match kind {
            RecordKind::Delete => PointerKind::Tombstone,
            _ => PointerKind::Value,
        };
        Appended { sequence, pointer: Pointer::new(pointed, start + at as u64, bytes as u32) }
    }

    /// Begins another chunk if the present one has no space for that many bytes. Waits for the device if too much is in memory; no other
    /// thread appends meanwhile.
    fn make_space(
        &self,
        state: &mut MutexGuard<'_, State>,
        bytes: usize,
        space: &mut SpaceReservation<'_>,
    ) -> Result<()> {
        loop {
            if let Some(why) = &state.failed {
                return Err(self.stopped(why));
            }
            if state.stopping {
                return Err(self.stopped("it was closed"));
            }
            if state.unwritten() <= UNWRITTEN_BYTES_MAX {
                if self.vouch(state, bytes) || state.appender.space() >= bytes + END_BYTES {
                    return Ok(());
                }
                if state.chunks.len() < TAIL_CHUNKS_MAX {
                    self.begin_chunk(state, space)?;
                    continue;
                }
            }
            state.is_appending = true;
            self.changed.notify_all();
            self.changed.wait(state);
        }
    }

    /// Appends a record that says which records are durable, if that is news and leaves space for that many bytes.
    fn vouch(&self, state: &mut State, bytes: usize) -> bool {
        let mark = record_bytes(0, 8);
        debug_assert!(
            state.durable <= state.next_sequence,
            "record {} is durable before it is appended",
            state.durable
        );
        if state.durable <= state.vouched || state.appender.space() < bytes + mark + END_BYTES {
            return false;
        }
        state.vouched = state.durable;
        let value = state.durable.to_le_bytes();
        let record = Append { kind: RecordKind::Durable, keyspace: 0, key: &[], value: &value };
        self.append_one(state, &record, false);
        true
    }

    fn begin_chunk(&self, state: &mut State, space: &mut SpaceReservation<'_>) -> Result<()> {
        let next = space.take_chunk()?;
        let end = Append { kind: RecordKind::EndOfChunk, keyspace: 0, key: &[], value: &[] };
        self.append_one(state, &end, false);
        let last = &state.appender.chunk().header;
        debug_assert!(last.next != 0 && last.next != next, "a chunk at {} follows itself, or nothing", last.offset);
        let header = ChunkHeader {
            segment: last.segment,
            offset: last.next,
            generation: last.generation + 1,
            first_sequence: state.next_sequence,
            previous: last.offset,
            next,
            begins_anew: false,
        };
        let memory = state.spare.take().unwrap_or_else(ChunkMemory::new);
        let (chunk, appender) = TailChunk::new(header, memory);
        // The unit may have been a chunk before.
        self.seeds.put(header.offset, chunk.seed);
        self.has_begun_chunk.store(true, Ordering::Relaxed);
        state.to_read_back.push_back((header.first_sequence, header.offset));
        state.chunks.push(chunk);
        state.appender = appender;
        self.tails.store(Arc::new(state.chunks.clone()));
        Ok(())
    }

    /// Bytes of the chunks that an opening would read back if it began with that record.
    pub(crate) fn bytes_since(&self, sequence: u64) -> u64 {
        let state = self.state();
        let chunks = state.to_read_back.len() - chunks_before(&state.to_read_back, sequence);
        chunks as u64 * CHUNK_BYTES as u64
    }

    /// The chunks that an opening that begins with that record does not read back. Each is returned once.
    pub(crate) fn take_chunks_before(&self, sequence: u64) -> Vec<u64> {
        let chunks = &mut self.state().to_read_back;
        let before = chunks_before(chunks, sequence);
        chunks.drain(..before).map(|(_, chunk)| chunk).collect()
    }

    /// The chunks that an opening would read back, as far as is known.
    pub(crate) fn chunks_to_read_back(&self) -> Vec<u64> {
        self.state().to_read_back.iter().map(|(_, chunk)| *chunk).collect()
    }

    /// Whether more than two pieces of appended records wait for their write.
    pub(crate) fn is_behind(&self) -> bool {
        self.state().unwritten() > 2 * WRITE_BYTES
    }

    /// Skips numbers, as if other records had had them and were compacted.
    #[cfg(test)]
    pub(crate) fn skip_numbers(&self, numbers: u64) {
        let mut state = self.state();
        state.next_sequence += numbers;
        state.durable = state.durable.max(state.next_sequence);
    }

    /// Whether a chunk was begun since the last call.
    pub(crate) fn take_begun_chunk(&self) -> bool {
        self.has_begun_chunk.load(Ordering::Relaxed) && self.has_begun_chunk.swap(false, Ordering::Relaxed)
    }

    /// The newest generation, and the number of the first record that is not durable: for the superblock.
    pub(crate) fn position(&self) -> (u64, u64) {
        let state = self.state();
        (state.appender.chunk().header.generation, state.durable)
    }

    /// Notes that an opening has yet to read records from one on: for memtables and commits, the log ends there.
    pub(crate) fn set_replayed(&self, replayed: Option<(u64, u64)>) {
        self.state().replayed = replayed;
    }

    /// The place and the number of the next record, or of one behind it.
    pub(crate) fn end(&self) -> (u64, u64) {
        let state = self.state();
        if let Some(replayed) = state.replayed {
            return replayed;
        }
        let last = state.appender.chunk();
        (last.header.offset + last.filled() as u64, state.next_sequence)
    }
}

/// How many chunks come before the one that a record is in.
fn chunks_before(chunks: &VecDeque<(u64, u64)>, sequence: u64) -> usize {
    chunks.partition_point(|(first, _)| *first <= sequence).saturating_sub(1)
}

/// Ends the chunk that the last opening has left, so that each chunk but the newest says where it ends.
fn end_chunk(segment: &Segment, header: &ChunkHeader, at: usize, sequence: u64) -> Result<()> {
    let record = Record { kind: RecordKind::EndOfChunk, continues: false, keyspace: 0, sequence, key: &[], value: &[] };
    let start = at - at % BLOCK_BYTES;
    let mut blocks = vec![Block::ZERO; (at + END_BYTES).div_ceil(BLOCK_BYTES) - start / BLOCK_BYTES];
    let bytes = blocks.as_mut_slice().as_mut_bytes();
    segment.device.read(header.offset + start as u64, bytes)?;
    record.write(Seed::new(header.segment, header.generation), &mut bytes[at - start..]);
    segment.device.write(header.offset + start as u64, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_may_be_longer_than_the_space_beside_a_durable_mark() {
        // The longest record, a mark and an end fit a chunk of their own.
        let longest = record_bytes(crate::format::record::KEY_BYTES_MAX, crate::format::record::VALUE_BYTES_MAX);
        assert!(longest + record_bytes(0, 8) + END_BYTES + crate::format::chunk::RECORDS_AT <= CHUNK_BYTES);
    }
}
