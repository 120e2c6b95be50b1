//! A store that gets its contents, and then its name: a crash before that leaves nothing.

use std::io::{self, Read};
use std::path::Path;

use vmio::backing::NewFile;

use crate::backup::{Destination, StoreShape};
use crate::db::Db;
use crate::db::creation::is_open_error;
use crate::db::keyspace_handle::KeyspaceHandle;
use crate::device::VolumeFile;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::options::Options;

/// A new store without a name. Its drop without [`Self::publish`] deletes it.
pub(super) struct NewStore {
    // Before the file: it goes with the last handle.
    keyspace: KeyspaceHandle,
    db: Db,
    file: NewFile,
}

impl NewStore {
    /// Creates an empty store with those segments, which will be at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::FileExists`] if anything is there.
    pub(super) fn begin(path: &Path, shape: StoreShape, options: Options) -> Result<Self> {
        let (options, length) = options.of_copy(shape.volume_bytes, shape.segments);
        options.check_creates()?;
        check_absent(path)?;
        crate::volume::check_length(length)?;
        let bytes = options.new_volume_bytes() / ALLOCATION_UNIT_BYTES * ALLOCATION_UNIT_BYTES;
        let cache = options.cache()?;
        let file = NewFile::create(path, bytes)?;
        let volume = VolumeFile::of_new(&cache, &file)?;
        let db = Db::create_in(&cache, volume.backing, options.discard_unless_said(true))?;
        for _ in 1..shape.segments {
            db.create_segment()?;
        }
        if db.stats()?.volume_bytes + ALLOCATION_UNIT_BYTES <= length {
            db.grow(length)?;
        }
        Ok(NewStore { keyspace: db.default_keyspace().clone(), db, file })
    }

    /// Makes the contents durable, and gives the file its name. The next opening reads nothing from the log.
    ///
    /// # Errors
    ///
    /// [`Error::FileExists`] if another file has the name by now.
    pub(super) fn publish(self, path: &Path) -> Result<()> {
        let NewStore { keyspace, db, file } = self;
        drop(keyspace);
        db.flush()?;
        db.close()?;
        publish(file, path)
    }
}

impl Destination for NewStore {
    fn begin_keyspace(&mut self, segment: u32, name: &str) -> Result<()> {
        self.keyspace = self.db.segment(segment)?.keyspace_or_create(name)?;
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put_with(key, value, Durability::None)
    }

    fn put_large(&mut self, key: &[u8], value_bytes: u64, source: &mut dyn Read) -> Result<()> {
        self.keyspace.put_stream_with(key, value_bytes, source, Durability::None)
    }
}

/// Fails if there is anything at a path.
pub(super) fn check_absent(path: &Path) -> Result<()> {
    // A link that leads nowhere is followed later, as creations do.
    match path.exists() {
        true => Err(exists(path)),
        false => Ok(()),
    }
}

/// Gives a file its name, unless something has it by now.
pub(super) fn publish(file: NewFile, path: &Path) -> Result<()> {
    file.publish().map_err(|error| match is_open_error(&error, io::ErrorKind::AlreadyExists) {
        true => exists(path),
        false => error.into(),
    })
}

fn exists(path: &Path) -> Error {
    Error::FileExists { path: path.display().to_string() }
}
