//! Reads of a large value, or of a part of it.

use std::ops::Range;

use crate::device::Device;
use crate::error::{Damage, Error, Result};
use crate::format::extents::{Extent, Head, PIECE_BYTES, head_extent};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::pointer::Pointer;
use crate::format::record::RecordKind;
use crate::log::Log;

/// How far ahead a value is prefetched: a few pieces.
const AHEAD_BYTES: u64 = 1 << 20;

/// A large value whose head was read. Its reader holds the version that refers to it.
pub(crate) struct LargeValue {
    head: Head,
    /// The byte of the value that each extent begins with.
    starts: Vec<u64>,
}

impl LargeValue {
    /// Reads the head that a pointer refers to, which is that of `key`.
    pub(crate) fn open(log: &Log, pointer: Pointer, key: &[u8]) -> Result<Self> {
        let head = head_of(log, pointer, Some(key))?;
        let mut end = 0;
        let starts = head.list.extents.iter().map(|extent| {
            let start = end;
            end += extent.bytes();
            start
        });
        let starts = starts.collect();
        Ok(LargeValue { head, starts })
    }

    /// The value's length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.head.list.value_bytes
    }

    /// A piece's length in bytes.
    pub(crate) fn piece_bytes(&self, index: usize) -> usize {
        let start = index as u64 * PIECE_BYTES as u64;
        self.len().saturating_sub(start).min(PIECE_BYTES as u64) as usize
    }

    /// The part of the value within a range.
    pub(crate) fn read(&self, device: &Device, range: Range<u64>) -> Result<Vec<u8>> {
        let range = range.start.min(self.len())..range.end.min(self.len());
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        self.read_at(device, range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills a buffer from a byte on. The value reaches to the buffer's end.
    pub(crate) fn read_at(&self, device: &Device, at: u64, buffer: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (at, buffer);
        let mut piece = Vec::new();
        let mut ahead = at;
        while !rest.is_empty() {
            let index = (at / PIECE_BYTES as u64) as usize;
            let start = index as u64 * PIECE_BYTES as u64;
            let length = self.piece_bytes(index);
            if at >= ahead {
                ahead = (start + AHEAD_BYTES).min(at + rest.len() as u64);
                self.prefetch(device, start..ahead);
            }
            let skipped = (at - start) as usize;
            let taken = rest.len().min(length - skipped);
            let (part, behind) = rest.split_at_mut(taken);
            if taken == length {
                self.read_piece(device, index, part)?;
            } else {
                piece.resize(length, 0);
                self.read_piece(device, index, &mut piece)?;
                part.copy_from_slice(&piece[skipped..skipped + taken]);
            }
            (at, rest) = (at + taken as u64, behind);
        }
        Ok(())
    }

    /// Reads a whole piece, and checks it.
    pub(crate) fn read_piece(&self, device: &Device, index: usize, piece: &mut [u8]) -> Result<()> {
        let offset = self.place(index as u64 * PIECE_BYTES as u64).0;
        device.copy_to(offset, piece)?;
        if crc32c::crc32c(piece) != self.head.checksums[index] {
            return Err(device.damaged("an extent", offset, Damage::Checksum));
        }
        Ok(())
    }

    /// The place of a byte in the volume, and how many bytes of its extent follow.
    fn place(&self, at: u64) -> (u64, u64) {
        let index = self.starts.partition_point(|start| *start <= at) - 1;
        let (extent, within) = (self.head.list.extents[index], at - self.starts[index]);
        (extent.offset + within, extent.bytes() - within)
    }

    /// Prefetches a part of the value.
    pub(crate) fn prefetch(&self, device: &Device, range: Range<u64>) {
        let mut at = range.start;
        let ranges = std::iter::from_fn(|| {
            let (offset, behind) = (at < range.end).then(|| self.place(at))?;
            let bytes = behind.min(range.end - at);
            at += bytes;
            Some(offset..(offset + bytes).next_multiple_of(BLOCK_BYTES as u64))
        });
        device.prefetch(ranges);
    }
}

/// All extents of a value that a tree has retired, its head included. None if the head is damaged, since only the head lists them. A
/// failed read of the head is an error: a later read may succeed.
pub(crate) fn extents_of_retired(log: &Log, pointer: Pointer) -> Result<Vec<Extent>> {
    let read = || {
        let head = head_of(log, pointer, None)?;
        let bytes = log.read(pointer, |record| record.bytes() as u32)?;
        Ok(head.list.extents.into_iter().chain([head_extent(pointer.offset(), bytes)]).collect())
    };
    match read() {
        Err(error @ Error::Damaged { .. }) => {
            tracing::error!(%error, "the space of a large value stays taken");
            Ok(Vec::new())
        }
        found => found,
    }
}

fn head_of(log: &Log, pointer: Pointer, key: Option<&[u8]>) -> Result<Head> {
    let head = log.read(pointer, |record| {
        // An older head in its place has another seed, or another key.
        if record.kind != RecordKind::Extents || key.is_some_and(|key| record.key != key) {
            return Err(Damage::Foreign);
        }
        Head::from_bytes(record.value)
    })?;
    let device = &log.segment.device;
    let damaged = |damage| device.damaged("the head of a large value", pointer.offset(), damage);
    let head = head.map_err(damaged)?;
    let is_outside = |extent: &&Extent| extent.offset + extent.bytes() > device.len();
    match head.list.extents.iter().find(is_outside) {
        Some(extent) => Err(damaged(Damage::Value { what: "an extent's place", found: extent.offset })),
        None => Ok(head),
    }
}
