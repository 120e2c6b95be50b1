//! Points in time, to be read as long as they are held.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reading::Reading;
use crate::db::scan::Progress;
use crate::db::segments::Segments;
use crate::db::{DEFAULT_KEYSPACE, HandleKind, KeyspaceHandle, Scan};
use crate::error::{Error, Result};
use crate::key_range::KeyRange;
use crate::keyspace::{Keyspace, Version, View};

/// All keyspaces of a store, in whichever segments, as they were at one moment: what was written later is not seen, and of a batch all or
/// nothing.
///
/// It holds up neither writers nor compactions. As long as it is there, the space of what it shows is not used again, be that
/// overwritten or deleted: a nearly full store may become full by it, and a memtable that was flushed stays in memory.
#[derive(Clone)]
pub struct Snapshot {
    default: KeyspaceSnapshot,
    handle: OpenHandle<Keyspaces>,
}

/// What a snapshot shows.
#[derive(Clone)]
pub(super) struct Keyspaces {
    by_name: BTreeMap<String, KeyspaceSnapshot>,
    volume: String,
}

impl Snapshot {
    /// Of a store whose first keyspace this is.
    pub(super) fn new(handle: OpenHandle<Keyspaces>, default: &KeyspaceHandle) -> Snapshot {
        let of_default = handle.get().ok().and_then(|keyspaces| keyspaces.by_name.get(DEFAULT_KEYSPACE).cloned());
        Snapshot { default: of_default.unwrap_or_else(|| default.snapshot()), handle }
    }

    /// A keyspace by its name, if it was there.
    pub fn keyspace(&self, name: &str) -> Result<&KeyspaceSnapshot> {
        let Keyspaces { by_name, volume } = self.handle.get()?;
        let no_keyspace = || Error::NoKeyspace { volume: volume.clone(), name: name.to_owned() };
        by_name.get(name).ok_or_else(no_keyspace)
    }

    /// The names of all keyspaces that were there.
    pub fn keyspace_names(&self) -> Result<impl Iterator<Item = &str>> {
        Ok(self.handle.get()?.by_name.keys().map(String::as_str))
    }
}

impl Keyspaces {
    pub(super) fn now(segments: &Segments) -> Keyspaces {
        // No keyspace is created meanwhile: a batch that writes to it as well would be seen in part.
        let named = segments.store().keyspaces();
        let mut keyspaces: Vec<&Arc<Keyspace>> = named.values().collect();
        keyspaces.sort_unstable_by_key(|keyspace| (keyspace.segment(), keyspace.number));
        let views = View::begin_all(keyspaces.iter().map(|keyspace| &***keyspace));
        let of_keyspace = |(keyspace, view): (&Arc<Keyspace>, View)| {
            let shown = || Shown { open: segments.open_keyspace(keyspace), view: Arc::new(view) };
            let snapshot = KeyspaceSnapshot {
                name: keyspace.name.as_str().into(),
                handle: segments.store().open_handle(HandleKind::Snapshot, shown),
            };
            (keyspace.name.clone(), snapshot)
        };
        let by_name = keyspaces.into_iter().zip(views).map(of_keyspace).collect();
        Keyspaces { by_name, volume: segments.store().device.name().to_owned() }
    }
}

impl Deref for Snapshot {
    type Target = KeyspaceSnapshot;

    /// The keyspace that is there from the start: so `snapshot.get` looks there.
    fn deref(&self) -> &KeyspaceSnapshot {
        &self.default
    }
}

/// A keyspace as it was at one moment; see [`Snapshot`].
#[derive(Clone)]
pub struct KeyspaceSnapshot {
    name: Arc<str>,
    handle: OpenHandle<Shown>,
}

/// A keyspace, and the moment that is shown.
#[derive(Clone)]
struct Shown {
    open: OpenKeyspace,
    view: Arc<View>,
}

impl KeyspaceSnapshot {
    pub(super) fn of(handle: &KeyspaceHandle) -> Self {
        let handle = handle
            .open_handle(HandleKind::Snapshot, |open| Shown { open: open.clone(), view: Arc::new(View::begin(&open.keyspace)) });
        KeyspaceSnapshot { name: handle.name().into(), handle }
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is read, and the version that it reads.
    pub(super) fn reading(&self) -> Result<(Reading<'_>, &Arc<Version>)> {
        let Shown { open, view } = self.handle.get()?;
        Ok((Reading { keyspace: &open.keyspace, version: &view.version, before: view.before }, &view.version))
    }

    /// Something else that is held of the same store.
    pub(super) fn open_handle<U>(&self, kind: HandleKind, value: U) -> OpenHandle<U> {
        self.handle.map(kind, |_| value)
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.reading()?.0.get(key)
    }

    /// Has `look` see the value that a key had; see [`KeyspaceHandle::get_ref`].
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.reading()?.0.get_ref(key, look)
    }

    /// The values that several keys had; see [`KeyspaceHandle::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reading()?.0.multi_get(keys)
    }

    /// Whether a key had a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.reading()?.0.contains(key)
    }

    /// Keys and values of a range in order.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan {
        Scan::new(
            self.handle
                .map(HandleKind::Scan, |Shown { open, view }| Progress::new(open.clone(), Arc::clone(view), range.into())),
        )
    }

    /// The same of the keys that begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan {
        self.scan(KeyRange::prefix(prefix))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of the store")?;
        self.handle.get().map_or(Ok(()), |keyspaces| write!(out, " in {}", keyspaces.volume))
    }
}

impl std::fmt::Debug for KeyspaceSnapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of keyspace {:?}", self.name)
    }
}
