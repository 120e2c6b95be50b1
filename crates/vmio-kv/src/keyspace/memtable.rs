//! The memtable: keys in order, and where their newest records are; of older ones those that somebody's view shows.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::extents::{Extent, LargeRecord};
use crate::format::leaf::KnownKey;
use crate::format::pointer::{Pointer, PointerKind};
use crate::keyspace::MemtableBudget;
use crate::keyspace::arena;
use crate::keyspace::contents::{Contents, Records};
use crate::keyspace::gaps::Gaps;
use crate::keyspace::key_tree::{Entry, KeyTree};
use crate::tree::Direction;

/// What a key of which older records are kept takes besides its bytes: its share of a node, and two allocations.
const OLDER_BYTES: u64 = 64;

/// What a large value takes besides its extents: its share of a node, and an allocation.
const LARGE_SPACE_BYTES: u64 = 64;

/// What a level that has anything takes beside: the pages that its last entry and its last node are in.
pub(crate) const BEGUN_BYTES: u64 = 2 * 4096;

/// What an entry takes at most besides its key: what stands before that, and its part of a node that is half full and of those above.
const ENTRY_BYTES: u64 = 16 + 24;

/// Bytes of keys after which no more entries are taken at a time.
const BATCH_BYTES: usize = 128 << 10;

/// Keys that are looked at, at a time, for some that a view shows.
pub(super) const LOOKED_MAX: usize = 64;

/// Keys that are looked at while writers wait, to know whether all of them are deleted.
const LEARNT_MAX: usize = 4096;

/// What sees all records that there are.
pub(crate) const NEWEST: u64 = u64::MAX;

/// What a key adds to a level at most, of which nothing else is in it.
pub(crate) fn space_for(key: &[u8]) -> u64 {
    let key = (key.len() as u64).next_multiple_of(8);
    // What is left of a chunk of the arena may be too short for it.
    ENTRY_BYTES + key + key * key / arena::CHUNK_BYTES as u64
}

/// What a large value adds.
pub(crate) fn space_for_large(value: &LargeRecord) -> u64 {
    LARGE_SPACE_BYTES + value.extents().count() as u64 * size_of::<Extent>() as u64
}

/// The newest record of each key, and others.
struct Entries {
    newest: KeyTree,
    /// Of some keys, records before the newest that views may show, the newest first.
    older: BTreeMap<Box<[u8]>, Vec<Entry>>,
    older_bytes: u64,
    /// Higher than the numbers of all records.
    end: u64,
    /// Higher than the numbers of all records but those of deletions.
    puts_end: u64,
}

/// Entries in order, and how far they go.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) known: VecDeque<KnownKey>,
    /// The last key that was looked at, if so many behind them are not shown that more were not looked at.
    pub(crate) skipped: Option<KnownKey>,
}

/// What a large value has taken: a compaction has not to read its head for that.
struct LargeSpace {
    extents: Box<[Extent]>,
    /// It was replaced: nothing newer than a view shows it any more.
    is_dead: bool,
}

/// A memtable.
pub(crate) struct Memtable {
    entries: RwLock<Entries>,
    /// For each view the number that its records are below, in order.
    views: Mutex<Vec<u64>>,
    bytes: AtomicU64,
    keys: AtomicU64,
    deletions: AtomicU64,
    /// Bytes of the records of the log that its newest entries point to.
    record_bytes: AtomicU64,
    is_immutable: AtomicBool,
    is_flushed: AtomicBool,
    /// Bytes of the large values that were put into it.
    large_bytes: AtomicU64,
    /// What these have taken, by the places of their heads.
    large: Mutex<BTreeMap<u64, LargeSpace>>,
    /// What it takes is part of.
    all: Arc<MemtableBudget>,
    /// Where the keyspace is known to have no values.
    gaps: Arc<Gaps>,
    /// The number of the first record that may be in it, and where that is in the log.
    pub(crate) first_sequence: u64,
    pub(crate) log_offset: u64,
}

impl Memtable {
    /// An empty one, for records from this number on. Nothing is known of what levels on the device have.
    pub(crate) fn new(first_sequence: u64, log_offset: u64, all: &Arc<MemtableBudget>) -> Self {
        Self::with_gaps(first_sequence, log_offset, all, Arc::new(Gaps::new(all)))
    }

    /// The one that comes after this one, which [`make_immutable`](Self::make_immutable) has closed: the keyspace has the same values.
    pub(super) fn following(&self, first_sequence: u64, log_offset: u64) -> Self {
        Self::with_gaps(first_sequence, log_offset, &self.all, Arc::clone(&self.gaps))
    }

