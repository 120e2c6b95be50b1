//! The state that all segments of a store share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::db::collector::wake::Wake;
use crate::db::compaction_queue::CompactionQueue;
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::{HandleKind, OpenHandles};
use crate::db::scanned_records::ScannedRecords;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::keyspace::{Keyspace, Limits, MemtableBudget};
use crate::options::Options;
use crate::tree::MergeThreads;
use crate::volume::Volume;
use crate::volume::chunk_generations::ChunkGenerations;

/// The state that all segments of a store share.
pub(crate) struct Store {
    /// The handle that all others are made from: it belongs to the process that has opened the store.
    pub(super) process: OpenHandle<()>,
    pub(super) device: Arc<Device>,
    /// Held during a growth of the volume, and during the creation of a segment.
    pub(super) volume: Mutex<Volume>,
    pub(super) chunk_generations: ChunkGenerations,
    /// The keyspaces of all segments, by name.
    pub(super) keyspaces: RwLock<BTreeMap<String, Arc<Keyspace>>>,
    /// Held while a keyspace is created, cleared or dropped: names are unique over all segments. It has the names of keyspaces whose
    /// creation has failed, with their segment: they may be there when the store is opened again.
    pub(super) in_doubt: Mutex<BTreeMap<String, u32>>,
    /// How many segments there are.
    pub(super) segments: AtomicU64,
    pub(super) memtable_budget: Arc<MemtableBudget>,
    pub(super) options: Options,
    pub(super) compactions: CompactionQueue,
    pub(super) collector: Wake,
    pub(super) scanned: ScannedRecords,
    pub(super) merge_threads: MergeThreads,
    /// Whether freed space is given back to the file system or the device.
    pub(super) discards: AtomicBool,
    /// Whether each flush of a log ends with a check for a takeover.
    pub(super) looks_after_flushes: Arc<AtomicBool>,
    /// No more writes are accepted.
    pub(super) is_closed: AtomicBool,
}

impl Store {
    pub(super) fn new(volume: Volume, options: Options) -> Result<Store> {
        let device = Arc::clone(&volume.device);
        let failed = |source| Error::Device {
            volume: device.name().to_owned(),
            action: "marking the process",
            offset: 0,
            source,
        };
        Ok(Store {
            process: OpenHandle::new((), OpenHandles::of(device.identity())).map_err(failed)?,
            is_closed: AtomicBool::new(false),
            chunk_generations: ChunkGenerations::new(device.units_max()),
            device,
            volume: Mutex::new(volume),
            keyspaces: RwLock::default(),
            in_doubt: Mutex::default(),
            segments: AtomicU64::new(0),
            memtable_budget: Arc::new(MemtableBudget::new(
                options.memtable_budget_bytes(),
                options.spare_bytes(),
                options.memory_step_bytes(),
            )),
            compactions: CompactionQueue::default(),
            collector: Wake::default(),
            scanned: ScannedRecords::new(),
            merge_threads: MergeThreads::new(options.merge_threads()),
            discards: AtomicBool::new(options.discards()),
            looks_after_flushes: Arc::new(AtomicBool::new(options.is_fenced())),
            options,
        })
    }

    /// Makes another handle of the store.
    pub(super) fn open_handle<U>(&self, kind: HandleKind, make: impl FnOnce() -> U) -> OpenHandle<U> {
        self.process.map(kind, |()| make())
    }

    pub(super) fn volume(&self) -> MutexGuard<'_, Volume> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keyspaces(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Keyspace>>> {
        self.keyspaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_keyspace(&self, keyspace: Keyspace) -> Arc<Keyspace> {
        let keyspace = Arc::new(keyspace);
        let mut keyspaces = self.keyspaces.write().unwrap_or_else(PoisonError::into_inner);
        keyspaces.insert(keyspace.name.clone(), Arc::clone(&keyspace));
        keyspace
    }

    pub(super) fn in_doubt(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remove_keyspace(&self, keyspace: &Keyspace) {
        self.keyspaces.write().unwrap_or_else(PoisonError::into_inner).remove(&keyspace.name);
    }

    /// Counts another segment, and the memory that the end of its log takes.
    pub(super) fn add_segment(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.memtable_budget.add_other(self.options.tail_bytes());
    }

    /// Fails if the store is read-only or closed, or if the caller is a forked child.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.process.get()?;
        let volume = || self.device.name().to_owned();
        if self.options.reads_only() {
            return Err(Error::ReadOnly { volume: volume() });
        }
        if self.is_closed.load(Ordering::Relaxed) { Err(Error::Closed { volume: volume() }) } else { Ok(()) }
    }

    pub(super) fn limits(&self) -> Limits {
        self.options.limits(self.device.units_max() * ALLOCATION_UNIT_BYTES)
    }

    pub(super) fn failed(&self, action: &'static str) -> impl Fn(std::io::Error) -> Error + '_ {
        move |source| Error::Device { volume: self.device.name().to_owned(), action, offset: 0, source }
    }
}
