//! Writes of large values.

use std::io::Read;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::format::block::Block;
use crate::format::extents::{Extent, ExtentList, Head, LargeRecord, PIECE_BLOCKS, PIECE_BYTES, head_blocks, pieces};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::pointer::Pointer;
use crate::format::record::{Record, RecordKind, Seed};
use crate::volume::extents::TakenExtents;
use crate::volume::segment::Segment;

/// How many blocks are written at a time: 1 MiB.
const BUFFER_BLOCKS: u64 = 16 * PIECE_BLOCKS;

/// A value that is on the device, perhaps not durably, and that nothing refers to yet. Its space is freed on drop.
pub(crate) struct Stored {
    segment: Arc<Segment>,
    taken: TakenExtents,
    record: LargeRecord,
    bytes: Vec<u8>,
}

impl Stored {
    /// Takes space for a value, and writes `value_bytes` bytes of `source`.
    pub(crate) fn write(
        segment: &Arc<Segment>,
        keyspace: u32,
        key: &[u8],
        value_bytes: u64,
        source: &mut dyn Read,
    ) -> Result<Self> {
        let blocks = value_bytes.div_ceil(BLOCK_BYTES as u64);
        let taken =
            TakenExtents::new(segment, keyspace, blocks, |extents| head_blocks(key.len(), value_bytes, extents))?;
        let list = ExtentList { value_bytes, extents: taken.extents.clone() };
        let mut input = Input { source, left: value_bytes, of: value_bytes };
        let mut checksums = Vec::with_capacity(pieces(value_bytes));
        let mut buffer = vec![Block::ZERO; BUFFER_BLOCKS.min(blocks) as usize];
        for extent in &list.extents {
            write_extent(segment, *extent, &mut buffer, &mut input, &mut checksums)?;
        }
        let head = Head { list, checksums };
        let head_number = segment.next_head_number();
        let seed = Seed::of_head(segment.uuid, taken.head.offset, head_number);
        let head_bytes = write_head(segment, keyspace, key, taken.head, seed, &head.to_bytes())?;
        // Pages of a previous generation may have come in since the space was taken.
        for extent in taken.all() {
            segment.device.drop_pages(extent.offset, extent.bytes())?;
        }
        let record = LargeRecord { head_offset: taken.head.offset, head_number, head_bytes, list: head.list };
        let bytes = record.to_bytes();
        Ok(Stored { segment: Arc::clone(segment), taken, record, bytes })
    }

    /// The value of the log's record.
    pub(crate) fn record_value(&self) -> &[u8] {
        &self.bytes
    }

    /// The value's record, for memtables.
    pub(crate) fn record(&self) -> &LargeRecord {
        &self.record
    }

    /// Keeps the value's space: the log has that record of it. Returns the pointer that levels have in place of the record, which only an
    /// opening needs.
    pub(crate) fn keep(&self, record: Pointer) -> Pointer {
        self.taken.keep();
        self.segment.count_garbage(record);
        self.record.pointer()
    }
}

/// The source of a value's bytes.
struct Input<'source> {
    source: &'source mut dyn Read,
    left: u64,
    of: u64,
}

impl Input<'_> {
    /// Fills a buffer from the source. Beyond the value's end it is filled with zeros.
    fn fill<'buffer>(&mut self, buffer: &'buffer mut [u8]) -> Result<&'buffer [u8]> {
        let bytes = self.left.min(buffer.len() as u64) as usize;
        let (wanted, behind) = buffer.split_at_mut(bytes);
        self.source.read_exact(wanted).map_err(|source| Error::Source {
            wanted: self.of,
            read: self.of - self.left,
            source,
        })?;
        behind.fill(0);
        self.left -= bytes as u64;
        Ok(wanted)
    }
}

fn write_extent(
    segment: &Segment,
    extent: Extent,
    buffer: &mut [Block],
    input: &mut Input<'_>,
    checksums: &mut Vec<u32>,
) -> Result<()> {
    let end = extent.offset + extent.bytes();
    let mut at = extent.offset;
    while at < end {
        let blocks = buffer.len().min(((end - at) / BLOCK_BYTES as u64) as usize);
        let bytes = buffer[..blocks].as_mut_bytes();
        checksums.extend(input.fill(bytes)?.chunks(PIECE_BYTES).map(crc32c::crc32c));
        segment.device.write(at, bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// Writes a head. Returns its length.
fn write_head(segment: &Segment, keyspace: u32, key: &[u8], place: Extent, seed: Seed, value: &[u8]) -> Result<u32> {
    let sequence = segment.next_epoch();
    let record = Record { kind: RecordKind::Extents, continues: false, keyspace, sequence, key, value };
    let mut blocks = vec![Block::ZERO; place.blocks as usize];
    record.write(seed, blocks.as_mut_slice().as_mut_bytes());
    segment.device.write(place.offset, blocks.as_slice().as_bytes())?;
    Ok(record.bytes() as u32)
}
