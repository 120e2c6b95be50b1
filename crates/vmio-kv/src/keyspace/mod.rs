//! A keyspace: an independent set of keys, in memtables and in levels on the device.

pub(crate) mod arena;
mod bottom;
mod bottom_step;
mod compaction;
pub(crate) mod contents;
mod cursor;
mod gaps;
mod key_tree;
mod mapped_rows;
pub(crate) mod memtable;
mod memtable_budget;
mod merge_input;
mod newer_records;
mod newest_records;
mod removal;
mod version;
mod view;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use parking_lot::{Condvar, MutexGuard};

use crate::batching_lock::BatchingLock;
use crate::error::{Error, Result};
use crate::format::catalogue::{KeyspaceEntry, LEVELS, LevelRoots};
use crate::format::extents::LargeRecord;
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::keyspace::contents::TreeRecords;
use crate::keyspace::memtable::{BEGUN_BYTES, Filling, Memtable, NEWEST};
use crate::log::Log;
use crate::tree::Tree;
use crate::volume::epoch::ReclamationEpoch;
pub(crate) use bottom::INLINE;
pub(crate) use compaction::{Compacted, Compaction, Due, compaction_blocks_of_new};
pub(crate) use cursor::KeyspaceCursor;
pub(crate) use memtable_budget::{Admitted, Hope, MemtableBudget, ScanSpace};
pub(crate) use removal::Removed;
pub(crate) use version::Version;
pub(crate) use view::View;

/// A memtable is flushed when its large values have this many bytes, though it is not full.
const LARGE_BYTES_MAX: u64 = 256 << 20;

/// How many numbers other keyspaces may take while a memtable is empty: it stores 47 bits of its records' numbers, relative to its first.
const IDLE_NUMBERS_MAX: u64 = 1 << 40;

/// The limits of a keyspace's levels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a full memtable.
    pub(crate) memtable_bytes: u64,
    /// How many times more entries each level has than the one above.
    pub(crate) growth_factor: u64,
    /// The fewest entries that are worth a merge into the bottom level, whose leaves hold small records. `None`: there are no such merges.
    pub(crate) bottom_entries_min: Option<u64>,
}

/// An open keyspace.
pub(crate) struct Keyspace {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) log: Arc<Log>,
    pub(super) limits: Limits,
    pub(super) memtable_budget: Arc<MemtableBudget>,
    /// The version that readers see.
    version: ArcSwap<Version>,
    /// Held by the writer whose turn it is. It has the state of flushes and compactions.
    writing: BatchingLock<WriteState>,
    changed: Condvar,
    /// Whether it was dropped. Snapshots may still show it.
    is_dropped: AtomicBool,
    /// The counts of its trees' records, where they are known.
    tree_records: TreeRecords,
    /// Where the log ended when the present write began: its record may be in the log, and not yet in the memtable.
    pending: Mutex<Option<(u64, u64)>>,
}

#[derive(Default)]
struct WriteState {
    failed: Option<String>,
    has_no_space: bool,
    /// Which levels are being flushed or compacted.
    is_compacting: [bool; LEVELS],
    /// Which levels others are being merged into.
    is_merged_into: [bool; LEVELS],
    /// Which levels are to be compacted, though they are not full.
    is_asked_for: [bool; LEVELS],
    /// How many memtables have been flushed or removed.
    flushed_memtables: u64,
    /// All keys are being removed: there are no writes, flushes or compactions meanwhile.
    is_being_emptied: bool,
    /// The time until which a level rests after a failed compaction: the next try is likely to fail as well.
    resting: [Option<Instant>; LEVELS],
}

impl Keyspace {
    /// A keyspace as it was committed, with an empty memtable.
    pub(crate) fn new(
        log: &Arc<Log>,
        limits: Limits,
        memtable_budget: &Arc<MemtableBudget>,
        entry: &KeyspaceEntry,
    ) -> Self {
        let version = Version {
            memtable: Arc::new(Memtable::new(entry.log_sequence, entry.log_offset, memtable_budget)),
            immutable: None,
            levels: entry.levels,
            epoch: log.segment.epoch(),
            reclamation_epoch: ReclamationEpoch::first(),
        };
        Keyspace {
            number: entry.number,
            name: entry.name.clone(),
            log: Arc::clone(log),
            limits,
            memtable_budget: Arc::clone(memtable_budget),
            version: ArcSwap::from_pointee(version),
            writing: BatchingLock::default(),
            changed: Condvar::new(),
            is_dropped: AtomicBool::new(false),
            tree_records: TreeRecords::default(),
            pending: Mutex::new(None),
        }
    }

