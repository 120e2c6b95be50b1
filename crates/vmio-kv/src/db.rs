//! A store: a volume's segments, each with its log and its keyspaces, and the threads that compact.

mod backup;
mod checkpoint;
mod collector;
mod compaction_queue;
mod compactor;
mod compare_and_set;
mod condition;
mod creation;
mod ends;
mod growth;
mod keyspace_handle;
mod keyspace_snapshot;
mod large_values;
mod lengths;
mod memory_balance;
mod new_store;
mod open_handle;
mod open_handles;
mod open_keyspace;
mod open_segment;
mod opened;
mod operation;
mod reading;
mod records_apart;
mod recovered_records;
mod recovery;
mod removal;
mod reorganization;
mod restore;
mod scan;
mod scanned_records;
mod segment_handle;
mod segments;
mod snapshot;
mod stats;
mod store;
mod transaction;
mod value_reader;
mod write_batch;

use std::path::Path;
use std::sync::Arc;

use vmio::Cache;
use vmio::backing::{Access, Backing};

use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::{HandleKind, OpenHandles};
use crate::db::opened::Opened;
use crate::db::write_batch::Writes;
use crate::device::{Device, TakeoverBacking, VolumeFile};
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::keyspace::Keyspace;
use crate::options::Options;
use crate::volume::Volume;
pub use keyspace_handle::{DEFAULT_KEYSPACE, KeyspaceHandle};
pub use keyspace_snapshot::KeyspaceSnapshot;
pub use lengths::{KEY_BYTES_MAX, VALUE_LENGTH_MAX};
pub use recovery::Recovery;
pub use restore::restore;
pub use scan::{Keys, Readers, Scan};
pub use segment_handle::SegmentHandle;
pub use snapshot::Snapshot;
pub use stats::{SegmentStats, Stats};
pub use transaction::{Savepoint, Transaction, TransactionScan};
pub use value_reader::ValueReader;
pub use write_batch::WriteBatch;

/// A persistent key-value store.
///
/// A `Db` derefs to the handle of its default keyspace, so that `db.put` and `db.get` work on that one.
///
/// Threads may share it. Writers to one keyspace take turns. Readers wait for the device alone.
///
/// A clone refers to the same store. The store closes with the drop of its last clone, or with a call of [`Self::close`] on any clone.
///
/// In a forked child each call returns [`Error::Forked`], and drops do nothing.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("store");
/// use vmio_kv::{Db, Options};
///
/// let db = Db::open_or_create(&path, Options::new())?;
/// let colors = db.keyspace_or_create("colors")?;
/// colors.put(b"apple", b"red")?;
/// db.put(b"apple", b"fruit")?;
/// assert_eq!(colors.get(b"apple")?.as_deref(), Some(&b"red"[..]));
/// assert_eq!(db.keyspace_names()?, ["colors", "default"]);
/// db.close()?;
/// # Ok(())
/// # }
/// ```
pub struct Db {
    default: KeyspaceHandle,
    recovery: Recovery,
    handle: OpenHandle<Arc<Opened>>,
}

