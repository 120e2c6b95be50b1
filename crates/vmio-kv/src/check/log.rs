//! Checks the log from its first chunk to its end: each record must be whole, and no durable record may be missing.

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::IntoBytes;

use crate::check::Check;
use crate::check::found::{Found, Structure};
use crate::check::large::LargeInLog;
use crate::check::owners::{Conflict, UnitOwners};
use crate::check::state::State;
use crate::error::Damage;
use crate::format::block::Block;
use crate::format::catalogue::KeyspaceEntry;
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::extents::LargeRecord;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES, unit_of};
use crate::format::record::{ALIGNMENT, Record, RecordKind, Seed};
use crate::format::unit_table::Purpose;
use crate::log::{has_lost_its_header, vouched};

const CHUNK: &str = "a chunk of the log";
const RECORD: &str = "a record of the log";

/// The log's chunks.
#[derive(Default)]
pub(super) struct Chain {
    chunks: BTreeMap<u64, InChain>,
    /// Units of new chunks that another structure has as well. That is sound if the last commit freed them.
    pub(super) reused: BTreeSet<u64>,
}

/// A chunk of the log.
#[derive(Clone, Copy)]
struct InChain {
    seed: Seed,
    /// The chunk was begun after the last commit.
    is_new: bool,
}

impl Chain {
    /// Whether a unit is one of the log's chunks.
    pub(super) fn contains(&self, unit: u64) -> bool {
        self.chunks.contains_key(&unit)
    }

    /// The seed of the checksums in the chunk that contains the byte, if there is one.
    pub(super) fn seed(&self, offset: u64) -> Option<Seed> {
        self.chunks.get(&unit_of(offset)).map(|chunk| chunk.seed)
    }

    /// Whether the byte is in a chunk that the last commit did not know.
    pub(super) fn is_new(&self, offset: u64) -> bool {
        self.chunks.get(&unit_of(offset)).is_some_and(|chunk| chunk.is_new)
    }
}

/// A place in the log.
struct Walk {
    chunk: u64,
    header: ChunkHeader,
    bytes: Vec<Block>,
    at: usize,
    /// The number of the next record.
    expected: u64,
    /// Records with lower numbers were durable, according to the log and the superblock.
    durable: u64,
    /// The chunk's last record was the mark of its end.
    has_ended: bool,
    /// Whether the walk has passed the place where recovery begins.
    has_passed_replay: bool,
    large: LargeInLog,
}

impl Walk {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_slice().as_bytes()
    }

    fn seed(&self) -> Seed {
        Seed::new(self.header.segment, self.header.generation)
    }

    /// Visits the whole records of the chunk after this place.
    fn whole_behind(&self, visit: impl FnMut(usize, &Record<'_>) -> bool) {
        each_whole(self.seed(), self.bytes(), self.at, visit);
    }

    /// Continues with the next whole record of the chunk, if there is one.
    fn resume(&mut self) -> bool {
        let mut found = None;
        self.whole_behind(|at, record| {
            found = (record.sequence > self.expected).then_some((at, record.sequence));
            found.is_some()
        });
        if let Some((at, sequence)) = found {
            (self.at, self.expected) = (at, sequence);
        }
        found.is_some()
    }
}

