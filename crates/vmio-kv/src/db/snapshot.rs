//! Snapshots: views of one moment.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::db::keyspace_handle::{DEFAULT_KEYSPACE, KeyspaceHandle};
use crate::db::keyspace_snapshot::{KeyspaceSnapshot, Shown};
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, View};

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

    /// All keyspaces with the numbers of their segments, in the order of these and of their names.
    pub(super) fn by_segment(&self) -> Result<Vec<(u32, &KeyspaceSnapshot)>> {
        let by_name = &self.handle.get()?.by_name;
        let numbered = by_name.values().map(|keyspace| Ok((keyspace.segment()?, keyspace)));
        let mut keyspaces: Vec<_> = numbered.collect::<Result<_>>()?;
        // The names are in order already.
        keyspaces.sort_by_key(|(segment, _)| *segment);
        Ok(keyspaces)
    }
}

impl Keyspaces {
    pub(super) fn now(segments: &Segments) -> Keyspaces {
        let of_keyspace = |(keyspace, view): (Arc<Keyspace>, View)| {
            let shown = || Shown { open: segments.open_keyspace(&keyspace), view: Arc::new(view) };
            let handle = segments.store().open_handle(HandleKind::Snapshot, shown);
            let snapshot = KeyspaceSnapshot::new(&keyspace.name, handle);
            (keyspace.name.clone(), snapshot)
        };
        let by_name = segments.views().into_iter().map(of_keyspace).collect();
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

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of the store")?;
        self.handle.get().map_or(Ok(()), |keyspaces| write!(out, " in {}", keyspaces.volume))
    }
}