    fn with_gaps(first_sequence: u64, log_offset: u64, all: &Arc<MemtableBudget>, gaps: Arc<Gaps>) -> Self {
        let entries = Entries {
            newest: KeyTree::new(first_sequence),
            older: BTreeMap::new(),
            older_bytes: 0,
            end: first_sequence,
            puts_end: first_sequence,
        };
        Memtable {
            entries: RwLock::new(entries),
            views: Mutex::default(),
            bytes: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            is_immutable: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
            large_bytes: AtomicU64::new(0),
            large: Mutex::default(),
            all: Arc::clone(all),
            gaps,
            first_sequence,
            log_offset,
        }
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many keys it has.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Its keys, the records that they point to, and how many deletions were put into it.
    pub(crate) fn contents(&self) -> Contents {
        let records = Records {
            bytes: self.record_bytes.load(Ordering::Relaxed),
            deletions: self.deletions.load(Ordering::Relaxed),
        };
        Contents { entries: self.keys.load(Ordering::Relaxed), records: Some(records) }
    }

    /// Learns of a large value that is about to be put into it; returns how many bytes all of them have.
    pub(crate) fn add_large(&self, value: &LargeRecord) -> u64 {
        let extents: Box<[Extent]> = value.extents().collect();
        self.grow(space_for_large(value));
        self.large.lock().insert(value.head_offset, LargeSpace { extents, is_dead: false });
        let bytes = value.list.value_bytes;
        self.large_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// What the large values have taken that were put into it.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.large.lock().values().flat_map(|space| &space.extents).copied().collect()
    }

    /// The same of those that have been replaced there. Views may still show them.
    pub(super) fn extents_of_dead(&self) -> Vec<Extent> {
        let large = self.large.lock();
        large.values().filter(|space| space.is_dead).flat_map(|space| &space.extents).copied().collect()
    }

    fn bury(&self, replaced: Pointer) {
        if replaced.kind() == PointerKind::Extents
            && let Some(space) = self.large.lock().get_mut(&replaced.offset())
        {
            space.is_dead = true;
        }
    }

    fn grow(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.add(with_begun(before + bytes) - with_begun(before));
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.remove(bytes);
    }

    /// Nothing is written to it any more: it is to be flushed.
    pub(super) fn make_immutable(&self) {
        // Nobody learns meanwhile what is empty, nor from then on: later puts are in another level.
        let _entries = self.entries.write();
        self.is_immutable.store(true, Ordering::Relaxed);
        self.all.make_immutable(with_begun(self.bytes()));
    }

    /// It has been.
    pub(super) fn flushed(&self) {
        self.is_flushed.store(true, Ordering::Relaxed);
        self.all.flushed(with_begun(self.bytes()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.read().newest.is_empty()
    }

    /// Has everybody wait who looks at it: what is inserted meanwhile is seen at once.
    pub(crate) fn fill(&self) -> Filling<'_> {
        Filling { level: self, entries: self.entries.write() }
    }

    /// Nothing is inserted meanwhile.
    pub(crate) fn stay(&self) -> Staying<'_> {
        Staying { level: self, entries: self.entries.read() }
    }

    /// Ends a view.
    pub(crate) fn release(&self, before: u64) {
        let mut views = self.views.lock();
        if let Ok(place) = views.binary_search(&before) {
            views.remove(place);
        }
    }

    /// Where the newest record of a key is, of those with numbers below `before`; a view holds that, or it is [`NEWEST`].
    pub(crate) fn get(&self, key: &[u8], before: u64) -> Option<Pointer> {
        let entries = self.entries.read();
        entries.newest.get(key).and_then(|entry| entries.at(key, &entry, before))
    }

    /// Some entries in order, the first of them on the way that are within a bound; fewer of them if their keys are long, or if a view
    /// does not show many.
    pub(crate) fn some(&self, bound: Bound<&[u8]>, direction: Direction, before: u64, most: usize) -> Shown {
        let entries = self.entries.read();
        let (mut known, mut skipped, mut bytes, mut in_a_row) = (VecDeque::new(), None, 0, 0);
        entries.newest.walk(bound, direction, |key, entry| {
            match entries.at(key, entry, before) {
                Some(pointer) => {
                    known.push_back(KnownKey::whole(key, pointer));
                    bytes += key.len();
                    in_a_row = 0;
                }
                None => in_a_row += 1,
            }
            if in_a_row == LOOKED_MAX {
                skipped = Some(KnownKey::whole(key, entry.pointer));
            }
            let goes_on = known.len() < most && bytes < BATCH_BYTES && skipped.is_none();
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Shown { known, skipped }
    }

    /// Where the keyspace is known to have no values.
    pub(super) fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// None, for a view of the level to learn.
    pub(super) fn no_gaps(&self) -> Gaps {
        Gaps::new(&self.all)
    }

    /// Has the keyspace know that a view, which sees the records below a number, shows nothing between two places, unless something has
    /// been put there since. Tells from which number on it is known.
    ///
    /// Whoever puts a record into the level waits meanwhile, and cuts what has been learnt; whoever begins the next level does as well.
    pub(super) fn learn(&self, start: &[u8], end: &[u8], before: u64) -> Option<u64> {
        let entries = self.entries.read();
        if self.is_immutable.load(Ordering::Relaxed) {
            return None;
        }
        // If anything was put since, each of the keys has to be looked at; what was put and deleted again was there in between.
        let since = if entries.puts_end <= before {
            before
        } else if entries.are_deleted(start, end) {
            entries.end
        } else {
            return None;
        };
        Some(self.gaps.learn(start.to_vec(), end.to_vec(), since))
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        let bytes = with_begun(self.bytes());
        match (*self.is_immutable.get_mut(), *self.is_flushed.get_mut()) {
            (_, true) => self.all.remove_flushed(bytes),
            (true, false) => self.all.remove_immutable(bytes),
            (false, false) => self.all.remove(bytes),
        }
    }
}

/// What a level takes that has so many bytes.
fn with_begun(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes + BEGUN_BYTES }
}

impl Entries {
    /// Whether all that there is between two places is deleted; false if there is too much to say.
    fn are_deleted(&self, start: &[u8], end: &[u8]) -> bool {
        let (mut are_deleted, mut looked) = (true, 0);
        self.newest.walk(Bound::Included(start), Direction::Up, |key, entry| {
            if key >= end {
                return ControlFlow::Break(());
            }
            looked += 1;
            are_deleted = entry.pointer.kind() == PointerKind::Tombstone && looked <= LEARNT_MAX;
            if are_deleted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        are_deleted
    }

    /// Where a key's newest record below a number is.
    fn at(&self, key: &[u8], newest: &Entry, before: u64) -> Option<Pointer> {
        if newest.sequence < before {
            return Some(newest.pointer);
        }
        let older = self.older.get(key)?;
        older.iter().find(|entry| entry.sequence < before).map(|entry| entry.pointer)
    }
}

/// What a record takes of the log; large values are elsewhere.
fn bytes_of_log(pointer: Pointer) -> u64 {
    if pointer.kind() == PointerKind::Extents { 0 } else { u64::from(pointer.record_bytes()) }
}

/// A memtable that nobody else looks at.
pub(crate) struct Filling<'level> {
    level: &'level Memtable,
    entries: RwLockWriteGuard<'level, Entries>,
}

impl Filling<'_> {
    /// Sets the newest record of a key. Returns what is replaced: garbage, though a view may still show it.
    pub(crate) fn insert(&mut self, key: &[u8], sequence: u64, pointer: Pointer) -> Option<Pointer> {
        self.entries.end = self.entries.end.max(sequence + 1);
        if pointer.kind() != PointerKind::Tombstone {
            self.entries.puts_end = self.entries.puts_end.max(sequence + 1);
            self.level.gaps.cut(key);
        }
        let newest = &mut self.entries.newest;
        let before = newest.bytes();
        let entry = Entry { sequence, pointer };
        if pointer.kind() == PointerKind::Tombstone {
            self.level.deletions.fetch_add(1, Ordering::Relaxed);
        }
        let Some((place, replaced)) = newest.insert(key, entry) else {
            let added = newest.bytes() - before;
            self.level.keys.fetch_add(1, Ordering::Relaxed);
            self.level.record_bytes.fetch_add(bytes_of_log(pointer), Ordering::Relaxed);
            self.level.grow(added);
            return None;
        };
        if sequence < replaced.sequence {
            self.level.bury(pointer);
            return Some(pointer);
        }
        newest.set(place, entry);
        self.level.record_bytes.fetch_add(bytes_of_log(pointer), Ordering::Relaxed);
        self.level.record_bytes.fetch_sub(bytes_of_log(replaced.pointer), Ordering::Relaxed);
        self.level.bury(replaced.pointer);
        self.keep_for_views(key, replaced);
        Some(replaced.pointer)
    }

    fn keep_for_views(&mut self, key: &[u8], replaced: Entry) {
        let entries = &mut *self.entries;
        let views = self.level.views.lock();
        let Some(newest) = views.last() else {
            // What views have kept goes with the first replacement that comes after them.
            entries.older.clear();
            self.level.shrink(std::mem::take(&mut entries.older_bytes));
            return;
        };
        if *newest <= replaced.sequence {
            return;
        }
        let mut added = 0;
        let older = entries.older.entry(key.into()).or_insert_with(|| {
            added = OLDER_BYTES + key.len() as u64;
            Vec::new()
        });
        let before = older.len() as u64;
        older.insert(0, replaced);
        // Of those between the same two views, nobody sees but the newest.
        older.dedup_by_key(|entry| views.partition_point(|before| *before <= entry.sequence));
        added += older.len() as u64 * size_of::<Entry>() as u64;
        let removed = before * size_of::<Entry>() as u64;
        entries.older_bytes = entries.older_bytes + added - removed;
        self.level.grow(added);
        self.level.shrink(removed);
    }
}

/// A memtable that stays as it is.
pub(crate) struct Staying<'level> {
    level: &'level Memtable,
    entries: RwLockReadGuard<'level, Entries>,
}

impl Staying<'_> {
    /// Whether all its records are below a number.
    pub(crate) fn is_before(&self, before: u64) -> bool {
        self.entries.end <= before
    }

