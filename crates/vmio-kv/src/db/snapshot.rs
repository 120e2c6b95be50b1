//! Snapshots: views of one moment.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::db::keyspace_handle::{DEFAULT_KEYSPACE, KeyspaceHandle};
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reading::Reading;
use crate::db::scan::Progress;
use crate::db::scan::Scan;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::key_range::KeyRange;
use crate::keyspace::{Keyspace, Version, View};

/// A view of all keyspaces of a store at one moment. It does not show later writes, and shows each batch whole or not at all.
///
/// A `Snapshot` derefs to the snapshot of the default keyspace.
///
/// It delays neither writers nor compactions. While it exists, nothing reuses the space of the records that it shows, so a nearly full
/// store may become full. A memtable that was flushed stays in memory as long as a snapshot shows it.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// db.put(b"state", b"old")?;
/// let snapshot = db.snapshot();
/// db.put(b"state", b"new")?;
/// assert_eq!(snapshot.get(b"state")?.as_deref(), Some(&b"old"[..]));
/// assert_eq!(snapshot.keyspace("default")?.scan(..).count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    default: KeyspaceSnapshot,
    handle: OpenHandle<Keyspaces>,
}

/// The keyspaces that a snapshot shows.
#[derive(Clone)]
pub(super) struct Keyspaces {
    by_name: BTreeMap<String, KeyspaceSnapshot>,
    volume: String,
}

impl Snapshot {
    /// A snapshot of a store with that default keyspace.
    pub(super) fn new(handle: OpenHandle<Keyspaces>, default: &KeyspaceHandle) -> Snapshot {
        let of_default = handle.get().ok().and_then(|keyspaces| keyspaces.by_name.get(DEFAULT_KEYSPACE).cloned());
        Snapshot { default: of_default.unwrap_or_else(|| default.snapshot()), handle }
    }

    /// The snapshot of a keyspace.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`] if there was none of that name.
    pub fn keyspace(&self, name: &str) -> Result<&KeyspaceSnapshot> {
        let Keyspaces { by_name, volume } = self.handle.get()?;
        let no_keyspace = || Error::NoKeyspace { volume: volume.clone(), name: name.to_owned() };
        by_name.get(name).ok_or_else(no_keyspace)
    }

    /// The names of all keyspaces at that moment.
    pub fn keyspace_names(&self) -> Result<impl Iterator<Item = &str>> {
        Ok(self.handle.get()?.by_name.keys().map(String::as_str))
    }
}

impl Keyspaces {
    pub(super) fn now(segments: &Segments) -> Keyspaces {
        // No keyspace is created meanwhile: a batch that writes to it as well would be shown in part.
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

    /// The snapshot of the default keyspace, so that `snapshot.get` reads from it.
    fn deref(&self) -> &KeyspaceSnapshot {
        &self.default
    }
}

/// A view of a keyspace at one moment; see [`Snapshot`] and [`KeyspaceHandle::snapshot`].
#[derive(Clone)]
pub struct KeyspaceSnapshot {
    name: Arc<str>,
    handle: OpenHandle<Shown>,
}

/// A keyspace and the moment that is shown.
#[derive(Clone)]
struct Shown {
    open: OpenKeyspace,
    view: Arc<View>,
}

impl KeyspaceSnapshot {
    pub(super) fn of(keyspace: &KeyspaceHandle) -> Self {
        let handle = keyspace.open_handle(HandleKind::Snapshot, |open| Shown {
            open: open.clone(),
            view: Arc::new(View::begin(&open.keyspace)),
        });
        KeyspaceSnapshot { name: keyspace.name().into(), handle }
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
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

    /// Calls `look` with the value that a key had; see [`KeyspaceHandle::get_ref`].
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
