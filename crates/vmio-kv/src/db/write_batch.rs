//! Writes that are applied atomically.

use std::sync::Arc;

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::lengths::{check_key, check_value_length};
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::open_segment::OpenSegment;
use crate::db::operation::Operation;
use crate::error::{Error, Result};
use crate::format::record::RecordKind;

/// Writes that are applied atomically: after a crash all of them are there, or none.
///
/// A batch may write to several keyspaces of one segment.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Options, WriteBatch};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// let index = db.keyspace_or_create("by name")?;
/// let mut batch = WriteBatch::new();
/// batch.put(&db, b"7", b"Ada")?;
/// batch.put(&index, b"Ada", b"7")?;
/// batch.delete(&db, b"6")?;
/// assert_eq!(batch.len(), 3);
/// db.write(&batch)?;
/// assert_eq!(index.get(b"Ada")?.as_deref(), Some(&b"7"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct WriteBatch {
    /// The writes, once there are any.
    writes: Option<OpenHandle<Writes>>,
    count: usize,
}

/// Writes to keyspaces of one segment.
pub(crate) struct Writes {
    pub(crate) home: Arc<OpenSegment>,
    pub(crate) operations: Vec<Operation>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put. A value over 256 KiB is written on its own before the batch is.
    ///
    /// # Errors
    ///
    /// [`Error::BatchAcrossSegments`] if the keyspace is in another segment than those before it, [`Error::KeyLength`], [`Error::ValueLength`];
    /// nothing is added then.
    pub fn put(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) -> Result<()> {
        check_value_length(value.len() as u64)?;
        self.add(keyspace, RecordKind::Put, key, value)
    }

    /// Adds a deletion.
    ///
    /// # Errors
    ///
    /// [`Error::BatchAcrossSegments`] if the keyspace is in another segment than those before it, [`Error::KeyLength`]; nothing is added then.
    pub fn delete(&mut self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<()> {
        self.add(keyspace, RecordKind::Delete, key, &[])
    }

    fn add(&mut self, handle: &KeyspaceHandle, kind: RecordKind, key: &[u8], value: &[u8]) -> Result<()> {
        let OpenKeyspace { home, keyspace } = handle.open()?;
        check_key(key)?;
        let none = |open: &OpenKeyspace| Writes { home: Arc::clone(&open.home), operations: Vec::new() };
        let writes = self.writes.get_or_insert_with(|| handle.open_handle(HandleKind::Batch, none)).get_mut()?;
        if !Arc::ptr_eq(&writes.home, home) {
            let first = writes.operations.first().map_or_else(String::new, |first| first.keyspace.name.clone());
            return Err(Error::BatchAcrossSegments { first, second: handle.name().to_owned() });
        }
        let keyspace = Arc::clone(keyspace);
        writes.operations.push(Operation { keyspace, kind, key: key.into(), value: value.into() });
        self.count += 1;
        Ok(())
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The writes, if there are any.
    pub(crate) fn writes(&self) -> Result<Option<&Writes>> {
        self.writes.as_ref().map(OpenHandle::get).transpose()
    }
}
