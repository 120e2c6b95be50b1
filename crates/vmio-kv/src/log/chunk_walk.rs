//! Walks a chunk of the log that is no longer written to. The walk bypasses the mapping, since its pages have no further use.

use std::collections::BTreeSet;

use crate::error::{Damage, Result};
use crate::format::chunk::{ChunkHeader, RECORDS_AT};
use crate::format::pointer::Pointer;
use crate::format::record::{Record, RecordKind, Seed};
use crate::log::Log;
use crate::log::replay::{ChunkBytes, pointer_of, read_chunk};

/// A put or a deletion in a chunk.
pub(crate) struct Visited<'chunk> {
    pub(crate) kind: RecordKind,
    pub(crate) keyspace: u32,
    pub(crate) key: &'chunk [u8],
    pub(crate) value: &'chunk [u8],
    pub(crate) pointer: Pointer,
}

/// A chunk that was read whole.
pub(crate) struct ReadChunk {
    header: ChunkHeader,
    bytes: ChunkBytes,
}

impl ReadChunk {
    /// The number of the first record.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.header.first_sequence
    }
}

impl Log {
    /// Chunks that are written to, or will be next: those in memory, and those taken in advance.
    pub(crate) fn open_chunks(&self) -> BTreeSet<u64> {
        let state = self.state();
        let next = state.chunks.iter().map(|chunk| chunk.header.next);
        state.chunks.iter().map(|chunk| chunk.header.offset).chain(next).collect()
    }

    fn own_header(&self, chunk: u64, header: Result<ChunkHeader, Damage>) -> Result<ChunkHeader> {
        let own = header.and_then(|header| {
            let is_ours = header.segment == self.segment.uuid && header.offset == chunk;
            if is_ours { Ok(header) } else { Err(Damage::Foreign) }
        });
        own.map_err(|damage| self.device().damaged("a chunk of the log", chunk, damage))
    }

    /// Reads a chunk.
    pub(crate) fn read_chunk(&self, chunk: u64) -> Result<ReadChunk> {
        let mut bytes = ChunkBytes::new();
        let header = read_chunk(&self.segment, chunk, &mut bytes)?;
        let header = self.own_header(chunk, header)?;
        Ok(ReadChunk { header, bytes })
    }

    /// Calls `visit` with all puts and deletions of a chunk. Each chunk that the log has left has a record that ends it. So a record before
    /// that one that is not whole is damaged, not torn.
    pub(crate) fn walk<'chunk>(&self, chunk: &'chunk ReadChunk, mut visit: impl FnMut(Visited<'chunk>)) -> Result<()> {
        let ReadChunk { header, bytes } = chunk;
        let seed = Seed::new(header.segment, header.generation);
        let (mut at, mut expected) = (RECORDS_AT, header.first_sequence);
        let (generation, began) = self.first_of_this_opening;
        loop {
            // Here the chunk ends, or a former owner may go on in it, and none of that counts.
            if expected + 1 >= began && header.generation < generation {
                return Ok(());
            }
            let offset = header.offset + at as u64;
            let damaged = |damage| self.device().damaged("a record of the log", offset, damage);
            let record = Record::read(seed, bytes.all().get(at..).unwrap_or_default()).map_err(damaged)?;
            if record.sequence != expected {
                return Err(damaged(Damage::Value { what: "its number", found: record.sequence }));
            }
            match record.kind {
                RecordKind::EndOfChunk => return Ok(()),
                RecordKind::Put | RecordKind::Delete => visit(Visited {
                    kind: record.kind,
                    keyspace: record.keyspace,
                    key: record.key,
                    value: record.value,
                    pointer: pointer_of(&record, offset),
                }),
                _ => {}
            }
            expected += 1;
            at += record.bytes();
        }
    }
}
