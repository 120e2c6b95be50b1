//! Backups of a store that goes on being written to.

use std::io::{Read, Write};

use crate::backup::block::SMALL_VALUE_BYTES_MAX;
use crate::backup::{BackupCounts, BackupWriter, Destination, StoreShape};
use crate::db::Db;
use crate::db::keyspace_snapshot::KeyspaceSnapshot;
use crate::db::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::format::block::random_uuid;

impl Db {
    /// Writes all that the store has at this moment to a stream, from which [`crate::restore`] makes a store again.
    ///
    /// Writers go on meanwhile. The backup shows none of their later writes, and each batch and transaction whole or not at all. It has
    /// a [`Snapshot`] open, which holds the space of what it shows. It takes some 2 MiB of memory.
    ///
    /// `observe` is called after each MiB or less. The stream is whole when this returns without an error: a restore refuses a part of
    /// it. Make it durable yourself.
    ///
    /// # Errors
    ///
    /// [`Error::WriteBackup`] if the stream fails, and what a [`crate::Scan`] returns.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    /// use vmio_kv::{Db, Options};
    ///
    /// let db = Db::create(&path, Options::new())?;
    /// db.put(b"apple", b"red")?;
    /// let mut backup = Vec::new();
    /// let counts = db.backup(&mut backup, |_| {})?;
    /// assert_eq!((counts.keyspaces, counts.records), (1, 1));
    ///
    /// vmio_kv::restore(&backup[..], &copy, Options::new(), |_| {})?;
    /// assert_eq!(Db::open(&copy, Options::new())?.get(b"apple")?.as_deref(), Some(&b"red"[..]));
    /// # db.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn backup(&self, out: impl Write, observe: impl FnMut(&BackupCounts)) -> Result<BackupCounts> {
        // Segments are never removed: after the snapshot there are at least those that it shows.
        let snapshot = self.snapshot();
        snapshot.write_backup(self.shape()?, out, observe)
    }

    /// The parts of the store that no keyspace has.
    pub(super) fn shape(&self) -> Result<StoreShape> {
        let segments = self.segments()?.len() as u32;
        Ok(StoreShape { volume_bytes: self.stats()?.volume_bytes, segments })
    }
}

impl Snapshot {
    fn write_backup(
        &self,
        shape: StoreShape,
        out: impl Write,
        mut observe: impl FnMut(&BackupCounts),
    ) -> Result<BackupCounts> {
        let id = random_uuid().map_err(|source| Error::WriteBackup { offset: 0, source })?;
        let mut writer = BackupWriter::begin(out, id.into_bytes(), shape, &mut observe)?;
        self.copy_to(&mut writer)?;
        writer.end()
    }

    /// Gives all that the snapshot shows to a destination.
    pub(super) fn copy_to(&self, destination: &mut impl Destination) -> Result<()> {
        for (segment, keyspace) in self.by_segment()? {
            destination.begin_keyspace(segment, keyspace.name())?;
            keyspace.copy_to(destination)?;
        }
        Ok(())
    }
}

impl KeyspaceSnapshot {
    fn copy_to(&self, destination: &mut impl Destination) -> Result<()> {
        let mut small = Vec::new();
        for record in self.scan(..).readers() {
            let (key, mut reader) = record?;
            let value_bytes = reader.len();
            if value_bytes > SMALL_VALUE_BYTES_MAX as u64 {
                destination.put_large(&key, value_bytes, &mut reader)?;
                continue;
            }
            small.clear();
            reader.read_to_end(&mut small).map_err(|error| Error::of_reader(error, value_bytes, 0))?;
            destination.put(&key, &small)?;
        }
        Ok(())
    }
}
