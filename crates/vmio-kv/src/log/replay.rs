//! Replay of the log on opening: all records that no level has, up to where a power cut has torn the log.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use crate::error::{Damage, Result};
use crate::format::block::Block;
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::free_log::Freed;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BLOCK_BYTES, unit_of};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::{ALIGNMENT, Record, RecordKind, Seed};
use crate::format::superblock::Superblock;
use crate::volume::segment::Segment;

/// The end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The chunk with the last record.
    pub(crate) last_chunk: u64,
    /// The chunk that was taken to follow it.
    pub(crate) next_chunk: u64,
    /// The number of the next record.
    pub(crate) next_sequence: u64,
    /// The last chunk's header, if the chunk has no record.
    pub(crate) empty: Option<ChunkHeader>,
    /// The highest generation that was seen, though its chunk may not be the log's any more.
    pub(crate) generation: u64,
    /// Bytes of the records that were read.
    pub(crate) bytes: u64,
    /// The first numbers of the chunks that were read, with the chunks.
    pub(crate) to_read_back: VecDeque<(u64, u64)>,
    /// The last chunk and the place of the record that is to end it, if it has none yet.
    pub(crate) open: Option<(ChunkHeader, usize)>,
}

impl End {
    /// Leaves the next chunk: a former owner may be writing to the last one and to this one.
    pub(crate) fn leave_next_chunk(&mut self, segment: &Segment) {
        segment.allocator().free(Freed { offset: self.next_chunk, blocks: ALLOCATION_UNIT_BLOCKS });
        (self.empty, self.open) = (None, None);
        // One number is left out. The place from which the log is read moves on by numbers, and must leave the place of the former owner's
        // next record.
        self.next_sequence += 1;
    }
}

/// A record of a batch whose end was not read yet.
struct Waiting {
    kind: RecordKind,
    keyspace: u32,
    sequence: u64,
    key: Vec<u8>,
    /// Of a large value's record only: it says where the value is.
    value: Vec<u8>,
    pointer: Pointer,
}

/// A chunk's bytes, aligned for direct I/O.
pub(super) struct ChunkBytes(Vec<Block>);

impl ChunkBytes {
    pub(super) fn new() -> Self {
        ChunkBytes(vec![Block::ZERO; CHUNK_BYTES / BLOCK_BYTES])
    }

