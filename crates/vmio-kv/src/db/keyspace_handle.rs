//! The handle of a keyspace.

use std::sync::Arc;

use crate::db::keyspace_snapshot::{KeyspaceSnapshot, Shown};
use crate::db::lengths::{check_key, check_value_length};
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::scan::Progress;
use crate::db::scan::Scan;
use crate::durability::Durability;
use crate::error::Result;
use crate::format::record::RecordKind;
use crate::key_range::KeyRange;
use crate::keyspace::View;
use crate::log::LOG_VALUE_BYTES_MAX;

/// The name of the keyspace that every store has.
pub const DEFAULT_KEYSPACE: &str = "default";

/// A handle of a keyspace, which is an independent set of keys.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// let colors = db.keyspace_or_create("colors")?;
/// colors.put(b"apple", b"red")?;
/// colors.put(b"plum", b"blue")?;
/// assert!(colors.contains(b"apple")?);
/// assert_eq!(colors.get_ref(b"apple", |value| value.len())?, Some(3));
/// assert_eq!(colors.multi_get(&["plum", "pear"])?, [Some(b"blue".to_vec()), None]);
/// let keys: Vec<_> = colors.scan(..).keys().collect::<Result<_, _>>()?;
/// assert_eq!(keys, [b"apple".to_vec(), b"plum".to_vec()]);
/// colors.delete(b"apple")?;
/// assert_eq!(colors.get(b"apple")?, None);
/// # Ok(())
/// # }
/// ```
pub struct KeyspaceHandle {
    name: Arc<str>,
    segment: u32,
    pub(super) handle: OpenHandle<OpenKeyspace>,
}

impl KeyspaceHandle {
    pub(super) fn new(handle: OpenHandle<OpenKeyspace>) -> Result<Self> {
        let OpenKeyspace { keyspace, .. } = handle.get()?;
        Ok(KeyspaceHandle { name: keyspace.name.as_str().into(), segment: keyspace.segment(), handle })
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the keyspace's segment.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// The open keyspace; fails in a forked child, and once the keyspace was dropped.
    pub(crate) fn open(&self) -> Result<&OpenKeyspace> {
        let open = self.handle.get()?;
        if open.keyspace.is_dropped() { Err(open.keyspace.gone()) } else { Ok(open) }
    }

    /// Makes another handle of the same store.
    pub(crate) fn open_handle<U>(&self, kind: HandleKind, make: impl FnOnce(&OpenKeyspace) -> U) -> OpenHandle<U> {
        self.handle.map(kind, make)
    }

    /// The same handle, counted as another kind.
    pub(super) fn with_kind(&self, kind: HandleKind) -> Self {
        let handle = self.open_handle(kind, OpenKeyspace::clone);
        KeyspaceHandle { name: Arc::clone(&self.name), segment: self.segment, handle }
    }

    /// The keyspace itself.
    #[cfg(test)]
    pub(crate) fn keyspace(&self) -> &Arc<crate::keyspace::Keyspace> {
        &self.handle.get().expect("the process has opened it").keyspace
    }

    /// Sets a key's value.
    ///
    /// # Errors
    ///
    /// [`Error::Full`](crate::Error::Full) if there is no space; [`Error::KeyLength`](crate::Error::KeyLength) and
    /// [`Error::ValueLength`](crate::Error::ValueLength) if the key or the value is too long.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.open()?.durability())
    }

    /// Sets a key's value, with a durability for this write.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let open = self.open()?;
        check_key(key)?;
        check_value_length(value.len() as u64)?;
        if value.len() > LOG_VALUE_BYTES_MAX {
            return open.put_large(key, value.len() as u64, &mut &*value, durability);
        }
        open.write_one(RecordKind::Put, key, value, durability)
    }

    /// Deletes a key. A key that has no value is no error.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_with(key, self.open()?.durability())
    }

    /// Deletes a key, with a durability for this write.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// use vmio_kv::Durability;
    ///
    /// let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// db.put(b"session", b"open")?;
    /// db.delete_with(b"session", Durability::Periodic(std::time::Duration::from_millis(100)))?;
    /// assert!(!db.contains(b"session")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<()> {
        self.open()?.delete(key, durability)
    }

    /// A view of the keyspace at this moment. It does not show later writes. The view of a dropped keyspace is empty.
    pub fn snapshot(&self) -> KeyspaceSnapshot {
        let shown = |open: &OpenKeyspace| Shown { open: open.clone(), view: Arc::new(View::begin(&open.keyspace)) };
        KeyspaceSnapshot::new(&self.name, self.open_handle(HandleKind::Snapshot, shown))
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let open = self.open()?;
        open.newest(&open.keyspace.current()).get(key)
    }

    /// Calls `look` with a key's value where it lies, and returns the answer. If the key has no value, `look` is not called.
    ///
    /// The value's pages are pinned meanwhile. For long values that is cheaper than a copy; for short ones [`Self::get`] is.
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        let open = self.open()?;
        open.newest(&open.keyspace.current()).get_ref(key, look)
    }

    /// The values of several keys, in their order, all of one moment. It makes their device reads together.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.open()?;
        self.snapshot().multi_get(keys)
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        let open = self.open()?;
        open.newest(&open.keyspace.current()).contains(key)
    }

    /// Iterates over the keys and values of a range in order. It shows one moment, without later writes.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan {
        Scan::new(self.open_handle(HandleKind::Scan, |open| Progress::now(open, range.into())))
    }

    /// Iterates over the keys and values whose keys begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan {
        self.scan(KeyRange::prefix(prefix))
    }
}

impl Clone for KeyspaceHandle {
    fn clone(&self) -> Self {
        self.with_kind(HandleKind::Keyspace)
    }
}

impl std::fmt::Debug for KeyspaceHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "keyspace {:?}", self.name)?;
        self.open().map_or(Ok(()), |open| write!(out, " of {}", open.home.store.device.name()))
    }
}
