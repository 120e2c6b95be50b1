//! The snapshot of a keyspace.

use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reading::Reading;
use crate::db::scan::{Progress, Scan};
use crate::error::Result;
use crate::key_range::KeyRange;
use crate::keyspace::{Version, View};

/// A view of a keyspace at one moment; see [`crate::Snapshot`] and [`crate::KeyspaceHandle::snapshot`].
#[derive(Clone)]
pub struct KeyspaceSnapshot {
    name: Arc<str>,
    handle: OpenHandle<Shown>,
}

/// A keyspace and the moment that is shown.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) open: OpenKeyspace,
    pub(super) view: Arc<View>,
}

impl KeyspaceSnapshot {
    pub(super) fn new(name: &str, handle: OpenHandle<Shown>) -> Self {
        KeyspaceSnapshot { name: name.into(), handle }
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the keyspace's segment.
    pub(super) fn segment(&self) -> Result<u32> {
        Ok(self.handle.get()?.open.keyspace.segment())
    }

    /// The reads of the moment, and its version.
    pub(super) fn reading(&self) -> Result<(Reading<'_>, &Arc<Version>)> {
        let Shown { open, view } = self.handle.get()?;
        Ok((Reading { keyspace: &open.keyspace, version: &view.version, before: view.before }, &view.version))
    }

    /// Makes another handle of the same store.
    pub(super) fn open_handle<U>(&self, kind: HandleKind, value: U) -> OpenHandle<U> {
        self.handle.map(kind, |_| value)
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.reading()?.0.get(key)
    }

    /// Calls `look` with the value that a key had; see [`crate::KeyspaceHandle::get_ref`].
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.reading()?.0.get_ref(key, look)
    }

    /// The values that several keys had; see [`crate::KeyspaceHandle::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reading()?.0.multi_get(keys)
    }

    /// Whether a key had a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.reading()?.0.contains(key)
    }

    /// Iterates over the keys and values of a range in order.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan {
        Scan::new(
            self.handle.map(HandleKind::Scan, |Shown { open, view }| {
                Progress::new(open.clone(), Arc::clone(view), range.into())
            }),
        )
    }

    /// Iterates over the keys and values whose keys begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan {
        self.scan(KeyRange::prefix(prefix))
    }
}

impl std::fmt::Debug for KeyspaceSnapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of keyspace {:?}", self.name)
    }
}
