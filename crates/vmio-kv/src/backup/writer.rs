//! Writes a backup.

use std::io::{Read, Write};

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U32, U64};

use crate::backup::block::{
    BackupId, BlockKind, CONTENTS_BYTES_MAX, EndContents, HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader,
    StoreContents, seal, start,
};
use crate::backup::{BackupCounts, Destination, StoreShape};
use crate::error::{Error, Result};

/// Writes the contents of a store to a stream, block by block. It has one block in memory.
pub(crate) struct BackupWriter<'observer, W> {
    out: W,
    id: BackupId,
    /// The next block's number.
    number: u64,
    /// The next block, with space for its header in front.
    block: Vec<u8>,
    counts: BackupCounts,
    observe: &'observer mut dyn FnMut(&BackupCounts),
}

impl<'observer, W: Write> BackupWriter<'observer, W> {
    /// Begins a backup. `observe` is called after each block.
    pub(crate) fn begin(
        out: W,
        id: BackupId,
        shape: StoreShape,
        observe: &'observer mut dyn FnMut(&BackupCounts),
    ) -> Result<Self> {
        let mut block = Vec::with_capacity(HEADER_BYTES + CONTENTS_BYTES_MAX);
        block.resize(HEADER_BYTES, 0);
        let mut writer = BackupWriter { out, id, number: 0, block, counts: BackupCounts::default(), observe };
        let start = start(id);
        writer.out.write_all(&start).map_err(|source| Error::WriteBackup { offset: 0, source })?;
        writer.counts.stream_bytes = start.len() as u64;
        let StoreShape { volume_bytes, segments } = shape;
        let (volume_bytes, segments) = (U64::new(volume_bytes), U32::new(segments));
        writer.write(BlockKind::Store, &[StoreContents { volume_bytes, segments, zeros: U32::ZERO }.as_bytes()])?;
        Ok(writer)
    }

    /// Completes the backup, and flushes the stream.
    pub(crate) fn end(mut self) -> Result<BackupCounts> {
        self.end_records()?;
        let BackupCounts { keyspaces, records, key_bytes, value_bytes, .. } = self.counts;
        let [keyspaces, records, key_bytes, value_bytes] = [keyspaces, records, key_bytes, value_bytes].map(U64::new);
        self.write(BlockKind::End, &[EndContents { keyspaces, records, key_bytes, value_bytes }.as_bytes()])?;
        let offset = self.counts.stream_bytes;
        self.out.flush().map_err(|source| Error::WriteBackup { offset, source })?;
        Ok(self.counts)
    }

    /// Writes a block of these contents.
    fn write(&mut self, kind: BlockKind, contents: &[&[u8]]) -> Result<()> {
        self.end_records()?;
        contents.iter().for_each(|part| self.block.extend_from_slice(part));
        self.end_block(kind)
    }

    /// Writes the records that wait for others.
    fn end_records(&mut self) -> Result<()> {
        if self.block.len() > HEADER_BYTES { self.end_block(BlockKind::Records) } else { Ok(()) }
    }

    fn end_block(&mut self, kind: BlockKind) -> Result<()> {
        seal(&mut self.block, kind, &self.id, self.number);
        let offset = self.counts.stream_bytes;
        self.out.write_all(&self.block).map_err(|source| Error::WriteBackup { offset, source })?;
        self.counts.stream_bytes += self.block.len() as u64;
        self.number += 1;
        self.block.truncate(HEADER_BYTES);
        (self.observe)(&self.counts);
        Ok(())
    }
}

impl<W: Write> Destination for BackupWriter<'_, W> {
    fn begin_keyspace(&mut self, segment: u32, name: &str) -> Result<()> {
        self.end_records()?;
        self.counts.keyspaces += 1;
        self.write(BlockKind::Keyspace, &[&segment.to_le_bytes(), name.as_bytes()])
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = RECORD_HEADER_BYTES + key.len() + value.len();
        if self.block.len() + bytes > HEADER_BYTES + CONTENTS_BYTES_MAX {
            self.end_records()?;
        }
        let [key_bytes, value_bytes] = [key.len(), value.len()].map(|bytes| U32::new(bytes as u32));
        self.block.extend_from_slice(RecordHeader { key_bytes, value_bytes }.as_bytes());
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.counts.add_record(key.len(), value.len() as u64);
        Ok(())
    }

    fn put_large(&mut self, key: &[u8], value_bytes: u64, source: &mut dyn Read) -> Result<()> {
        self.end_records()?;
        self.counts.add_record(key.len(), value_bytes);
        self.write(BlockKind::Large, &[&value_bytes.to_le_bytes(), key])?;
        let mut left = value_bytes;
        while left > 0 {
            let part = left.min(CONTENTS_BYTES_MAX as u64) as usize;
            self.block.resize(HEADER_BYTES + part, 0);
            let read = source.read_exact(&mut self.block[HEADER_BYTES..]);
            read.map_err(|source| Error::of_reader(source, value_bytes, value_bytes - left))?;
            left -= part as u64;
            self.end_block(BlockKind::Part)?;
        }
        Ok(())
    }
}
