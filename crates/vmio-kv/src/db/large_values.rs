//! Values of any length: put from a stream, and read in parts.

use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::keyspace_snapshot::KeyspaceSnapshot;
use crate::db::lengths::{check_key, check_value_length};
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::open_segment::OpenSegment;
use crate::db::reading::Reading;
use crate::db::value_reader::Source;
use crate::db::value_reader::ValueReader;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::extents::{LargeValue, Stored};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::RecordKind;
use crate::keyspace::memtable::{space_for, space_for_large};
use crate::keyspace::{Keyspace, Version};
use crate::log::{Append, LOG_VALUE_BYTES_MAX};
use crate::volume::free_reserve::SpacePriority;

impl OpenSegment {
    /// Writes the bytes of a large value, which no record refers to yet. Where there is no space it grows the volume, or collects garbage.
    pub(super) fn store_value(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        value_bytes: u64,
        source: &mut dyn Read,
    ) -> Result<Stored> {
        self.store.check_writable()?;
        loop {
            // It finds no space before it reads anything from the source.
            let stored = Stored::write(&self.segment, keyspace.number, key, value_bytes, source);
            let Err(Error::Full { volume, wanted, place }) = stored else { return stored };
            // The rest of the last unit may be too short. Others may take the space that comes free, and then more may come free.
            let units = wanted / ALLOCATION_UNIT_BYTES + 1;
            if !self.grow_for(SpacePriority::Put, units) && !self.make_space(SpacePriority::Put, units)? {
                return Err(Error::Full { volume, wanted, place });
            }
        }
    }
}

impl KeyspaceHandle {
    /// Sets a key's value to the next `value_bytes` bytes of `source`, up to 1 GiB.
    ///
    /// A value over 256 KiB goes to the device as the stream is read, and is durable before the log refers to it. It takes 1 MiB of memory.
    ///
    /// # Errors
    ///
    /// [`Error::Source`] if the source fails or ends too early. The key keeps its value then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("picture");
    /// # std::fs::write(&path, vec![7; 3 << 20])?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// let picture = std::fs::File::open(&path)?;
    /// db.put_stream(b"picture", picture.metadata()?.len(), picture)?;
    /// assert_eq!(db.get_range(b"picture", 1 << 20..(1 << 20) + 3)?.as_deref(), Some(&[7, 7, 7][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_stream(&self, key: &[u8], value_bytes: u64, source: impl Read) -> Result<()> {
        self.put_stream_with(key, value_bytes, source, self.open()?.durability())
    }

    /// Sets a key's value from a stream, with a durability for this write.
    pub fn put_stream_with(
        &self,
        key: &[u8],
        value_bytes: u64,
        mut source: impl Read,
        durability: Durability,
    ) -> Result<()> {
        let open = self.open()?;
        check_key(key)?;
        check_value_length(value_bytes)?;
        if value_bytes > LOG_VALUE_BYTES_MAX as u64 {
            return open.put_large(key, value_bytes, &mut source, durability);
        }
        let mut value = vec![0; value_bytes as usize];
        source.read_exact(&mut value).map_err(|source| Error::Source { wanted: value_bytes, read: 0, source })?;
        self.put_with(key, &value, durability)
    }

    /// A part of a key's value. A range that reaches beyond the value's end is cut off there.
    pub fn get_range(&self, key: &[u8], range: impl RangeBounds<u64>) -> Result<Option<Vec<u8>>> {
        let open = self.open()?;
        open.newest(&open.keyspace.version()).get_range(key, range)
    }

    /// A reader of a key's value, like a file: it reads any part. Later writes do not change what it reads. While the reader exists,
    /// nothing reuses the value's space.
    pub fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>> {
        let open = self.open()?;
        let version = open.keyspace.version();
        let source = open.newest(&version).source(key, &version)?;
        source.map(|source| ValueReader::new(self.open_handle(HandleKind::Reader, |_| source))).transpose()
    }
}

impl OpenKeyspace {
    pub(super) fn put_large(
        &self,
        key: &[u8],
        value_bytes: u64,
        source: &mut dyn Read,
        durability: Durability,
    ) -> Result<()> {
        let stored = self.home.store_value(&self.keyspace, key, value_bytes, source)?;
        self.home.write_or_make_space(SpacePriority::Put, || self.try_put_stored(key, &stored, durability))
    }

    fn try_put_stored(&self, key: &[u8], stored: &Stored, durability: Durability) -> Result<()> {
        let home = &self.home;
        let bytes = self.keyspace.space_to_begin() + space_for(key) + space_for_large(stored.record());
        let admitted = home.admit(bytes)?;
        let turn = self.keyspace.begin_write()?;
        let (kind, keyspace, value) = (RecordKind::Extents, self.keyspace.number, stored.record_value());
        let at = home.log.append_one_record(&Append { kind, keyspace, key, value }, SpacePriority::Put)?;
        let pointer = stored.keep(at.pointer);
        let has_many = turn.add_large(stored.record());
        let is_full = turn.put(key, at.sequence, pointer) || has_many;
        drop(turn);
        drop(admitted);
        if is_full && self.keyspace.rotate_memtable() {
            home.store.compactions.put(&self.keyspace);
        }
        home.slow_down(1, u64::from(at.pointer.record_bytes()));
        home.log.keep(durability, at.sequence + 1)
    }
}

impl KeyspaceSnapshot {
    /// A part of the value that a key had; see [`KeyspaceHandle::get_range`].
    pub fn get_range(&self, key: &[u8], range: impl RangeBounds<u64>) -> Result<Option<Vec<u8>>> {
        self.reading()?.0.get_range(key, range)
    }

    /// A reader of the value that a key had; see [`KeyspaceHandle::reader`].
    pub fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>> {
        let (reading, version) = self.reading()?;
        let source = reading.source(key, version)?;
        source.map(|source| ValueReader::new(self.open_handle(HandleKind::Reader, source))).transpose()
    }
}

impl Reading<'_> {
    /// All of a value, be it in its record or in extents.
    pub(super) fn value(&self, key: &[u8], pointer: Pointer) -> Result<Vec<u8>> {
        let log = &self.keyspace.log;
        if pointer.kind() == PointerKind::Extents {
            return LargeValue::open(log, pointer, key)?.read(&log.segment.device, 0..u64::MAX);
        }
        log.read(pointer, |record| record.value.to_vec())
    }

    /// A value, to be read in parts.
    fn source(&self, key: &[u8], version: &Arc<Version>) -> Result<Option<Source>> {
        let Some(pointer) = self.find(key)? else { return Ok(None) };
        let log = &self.keyspace.log;
        Ok(Some(match pointer.kind() {
            PointerKind::Extents => Source::large(log, version, LargeValue::open(log, pointer, key)?),
            _ => Source::small(log, version, self.value(key, pointer)?),
        }))
    }

    fn get_range(&self, key: &[u8], range: impl RangeBounds<u64>) -> Result<Option<Vec<u8>>> {
        let Some(pointer) = self.find(key)? else { return Ok(None) };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let log = &self.keyspace.log;
        if pointer.kind() == PointerKind::Extents {
            return LargeValue::open(log, pointer, key)?.read(&log.segment.device, start..end).map(Some);
        }
        log.read(pointer, |record| {
            let length = record.value.len() as u64;
            let (start, end) = (start.min(length) as usize, end.min(length) as usize);
            Some(record.value.get(start..end).unwrap_or_default().to_vec())
        })
    }
}