impl Check<'_> {
    /// Walks through the whole log.
    pub(super) fn log(&mut self, state: &mut State, keyspaces: &[KeyspaceEntry]) -> Chain {
        let mut chain = Chain::default();
        let committed = self.committed_chunks(state);
        let replayed_chunk = replayed_chunk(state);
        let replayed = committed.iter().find(|(_, chunk)| *chunk == replayed_chunk);
        let replayed = replayed.map_or(0, |(generation, _)| *generation);
        // All chunks that the superblock knew may have been freed, but not those that recovery reads.
        let first = committed.first().map_or(replayed_chunk, |(_, chunk)| *chunk);
        let (header, bytes) = match self.chunk(state, first) {
            Ok(read) => read,
            Err(why) => {
                self.wrong(CHUNK, first, why);
                return chain;
            }
        };
        let mut walk = Walk {
            chunk: first,
            header,
            bytes,
            at: RECORDS_AT,
            expected: header.first_sequence,
            durable: state.superblock.log_durable,
            has_ended: false,
            has_passed_replay: false,
            large: LargeInLog::new(keyspaces),
        };
        self.enter(state, &mut chain, &walk);
        loop {
            self.records(state, &mut walk);
            let mut next = self.chunk(state, walk.header.next).ok();
            next = next.filter(|(next, _)| is_behind(&walk, next) && !was_given_back(state, next));
            let mut follows = next.as_ref().is_some_and(|(next, _)| follows(&walk, next));
            // Chunks between those that recovery no longer reads may have been freed.
            let newer = committed.iter().find(|(generation, _)| *generation > walk.header.generation);
            // Nor need all of them be whole: a unit that was reused but not yet written still has its old contents. The targets of entries
            // are checked with the entries.
            let is_read_back = walk.header.generation >= replayed;
            if let (None, Some((generation, chunk))) = (&next, newer)
                && *generation <= replayed
                && (walk.has_ended || !is_read_back)
            {
                next = self.chunk(state, *chunk).ok();
                follows = next.is_some();
            }
            if !follows && is_read_back && !self.hole(state, &mut walk) {
                break;
            }
            if !follows && walk.resume() {
                continue;
            }
            let Some((next, bytes)) = next else { break };
            self.advance(&mut walk, next, bytes);
            self.enter(state, &mut chain, &walk);
        }
        self.end(state, &mut chain, &walk);
        self.large_in_log(state, std::mem::take(&mut walk.large));
        if !walk.has_passed_replay {
            let (offset, sequence) = (state.superblock.log_replay_from, state.superblock.log_replay_sequence);
            self.wrong(
                "the superblock",
                offset,
                format!("the log has no record {sequence} there, from which it is read"),
            );
        }
        for keyspace in keyspaces.iter().filter(|keyspace| keyspace.log_sequence > walk.expected) {
            let what = format!(
                "keyspace {} begins with record {}, behind the log's end",
                keyspace.number, keyspace.log_sequence
            );
            self.wrong("the catalogue of keyspaces", keyspace.log_offset, what);
        }
        chain
    }

    /// Chunks that the last commit knew, by generation.
    fn committed_chunks(&mut self, state: &State) -> Vec<(u64, u64)> {
        let is_chunk = |owners: &UnitOwners| owners.is_taken() && owners.row.purpose == Purpose::Log;
        let units = state.owners.units().filter(|(unit, owners)| is_chunk(owners) && !state.retired.contains(unit));
        let mut chunks = Vec::new();
        for chunk in units.map(|(unit, _)| unit * ALLOCATION_UNIT_BYTES) {
            let header = self.block(chunk).map(|block| ChunkHeader::from_bytes(&block.0));
            match header {
                Ok(Ok(header)) if header.segment == state.uuid && header.offset == chunk => {
                    if !is_new(state, &header) {
                        chunks.push((header.generation, chunk));
                    }
                }
                // It may have been reserved and never written.
                Ok(_) if chunk != replayed_chunk(state) => {}
                Ok(_) => self.wrong(CHUNK, chunk, "the log is read back from there, and its header is not whole"),
                Err(why) => self.wrong(CHUNK, chunk, why),
            }
        }
        chunks.sort_unstable();
        chunks
    }

    /// Reads a chunk, which must be whole and belong to the segment.
    fn chunk(&mut self, state: &State, chunk: u64) -> Result<(ChunkHeader, Vec<Block>), String> {
        if !chunk.is_multiple_of(ALLOCATION_UNIT_BYTES) || state.owners.get(unit_of(chunk)).is_none() {
            return Err(Damage::Value { what: "its place", found: chunk }.to_string());
        }
        let mut bytes = vec![Block::ZERO; CHUNK_BYTES / BLOCK_BYTES];
        self.device.read(chunk, bytes.as_mut_slice().as_mut_bytes()).map_err(|error| error.with_causes())?;
        let header = ChunkHeader::from_bytes(bytes.as_slice().as_bytes()).map_err(|damage| damage.to_string())?;
        if header.segment != state.uuid || header.offset != chunk {
            return Err(Damage::Foreign.to_string());
        }
        Ok((header, bytes))
    }

    fn enter(&mut self, state: &mut State, chain: &mut Chain, walk: &Walk) {
        let (unit, header) = (unit_of(walk.chunk), &walk.header);
        let is_new = is_new(state, header);
        self.own_chunk(state, chain, walk.chunk, is_new);
        if let Some(owners) = state.owners.get(unit)
            && !is_new
            && owners.row.purpose != Purpose::Log
        {
            let purpose = owners.row.purpose.name();
            self.wrong(CHUNK, walk.chunk, format!("its unit is for {purpose}"));
        }
        chain.chunks.insert(unit, InChain { seed: walk.seed(), is_new });
        self.report.chunks += 1;
        self.progress("log", self.report.chunks * CHUNK_BYTES as u64, 0);
        self.found(Structure::Log, || Found {
            what: "chunk",
            offset: walk.chunk,
            fields: vec![
                ("generation", header.generation.into()),
                ("first_sequence", header.first_sequence.into()),
                ("previous", header.previous.into()),
                ("next", header.next.into()),
                ("begins_anew", u64::from(header.begins_anew).into()),
            ],
        });
    }

    fn own_chunk(&mut self, state: &mut State, chain: &mut Chain, chunk: u64, is_new: bool) {
        match state.owners.own_chunk(unit_of(chunk), !is_new) {
            Ok(()) => {}
            Err(Conflict::Twice) if is_new => _ = chain.reused.insert(unit_of(chunk)),
            Err(conflict) => self.wrong(CHUNK, chunk, conflict),
        }
    }

    /// Checks the chunk's records up to one that is not whole or not the next.
    fn records(&mut self, state: &State, walk: &mut Walk) {
        let seed = walk.seed();
        let replay = (state.superblock.log_replay_from, state.superblock.log_replay_sequence);
        loop {
            walk.has_passed_replay |= (walk.chunk + walk.at as u64, walk.expected) == replay;
            let bytes = walk.bytes.as_slice().as_bytes();
            let Ok(record) = Record::read(seed, bytes.get(walk.at..).unwrap_or_default()) else { return };
            if record.sequence != walk.expected {
                return;
            }
            self.report.records += 1;
            self.report.record_bytes += record.bytes() as u64;
            let offset = walk.chunk + walk.at as u64;
            self.found(Structure::Log, || found_record(offset, &record));
            if let Err(damage) = walk.large.see(&record, offset) {
                self.wrong(RECORD, offset, damage);
            }
            let (bytes, kind) = (record.bytes(), record.kind);
            let durable = if kind == RecordKind::Durable { vouched(&record) } else { 0 };
            walk.durable = walk.durable.max(durable);
            walk.expected += 1;
            walk.at += bytes;
            if kind == RecordKind::EndOfChunk {
                walk.has_ended = true;
                return;
            }
        }
    }

    /// Moves to the next chunk.
    fn advance(&mut self, walk: &mut Walk, next: ChunkHeader, bytes: Vec<Block>) {
        if !walk.has_ended && next.first_sequence == walk.expected {
            let at = walk.chunk + walk.at as u64;
            self.note(RECORD, at, format!("the log was torn before record {}, and goes on elsewhere", walk.expected));
        }
        if next.begins_anew {
            walk.large.begin_anew();
        }
        let (chunk, expected) = (next.offset, next.first_sequence);
        (walk.chunk, walk.header, walk.bytes, walk.at) = (chunk, next, bytes, RECORDS_AT);
        (walk.expected, walk.has_ended) = (expected, false);
    }

    /// Reports a missing record that was durable; returns whether there is one.
    fn hole(&mut self, state: &State, walk: &mut Walk) -> bool {
        self.look_ahead(state, walk);
        if walk.durable <= walk.expected {
            return false;
        }
        let damage = Record::read(walk.seed(), walk.bytes().get(walk.at..).unwrap_or_default()).err();
        let damage = damage.map_or("it has another number".to_owned(), |damage| damage.to_string());
        let what = format!("record {} was durable, and is damaged: {damage}", walk.expected);
        self.wrong(RECORD, walk.chunk + walk.at as u64, what);
        true
    }

    /// Learns from later records which records were durable.
    fn look_ahead(&mut self, state: &State, walk: &mut Walk) {
        let mut durable = walk.durable;
        walk.whole_behind(|_, record| {
            if record.kind == RecordKind::Durable && record.sequence > walk.expected {
                durable = durable.max(vouched(record));
            }
            false
        });
        let mut chunk = walk.chunk;
        let mut header = walk.header;
        while let Ok((next, bytes)) = self.chunk(state, header.next) {
            if next.generation <= header.generation || next.previous != chunk || next.first_sequence <= walk.expected {
                break;
            }
            let seed = Seed::new(next.segment, next.generation);
            each_whole(seed, bytes.as_slice().as_bytes(), RECORDS_AT, |_, record| {
                if record.kind == RecordKind::Durable {
                    durable = durable.max(vouched(record));
                }
                false
            });
            (chunk, header) = (header.next, next);
        }
        walk.durable = durable;
    }

    /// Checks the end of the log: whether whole records lie behind it, and the chunk that was reserved to follow.
    fn end(&mut self, state: &mut State, chain: &mut Chain, walk: &Walk) {
        let mut is_followed = false;
        walk.whole_behind(|_, record| {
            is_followed = record.sequence > walk.expected;
            is_followed
        });
        if is_followed {
            let torn = walk.chunk + walk.at as u64;
            self.note(RECORD, torn, format!("the log ends torn before record {}", walk.expected));
        }
        let next = walk.header.next;
        // The next chunk was reserved no later than the current chunk got this header. That may have been after the last commit, even where
        // recovery reads the current chunk.
        let is_new = walk.header.generation > state.superblock.log_generation;
        let Some(owners) = state.owners.get(unit_of(next)).filter(|_| next.is_multiple_of(ALLOCATION_UNIT_BYTES))
        else {
            return self.wrong(CHUNK, walk.chunk, Damage::Value { what: "the chunk that follows", found: next });
        };
        if !is_new && owners.row.purpose != Purpose::Log {
            self.wrong(
                CHUNK,
                next,
                format!("it was taken to follow, and its unit is for {}", owners.row.purpose.name()),
            );
        }
        // If the walk has passed through this chunk, it has read contents from before the chunk was freed. If it was not freed, entries
        // would point to it.
        if !chain.contains(unit_of(next)) {
            self.own_chunk(state, chain, next, is_new);
        }
        if let Err(damage) = self.chunk(state, next) {
            let mut bytes = vec![Block::ZERO; CHUNK_BYTES / BLOCK_BYTES];
            let bytes = bytes.as_mut_slice().as_mut_bytes();
            let is_read = self.device.read(next, bytes).is_ok();
            if is_read && has_lost_its_header(&walk.header, bytes, walk.expected, state.superblock.owner_epoch) {
                self.wrong(CHUNK, next, format!("{damage}, and it has the record that comes next"));
            }
        }
        chain.chunks.insert(unit_of(next), InChain { seed: walk.seed(), is_new });
    }
}

