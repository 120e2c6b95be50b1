//! Writes that count together or not at all.

use std::sync::Arc;

use crate::db::{OpenHandle, HandleKind, OpenKeyspace, OpenSegment, KeyspaceHandle, check_key, check_value_length};
use crate::error::{Error, Result};
use crate::extents::Stored;
use crate::format::record::RecordKind;
use crate::log::Append;
use crate::keyspace::Keyspace;

/// Writes to any keyspaces of one segment: after a crash all of them are there, or none.
#[derive(Default)]
pub struct WriteBatch {
    /// What it has, once it has any.
    writes: Option<OpenHandle<Writes>>,
    count: usize,
}

/// Writes to keyspaces of one segment.
pub(crate) struct Writes {
    pub(crate) home: Arc<OpenSegment>,
    pub(crate) operations: Vec<Operation>,
}

pub(crate) struct Operation {
    pub(crate) keyspace: Arc<Keyspace>,
    kind: RecordKind,
    key: Box<[u8]>,
    value: Box<[u8]>,
}

impl Operation {
    pub(crate) fn append(&self) -> Append<'_> {
        Append { kind: self.kind, keyspace: self.keyspace.number, key: &self.key, value: &self.value }
    }

    /// The same, of a value that was `stored` if it is large.
    pub(crate) fn append_as<'bytes>(&'bytes self, stored: Option<&'bytes Stored>) -> Append<'bytes> {
        match stored {
            Some(stored) => Append { kind: RecordKind::Extents, value: stored.record_value(), ..self.append() },
            None => self.append(),
        }
    }
}

impl WriteBatch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a key's value. One over 256 KiB is written on its own before the batch is. If the keyspace is in another segment
    /// than those before it, that is [`Error::BatchAcrossSegments`], and nothing is added.
    pub fn put(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) -> Result<()> {
        check_value_length(value.len() as u64)?;
        self.add(keyspace, RecordKind::Put, key, value)
    }

    /// Adds the deletion of a key. The same goes for the keyspace.
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

    /// How many writes it has.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What it has, if it has any.
    pub(crate) fn writes(&self) -> Result<Option<&Writes>> {
        self.writes.as_ref().map(OpenHandle::get).transpose()
    }
}