    /// Begins a view of what there is: of records below the number that it returns. [`Memtable::release`] ends it.
    pub(crate) fn begin_view(&self) -> u64 {
        let before = self.entries.end;
        // In order: it only rises, and stays while it is taken.
        self.level.views.lock().push(before);
        before
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::format::pointer::PointerKind;

    fn pointer(offset: u64) -> Pointer {
        Pointer::new(PointerKind::Value, offset, 64)
    }

    fn level() -> Memtable {
        let memory = Arc::new(MemtableBudget::new(1 << 30, 1 << 20));
        Memtable::new(1, 0, &memory)
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let level = level();
        assert_eq!(level.fill().insert(b"a", 5, pointer(8)), None);
        assert_eq!(level.fill().insert(b"a", 7, pointer(16)), Some(pointer(8)));
        assert_eq!(level.fill().insert(b"a", 6, pointer(24)), Some(pointer(24)), "an older one is garbage at once");
        assert_eq!(level.get(b"a", NEWEST), Some(pointer(16)));
        assert_eq!(level.get(b"b", NEWEST), None);
        let bytes = level.bytes();
        assert_eq!(level.fill().insert(b"a", 8, pointer(32)), Some(pointer(16)));
        assert_eq!(level.bytes(), bytes, "what is overwritten takes no more space");
    }

    #[test]
    fn what_no_view_shows_is_not_kept() {
        let level = level();
        level.fill().insert(b"a", 1, pointer(8));
        let bytes = level.bytes();
        let view = level.stay().begin_view();
        level.fill().insert(b"a", 2, pointer(16));
        let with_one = level.bytes();
        assert!(with_one > bytes);
        for sequence in 3..100 {
            level.fill().insert(b"a", sequence, pointer(8 * sequence));
        }
        assert_eq!(level.get(b"a", view), Some(pointer(8)));
        assert_eq!(level.bytes(), with_one);
        level.release(view);
        level.fill().insert(b"a", 100, pointer(8));
        assert_eq!(level.bytes(), bytes);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8),
        Begin,
        End(prop::sample::Index),
    }