/// The chunk in which recovery begins.
fn replayed_chunk(state: &State) -> u64 {
    unit_of(state.superblock.log_replay_from) * ALLOCATION_UNIT_BYTES
}

/// Whether a chunk was begun after the last commit. Its generation says so, except for the chunk where recovery begins: an opening that finds
/// that chunk empty continues in it, and gives it a new generation.
fn is_new(state: &State, chunk: &ChunkHeader) -> bool {
    chunk.generation > state.superblock.log_generation && chunk.offset != replayed_chunk(state)
}

/// Whether a chunk was written after the current one.
fn is_behind(walk: &Walk, next: &ChunkHeader) -> bool {
    next.generation > walk.header.generation && next.previous == walk.chunk && next.first_sequence >= walk.expected
}

/// Whether the last commit knows that a chunk was freed, though its contents are still there.
fn was_given_back(state: &State, chunk: &ChunkHeader) -> bool {
    let is_chunk = |owners: &UnitOwners| owners.is_taken() && owners.row.purpose == Purpose::Log;
    let unit = unit_of(chunk.offset);
    chunk.generation <= state.superblock.log_generation
        && (state.retired.contains(&unit) || !state.owners.get(unit).is_some_and(is_chunk))
}

/// Whether no record is missing between the two chunks.
fn follows(walk: &Walk, next: &ChunkHeader) -> bool {
    next.first_sequence == walk.expected && (walk.has_ended || next.begins_anew)
}