    /// With the memtable that an opening has recovered. It begins where the keyspace's own does.
    pub(crate) fn with_memtable(self, memtable: Memtable) -> Self {
        let version = self.version.load();
        let (levels, epoch, reclamation_epoch) =
            (version.levels, version.epoch, Arc::clone(&version.reclamation_epoch));
        let memtable = Arc::new(memtable);
        self.version.store(Arc::new(Version { memtable, immutable: None, levels, epoch, reclamation_epoch }));
        drop(version);
        self
    }

    /// The number of its segment.
    pub(crate) fn segment(&self) -> u32 {
        self.log.segment.number
    }

    /// The catalogue's entry of an empty keyspace.
    pub(crate) fn empty_entry(number: u32, name: &str, log_offset: u64, log_sequence: u64) -> KeyspaceEntry {
        let levels = [LevelRoots::default(); LEVELS];
        KeyspaceEntry { number, name: name.to_owned(), log_sequence, log_offset, levels }
    }

    /// The present version. It stays readable while it is held.
    pub(crate) fn version(&self) -> Arc<Version> {
        self.version.load_full()
    }

    /// The present version for a look-up, without a shared reference count.
    pub(crate) fn current(&self) -> Guard<Arc<Version>> {
        self.version.load()
    }

    /// Bytes of the mutable memtable.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.version.load().memtable.bytes()
    }

    fn writing(&self) -> MutexGuard<'_, WriteState> {
        self.writing.lock()
    }

    /// Takes the turn to write. Waits while another writer has it, and while the memtable is full and the one before it is still being
    /// flushed. Fails if a flush has failed.
    pub(crate) fn begin_write(&self) -> Result<WriteTurn<'_>> {
        let mut writing = self.writing();
        while !self.has_space(&writing)? {
            self.changed.wait(&mut writing);
        }
        Ok(self.turn(writing))
    }

    /// Takes the turn to write; `None` if it would have to wait for a flush.
    pub(crate) fn try_begin_write(&self) -> Result<Option<WriteTurn<'_>>> {
        let writing = self.writing();
        Ok(self.has_space(&writing)?.then(|| self.turn(writing)))
    }

    /// Keeps writers out. Unlike a turn to write, it waits for no flush.
    pub(crate) fn begin_stay(&self) -> Result<Stay<'_>> {
        let writing = self.writing();
        if self.is_dropped() {
            return Err(self.gone());
        }
        Ok(Stay { _writing: writing })
    }

    /// Whether it was dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// The error of a dropped keyspace.
    pub(crate) fn gone(&self) -> Error {
        Error::NoKeyspace { volume: self.log.segment.device.name().to_owned(), name: self.name.clone() }
    }

    fn has_space(&self, writing: &WriteState) -> Result<bool> {
        if self.is_dropped() {
            return Err(self.gone());
        }
        if let Some(why) = &writing.failed {
            return Err(self.log.stopped(why));
        }
        if writing.is_being_emptied {
            return Ok(false);
        }
        let version = self.version.load();
        if version.immutable.is_none() || version.memtable.bytes() < self.limits.memtable_bytes {
            return Ok(true);
        }
        self.check_flush_can_succeed(writing).map(|()| false)
    }

    /// Fails if it is no use to wait for a flush.
    fn check_flush_can_succeed(&self, writing: &WriteState) -> Result<()> {
        match &writing.failed {
            Some(why) => Err(self.log.stopped(why)),
            None if writing.has_no_space => Err(self.log.segment.full(ALLOCATION_UNIT_BYTES)),
            None => Ok(()),
        }
    }

    /// Whether a memtable is being flushed, or will be, and so frees its memory.
    pub(crate) fn is_flushing(&self) -> bool {
        self.has_immutable() && self.check_flush_can_succeed(&self.writing()).is_ok()
    }

    /// The bytes that the next record takes besides its own, if the memtable is empty.
    pub(crate) fn space_to_begin(&self) -> u64 {
        if self.memtable_bytes() == 0 { BEGUN_BYTES } else { 0 }
    }

    fn turn<'keyspace>(&'keyspace self, writing: MutexGuard<'keyspace, WriteState>) -> WriteTurn<'keyspace> {
        let mut memtable = Arc::clone(&self.version.load().memtable);
        let is_first = memtable.bytes() == 0;
        if is_first {
            let end = self.log.end();
            *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            if end.1 - memtable.first_sequence > IDLE_NUMBERS_MAX {
                memtable = self.begin_memtable_at(end);
            }
        }
        WriteTurn { keyspace: self, memtable, is_first, _writing: writing }
    }

    /// Replaces an empty memtable by one for records from here on. The caller has the turn.
    fn begin_memtable_at(&self, (log_offset, sequence): (u64, u64)) -> Arc<Memtable> {
        let version = self.version.load_full();
        // Views of it learn no more gaps of the keyspace.
        version.memtable.make_immutable();
        let memtable = Arc::new(version.memtable.following(sequence, log_offset));
        self.version.store(Arc::new(Version {
            memtable: Arc::clone(&memtable),
            immutable: version.immutable.clone(),
            levels: version.levels,
            epoch: version.epoch,
            reclamation_epoch: Arc::clone(&version.reclamation_epoch),
        }));
        memtable
    }

    /// Puts a record that an opening has read again into the memtable.
    pub(crate) fn replay(&self, key: &[u8], sequence: u64, pointer: Pointer) {
        self.put_pointer(&self.version.load().memtable, key, sequence, pointer);
    }

    fn put_pointer(&self, memtable: &Memtable, key: &[u8], sequence: u64, pointer: Pointer) {
        let replaced = memtable.fill().insert(key, sequence, pointer);
        if let Some(replaced) = replaced {
            self.log.segment.count_garbage(replaced);
        }
    }

    /// The newest record of a key in a version, of those with numbers below `before`. `None` for a tombstone.
    pub(crate) fn find(&self, version: &Version, before: u64, key: &[u8]) -> Result<Option<Pointer>> {
        let newest = self.newest(version, before, key)?;
        Ok(newest.filter(|pointer| pointer.kind() != PointerKind::Tombstone))
    }

    /// The same, but a tombstone is returned.
    pub(crate) fn newest(&self, version: &Version, before: u64, key: &[u8]) -> Result<Option<Pointer>> {
        Ok(self.look_up(version, before, key, |_| ())?.map(|(pointer, _)| pointer))
    }

    /// The newest record of a key, which may be a tombstone. If the look-up has to read the record, it calls `read` with it.
    pub(crate) fn look_up<Answer>(
        &self,
        version: &Version,
        before: u64,
        key: &[u8],
        read: impl Fn(&Record<'_>) -> Answer,
    ) -> Result<Option<(Pointer, Option<Answer>)>> {
        if let Some(pointer) = version.in_memory(key, before) {
            return Ok(Some((pointer, None)));
        }
        for root in version.roots() {
            let found = Tree::new(&self.log, self.number, root, version.epoch).get(key, &read)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The newest records of several keys, whose nodes are read together. `None` for tombstones.
    pub(crate) fn find_many(&self, version: &Version, before: u64, keys: &[&[u8]]) -> Result<Vec<Option<Pointer>>> {
        let mut found: Vec<Option<Pointer>> = keys.iter().map(|key| version.in_memory(key, before)).collect();
        for root in version.roots() {
            let missing: Vec<usize> = (0..keys.len()).filter(|place| found[*place].is_none()).collect();
            let of_missing: Vec<&[u8]> = missing.iter().map(|place| keys[*place]).collect();
            let in_tree = Tree::new(&self.log, self.number, root, version.epoch).get_many(&of_missing)?;
            missing.into_iter().zip(in_tree).for_each(|(place, pointer)| found[place] = pointer);
        }
        let has_value = |pointer: &Pointer| pointer.kind() != PointerKind::Tombstone;
        Ok(found.into_iter().map(|pointer| pointer.filter(has_value)).collect())
    }
}

/// Nobody writes to a keyspace while this exists.
pub(crate) struct Stay<'keyspace> {
    _writing: MutexGuard<'keyspace, WriteState>,
}

/// The turn to write to a keyspace.
pub(crate) struct WriteTurn<'keyspace> {
    keyspace: &'keyspace Keyspace,
    /// The memtable, which does not become immutable while the turn is held.
    memtable: Arc<Memtable>,
    /// The memtable was empty, and so the log's end was noted as pending.
    is_first: bool,
    _writing: MutexGuard<'keyspace, WriteState>,
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        if !self.is_first {
            return;
        }
        // The written record is in the memtable by now.
        *self.keyspace.pending.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl WriteTurn<'_> {
    /// The newest record of a key that is in memory.
    pub(crate) fn in_memory(&self, key: &[u8]) -> Option<Pointer> {
        self.keyspace.version.load().in_memory(key, NEWEST)
    }

    /// Makes a record of the log the newest of its key. Returns whether the memtable is full.
    pub(crate) fn put(&self, key: &[u8], sequence: u64, pointer: Pointer) -> bool {
        self.keyspace.put_pointer(&self.memtable, key, sequence, pointer);
        self.is_full()
    }

    /// The memtable, locked for several puts.
    pub(crate) fn fill(&self) -> Filling<'_> {
        self.memtable.fill()
    }

    /// Whether the memtable is full.
    pub(crate) fn is_full(&self) -> bool {
        self.memtable.bytes() >= self.keyspace.limits.memtable_bytes
    }

    /// Adds a large value that is about to be put. Returns whether their bytes make a flush due. It frees the space of replaced values, and
    /// leaves an opening fewer to look for.
    pub(crate) fn add_large(&self, value: &LargeRecord) -> bool {
        self.memtable.add_large(value) >= LARGE_BYTES_MAX
    }
}