    type Model = BTreeMap<Vec<u8>, Pointer>;

    proptest! {
        #[test]
        fn views_stay_what_they_were(steps in proptest::collection::vec(prop_oneof![
            4 => (0_u8..6).prop_map(Step::Insert),
            1 => Just(Step::Begin),
            1 => any::<prop::sample::Index>().prop_map(Step::End),
        ], 1..200)) {
            let level = level();
            let mut model = Model::new();
            let mut views: Vec<(u64, Model)> = Vec::new();
            for (sequence, step) in (1..).zip(steps) {
                match step {
                    Step::Insert(key) => {
                        level.fill().insert(&[key], sequence, pointer(8 * sequence));
                        model.insert(vec![key], pointer(8 * sequence));
                    }
                    Step::Begin => views.push((level.stay().begin_view(), model.clone())),
                    Step::End(which) if !views.is_empty() => {
                        level.release(views.swap_remove(which.index(views.len())).0);
                    }
                    Step::End(_) => {}
                }
                for (before, expected) in &views {
                    let some = level.some(Bound::Unbounded, Direction::Up, *before, 100);
                    let seen: Model = some.known.into_iter().map(|known| (known.bytes, known.pointer)).collect();
                    prop_assert_eq!(&seen, expected);
                    for key in 0..6 {
                        prop_assert_eq!(level.get(&[key], *before), expected.get(&[key][..]).copied());
                    }
                }
            }
        }
    }
}