/// Shows `visit` each whole record, wherever it begins, until `visit` returns true.
fn each_whole(seed: Seed, bytes: &[u8], from: usize, mut visit: impl FnMut(usize, &Record<'_>) -> bool) {
    // No record has kind 0, and most bytes after the log's end are zeros.
    for at in (from..bytes.len()).step_by(ALIGNMENT).filter(|at| bytes[at + 4] != 0) {
        if Record::read(seed, &bytes[at..]).is_ok_and(|record| visit(at, &record)) {
            return;
        }
    }
}

fn found_record(offset: u64, record: &Record<'_>) -> Found {
    let kind = match record.kind {
        RecordKind::Put => "put",
        RecordKind::Delete => "delete",
        RecordKind::EndOfChunk => "end of the chunk",
        RecordKind::Durable => "durable",
        RecordKind::FlushMark => "flush mark",
        RecordKind::Relocation => "relocation",
        RecordKind::RangeDelete => "range delete",
        RecordKind::Extents => "extents",
    };
    let mut fields = vec![
        ("kind", kind.into()),
        ("sequence", record.sequence.into()),
        ("keyspace", u64::from(record.keyspace).into()),
        ("continues", u64::from(record.continues).into()),
    ];
    if record.key.is_empty() {
        fields.push(("number", vouched(record).into()));
    } else {
        fields.push(("key", record.key.into()));
        let large = (record.kind == RecordKind::Extents).then(|| LargeRecord::from_bytes(record.value));
        match large {
            Some(Ok(large)) => {
                fields.push(("value_bytes", large.list.value_bytes.into()));
                fields.push(("head", large.head_offset.into()));
                fields.push(("extents", (large.list.extents.len() as u64).into()));
            }
            _ => fields.push(("value_bytes", (record.value.len() as u64).into())),
        }
    }
    Found { what: "record", offset, fields }
}