impl Db {
    /// Opens a store and recovers all that was durable.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`] if the file holds no store; [`Error::StillOpen`] if this process has it open; [`Error::Damaged`] if a block is
    /// damaged and has no good copy.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let access = if options.reads_only() { Access::ReadOnly } else { Access::ReadWrite };
        let cache = options.cache()?;
        let file = VolumeFile::open(&cache, path.as_ref(), access)?;
        Self::open_in(&cache, file.backing, options.discard_unless_said(!file.is_device))
    }

    /// Opens the store on a backing; see [`Self::open`].
    pub fn open_on(backing: impl Backing + 'static, options: Options) -> Result<Db> {
        Self::open_in(&options.cache()?, Arc::new(backing), options)
    }

    fn open_in(cache: &Cache, backing: Arc<dyn Backing>, options: Options) -> Result<Db> {
        let device = Self::map(cache, backing, &options)?;
        Self::start(Volume::open(device)?, options)
    }

    fn map(cache: &Cache, backing: Arc<dyn Backing>, options: &Options) -> Result<Arc<Device>> {
        let backing = if options.takes_over() { Arc::new(TakeoverBacking(backing)) } else { backing };
        let identity = backing.identity();
        let device = Device::open(cache, backing, options.volume_bytes_max()).map_err(|error| {
            let handles = identity.and_then(OpenHandles::in_words);
            match (error, handles) {
                (Error::Io(vmio::Error::AlreadyMapped { backing: volume, .. }), Some(handles)) => {
                    Error::StillOpen { volume, handles }
                }
                (error, _) => error,
            }
        })?;
        Ok(Arc::new(device.with_filters(options.bytes_of_filters()).observed_by(options.page_observer())))
    }

    fn start(volume: Volume, options: Options) -> Result<Db> {
        let (opened, recovery) = Opened::start(volume, options)?;
        let default = opened.segments.keyspace_or_create(DEFAULT_KEYSPACE, None)?;
        let handle = default.open_handle(HandleKind::Db, |_| Arc::new(opened));
        let default = default.with_kind(HandleKind::Db);
        handle.get()?.begin_upkeep()?;
        Ok(Db { default, recovery, handle })
    }

    /// The open store; fails in a forked child.
    fn opened(&self) -> Result<&Opened> {
        self.handle.get().map(|opened| &**opened)
    }

    /// Returns the figures of the recovery when the store was opened.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// The keyspace that every store has.
    pub fn default_keyspace(&self) -> &KeyspaceHandle {
        &self.default
    }

    /// The keyspace of a name, in whichever segment it is.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`] if there is none.
    pub fn keyspace(&self, name: &str) -> Result<KeyspaceHandle> {
        let segments = &self.opened()?.segments;
        let no_keyspace =
            || Error::NoKeyspace { volume: segments.store().device.name().to_owned(), name: name.to_owned() };
        segments.keyspace(name)?.ok_or_else(no_keyspace)
    }

    /// The keyspace of a name. If there is none, it is created durably in the first segment; [`SegmentHandle::keyspace_or_create`] creates
    /// it in another.
    pub fn keyspace_or_create(&self, name: &str) -> Result<KeyspaceHandle> {
        self.opened()?.segments.keyspace_or_create(name, None)
    }

    /// Creates a segment, durably. It has a log of its own, and space of its own that grows as needed.
    ///
    /// Give keyspaces their own segment if they must not share a log with others; see [`SegmentHandle`].
    ///
    /// A segment takes 64 MiB of allocation units that no other segment has, and as much as a compaction may need. The volume grows by
    /// that. The segment also takes 8 MiB of [`Options::memory_bytes`].
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if [`Options::max_volume_bytes`] does not allow the growth.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("store");
    /// use vmio_kv::{Db, Error, Options, WriteBatch};
    ///
    /// let db = Db::create(&path, Options::new().volume_bytes(256 << 20).max_volume_bytes(1 << 30))?;
    /// let archive = db.create_segment()?;
    /// let old = archive.keyspace_or_create("old orders")?;
    /// old.put(b"1", b"paid")?;
    /// assert_eq!(db.keyspace("old orders")?.segment(), archive.number());
    /// assert_eq!(db.segments()?.len(), 2);
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.delete(&old, b"1")?;
    /// assert!(matches!(batch.put(&db, b"1", b"open"), Err(Error::BatchAcrossSegments { .. })));
    /// # db.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_segment(&self) -> Result<SegmentHandle> {
        self.opened()?.create_segment()
    }

    /// All segments in the order of their numbers. Every store has the first one, number 0.
    pub fn segments(&self) -> Result<Vec<SegmentHandle>> {
        Ok(SegmentHandle::of_all(&self.opened()?.segments))
    }

    /// The segment of a number.
    ///
    /// # Errors
    ///
    /// [`Error::NoSegment`] if there is none.
    pub fn segment(&self, number: u32) -> Result<SegmentHandle> {
        let segments = &self.opened()?.segments;
        let no_segment = || Error::NoSegment { volume: segments.store().device.name().to_owned(), number };
        SegmentHandle::of_all(segments).into_iter().find(|segment| segment.number() == number).ok_or_else(no_segment)
    }

    /// The names of all keyspaces.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        Ok(self.opened()?.segments.store().keyspaces().keys().cloned().collect())
    }

    /// Writes a batch atomically: after a crash all of its writes are there, or none.
    ///
    /// # Errors
    ///
    /// [`Error::BatchAcrossSegments`] if the batch was made for another store.
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.write_with(batch, self.default.open()?.durability())
    }

    /// Writes a batch atomically, with a durability for this write.
    pub fn write_with(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let store = self.opened()?.segments.store();
        let Some(Writes { home, operations }) = batch.writes()? else { return Ok(()) };
        if !Arc::ptr_eq(&home.store, store) {
            let second = operations.first().map_or_else(String::new, |first| first.keyspace.name.clone());
            return Err(Error::BatchAcrossSegments { first: self.default.name().to_owned(), second });
        }
        home.write(operations, durability)
    }

    /// A view of all keyspaces at one moment. It does not show later writes, and shows each batch whole or not at all.
    pub fn snapshot(&self) -> Snapshot {
        let now = |opened: &Arc<Opened>| snapshot::Keyspaces::now(&opened.segments);
        Snapshot::new(self.handle.map(HandleKind::Snapshot, now), &self.default)
    }

    /// Makes durable all writes to all segments that returned before this call.
    pub fn sync(&self) -> Result<()> {
        self.opened()?.segments.sync()
    }

    /// Flushes all memtables, and returns once their contents are durable. The next opening reads back nothing that was written before this
    /// call.
    pub fn flush(&self) -> Result<()> {
        let segments = &self.opened()?.segments;
        let store = segments.store();
        store.check_writable()?;
        let keyspaces: Vec<Arc<Keyspace>> = store.keyspaces().values().cloned().collect();
        let rotate = |keyspace: &Arc<Keyspace>| {
            if keyspace.rotate_memtable() {
                store.compactions.put(keyspace);
            }
        };
        // Later writes are for the next flush.
        let targets: Vec<u64> = keyspaces.iter().map(|keyspace| keyspace.memtables_so_far()).collect();
        keyspaces.iter().for_each(rotate);
        for (keyspace, target) in keyspaces.iter().zip(targets) {
            loop {
                let flushed = keyspace.flushed_memtables();
                if flushed >= target {
                    break;
                }
                // An older immutable memtable may wait for its flush, or its flush may have found no space. Then this memtable becomes
                // immutable behind the older one.
                rotate(keyspace);
                segments.of(keyspace).wait_for_flush_after(keyspace, flushed)?;
            }
        }
        self.sync()
    }

    /// Collects garbage of the logs until they are within [`Options::max_space_amplification`], or until no more can be gained.
    ///
    /// The store collects garbage in the background as well. This call is thorough: it flushes all memtables first, and merges all levels
    /// where only a merge finds garbage. A chunk that a snapshot or a scan still reads comes free with the drop of that snapshot or scan.
    pub fn collect_garbage(&self) -> Result<()> {
        self.opened()?.segments.all().iter().try_for_each(|segment| segment.collect_all())
    }

    /// Allows the reuse of space that former owners could write to. Call it once every process that the store was taken over from has
    /// ended. An opening without [`Options::take_over`] does the same.
    pub fn forget_former_owners(&self) -> Result<()> {
        let segments = &self.opened()?.segments;
        segments.store().volume().forget_former_owners();
        segments.all().iter().for_each(|segment| segment.segment.allocator().forget_former_owners());
        Ok(())
    }

    /// Sizes and counts, summed over all segments.
    pub fn stats(&self) -> Result<Stats> {
        Ok(self.opened()?.segments.stats())
    }

    /// Makes all writes durable and closes the store, for all clones. A drop does the same, but can only log an error.
    ///
    /// Open handles, snapshots, scans and readers can still be read. Their writes fail with [`Error::Closed`]. Closing a closed store does
    /// nothing.
    pub fn close(self) -> Result<()> {
        self.opened()?.close()
    }
}

impl Clone for Db {
    fn clone(&self) -> Self {
        Db { default: self.default.with_kind(HandleKind::Db), recovery: self.recovery, handle: self.handle.clone() }
    }
}

impl std::ops::Deref for Db {
    type Target = KeyspaceHandle;

    /// The default keyspace, so that `db.put` writes to it.
    fn deref(&self) -> &KeyspaceHandle {
        &self.default
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.opened() {
            Ok(opened) => write!(out, "store in {}", opened.segments.store().device.name()),
            Err(_) => write!(out, "store of the parent process"),
        }
    }
}