    pub(super) fn all(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

/// A record that counts.
pub(crate) struct Replayed<'record> {
    pub(crate) kind: RecordKind,
    pub(crate) keyspace: u32,
    pub(crate) sequence: u64,
    pub(crate) key: &'record [u8],
    /// Of a large value's record only.
    pub(crate) value: &'record [u8],
    pub(crate) pointer: Pointer,
}

/// Reads the log from where the superblock says, and calls `apply` with each record that counts, in order. It marks the chunks that it
/// finds as taken.
///
/// The log is torn at a record that is not whole. If something says that the record was durable, it is damaged instead.
pub(crate) fn replay(
    segment: &Segment,
    superblock: &Superblock,
    mut apply: impl FnMut(Replayed<'_>) -> Result<()>,
) -> Result<End> {
    let device = &segment.device;
    let mut reading = Reading::begin(segment, superblock)?;
    let opened = segment.epoch();
    let mut to_read_back = VecDeque::new();
    let mut generation = 0;
    loop {
        to_read_back.push_back((reading.header.first_sequence, reading.chunk));
        segment.allocator().take_found_chunk(unit_of(reading.chunk), opened);
        reading.read_records(&mut apply)?;
        let mut bytes = ChunkBytes::new();
        match read_chunk(segment, reading.header.next, &mut bytes)? {
            Ok(next) if reading.is_followed_by(&next) => reading.go_on(next, bytes),
            Ok(other) => {
                generation = other.generation;
                break;
            }
            Err(damage) => {
                if has_lost_its_header(&reading.header, bytes.all(), reading.expected, superblock.owner_epoch) {
                    return Err(device.damaged("a chunk of the log", reading.header.next, damage));
                }
                break;
            }
        }
    }
    let Reading { chunk, header, bytes, at, expected, durable, total, has_ended, .. } = reading;
    if durable > expected || is_vouched_for(segment, &header, bytes.all(), at, expected)? {
        return Err(device.damaged("a record of the log that was durable", chunk + at as u64, Damage::Checksum));
    }
    if !header.next.is_multiple_of(ALLOCATION_UNIT_BYTES) || !segment.allocator().may_be_chunk(unit_of(header.next)) {
        let damage = Damage::Value { what: "the chunk that follows", found: header.next };
        return Err(device.damaged("a chunk of the log", chunk, damage));
    }
    segment.allocator().take_found_chunk(unit_of(header.next), opened);
    if at > RECORDS_AT {
        // The log goes on in another chunk.
        segment.allocator().add_garbage(unit_of(chunk), (CHUNK_BYTES - at) as u32);
    }
    Ok(End {
        last_chunk: chunk,
        next_chunk: header.next,
        next_sequence: expected,
        empty: (at == RECORDS_AT).then_some(header),
        generation: header.generation.max(generation),
        bytes: total,
        to_read_back,
        open: (!has_ended).then_some((header, at)),
    })
}

/// Reads the log once more, from a record on, by its place and number, up to `end`.
pub(crate) fn replay_again(
    segment: &Segment,
    superblock: &Superblock,
    (log_replay_from, log_replay_sequence): (u64, u64),
    end: u64,
    mut apply: impl FnMut(Replayed<'_>) -> Result<()>,
) -> Result<()> {
    let from = Superblock { log_replay_from, log_replay_sequence, ..superblock.clone() };
    let mut reading = Reading::begin(segment, &from)?;
    loop {
        reading.read_records(&mut apply)?;
        if reading.expected >= end {
            return Ok(());
        }
        let mut bytes = ChunkBytes::new();
        match read_chunk(segment, reading.header.next, &mut bytes)? {
            Ok(next) if reading.is_followed_by(&next) => reading.go_on(next, bytes),
            // It was there a moment ago.
            other => {
                let damage = other.err().unwrap_or(Damage::Stale);
                return Err(segment.device.damaged("a chunk of the log", reading.header.next, damage));
            }
        }
    }
}

/// How far the log was read.
struct Reading {
    /// The chunk that is being read.
    chunk: u64,
    header: ChunkHeader,
    bytes: ChunkBytes,
    /// The place of the next record in the chunk.
    at: usize,
    /// The number of the next record.
    expected: u64,
    /// All records with lower numbers were durable: the log says so.
    durable: u64,
    batch: Vec<Waiting>,
    /// Bytes of records so far.
    total: u64,
    /// Whether the chunk has the record that ends it.
    has_ended: bool,
}

impl Reading {
    fn begin(segment: &Segment, superblock: &Superblock) -> Result<Self> {
        let chunk = superblock.log_replay_from - superblock.log_replay_from % ALLOCATION_UNIT_BYTES;
        let at = (superblock.log_replay_from - chunk) as usize;
        if !at.is_multiple_of(ALIGNMENT) || !(RECORDS_AT..=CHUNK_BYTES).contains(&at) {
            let what = "the place from which the log is read";
            return Err(segment.damaged_superblock(Damage::Value { what, found: superblock.log_replay_from }));
        }
        let mut bytes = ChunkBytes::new();
        let header = read_chunk(segment, chunk, &mut bytes)?
            .map_err(|damage| segment.device.damaged("the chunk from which the log is read", chunk, damage))?;
        Ok(Reading {
            chunk,
            header,
            bytes,
            at,
            expected: superblock.log_replay_sequence,
            durable: superblock.log_durable,
            batch: Vec::new(),
            total: 0,
            has_ended: false,
        })
    }

    /// Reads the records of the chunk, and calls `apply` with those that count.
    fn read_records(&mut self, apply: &mut impl FnMut(Replayed<'_>) -> Result<()>) -> Result<()> {
        let seed = Seed::new(self.header.segment, self.header.generation);
        self.has_ended = false;
        while let Ok(record) = Record::read(seed, self.bytes.all().get(self.at..).unwrap_or_default()) {
            if record.sequence != self.expected {
                break;
            }
            let pointer = pointer_of(&record, self.chunk + self.at as u64);
            self.expected += 1;
            self.at += record.bytes();
            self.total += record.bytes() as u64;
            match record.kind {
                RecordKind::EndOfChunk => {
                    self.has_ended = true;
                    break;
                }
                RecordKind::Durable => self.durable = self.durable.max(vouched(&record)),
                _ => {}
            }
            let Record { kind, continues, keyspace, sequence, key, value } = record;
            let value = if kind == RecordKind::Extents { value } else { &[] };
            if continues {
                let (key, value) = (key.to_vec(), value.to_vec());
                self.batch.push(Waiting { kind, keyspace, sequence, key, value, pointer });
                continue;
            }
            if kind == RecordKind::Durable {
                // It may stand within a batch, and is no part of it.
                continue;
            }
            for Waiting { kind, keyspace, sequence, key, value, pointer } in self.batch.drain(..) {
                apply(Replayed { kind, keyspace, sequence, key: &key, value: &value, pointer })?;
            }
            apply(Replayed { kind, keyspace, sequence, key, value, pointer })?;
        }
        Ok(())
    }

    fn is_followed_by(&self, next: &ChunkHeader) -> bool {
        next.generation > self.header.generation
            && next.first_sequence == self.expected
            && next.previous == self.chunk
            && (self.has_ended || next.begins_anew)
    }

    /// Goes on with the next chunk.
    fn go_on(&mut self, next: ChunkHeader, bytes: ChunkBytes) {
        if next.begins_anew {
            self.batch.clear();
        }
        (self.chunk, self.header, self.bytes, self.at) = (self.header.next, next, bytes, RECORDS_AT);
    }
}

pub(super) fn pointer_of(record: &Record<'_>, offset: u64) -> Pointer {
    let kind = match record.kind {
        RecordKind::Delete => PointerKind::Tombstone,
        _ => PointerKind::Value,
    };
    Pointer::new(kind, offset, record.bytes() as u32)
}

/// The number that a record of [`RecordKind::Durable`] has.
pub(crate) fn vouched(record: &Record<'_>) -> u64 {
    record.value.first_chunk::<8>().map_or(0, |value| u64::from_le_bytes(*value))
}

/// Whether the next chunk, whose header is not whole, begins with the next record. Both are in one sector, so that no crash leaves this:
/// the header was damaged later. The chunk's generation can only be guessed: the next of this opening, or the first of a later one.
pub(crate) fn has_lost_its_header(header: &ChunkHeader, next: &[u8], expected: u64, owner_epoch: u64) -> bool {
    const OWNERS_MAX: usize = 1000;
    let owners = ((header.generation >> 32) + 1..=owner_epoch + 1).rev().take(OWNERS_MAX);
    let mut generations = owners.map(|owner| owner << 32).chain([header.generation + 1]);
    generations.any(|generation| {
        let record = Record::read(Seed::new(header.segment, generation), &next[RECORDS_AT..]);
        record.is_ok_and(|record| record.sequence == expected)
    })
}

pub(super) fn read_chunk(segment: &Segment, chunk: u64, bytes: &mut ChunkBytes) -> Result<Result<ChunkHeader, Damage>> {
    if !chunk.is_multiple_of(ALLOCATION_UNIT_BYTES) || !segment.allocator().may_be_chunk(unit_of(chunk)) {
        return Ok(Err(Damage::Value { what: "its place", found: chunk }));
    }
    segment.device.read(chunk, bytes.0.as_mut_slice().as_mut_bytes())?;
    Ok(ChunkHeader::from_bytes(bytes.all()).and_then(|header| {
        let is_ours = header.segment == segment.uuid && header.offset == chunk;
        if is_ours { Ok(header) } else { Err(Damage::Foreign) }
    }))
}

/// Whether something behind the log's end says that the missing record was durable.
fn is_vouched_for(segment: &Segment, header: &ChunkHeader, bytes: &[u8], from: usize, expected: u64) -> Result<bool> {
    let vouches = |header: &ChunkHeader, bytes: &[u8], from: usize| {
        let seed = Seed::new(header.segment, header.generation);
        let mut marks = (from..CHUNK_BYTES).step_by(ALIGNMENT).filter(|at| bytes[at + 4] == RecordKind::Durable as u8);
        marks.any(|at| {
            Record::read(seed, &bytes[at..]).is_ok_and(|record| {
                record.kind == RecordKind::Durable && record.sequence > expected && vouched(&record) > expected
            })
        })
    };
    if vouches(header, bytes, from) {
        return Ok(true);
    }
    let (mut header, mut next_bytes) = (*header, ChunkBytes::new());
    while let Ok(next) = read_chunk(segment, header.next, &mut next_bytes)? {
        if next.generation <= header.generation || next.first_sequence <= expected {
            break;
        }
        if vouches(&next, next_bytes.all(), RECORDS_AT) {
            return Ok(true);
        }
        header = next;
    }
    Ok(false)
}
