//! The memtable: keys in order, with their newest records in the log, and older ones that views show.

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

/// Bytes of a key with older records, besides its own: its share of a node, and two allocations.
const OLDER_BYTES: u64 = 64;

/// Bytes of a large value in memory, besides its extents: its share of a node, and an allocation.
const LARGE_SPACE_BYTES: u64 = 64;

/// Further bytes of a memtable with any entry: the pages of its last entry and its last node.
pub(crate) const BEGUN_BYTES: u64 = 2 * 4096;

/// The most that an entry takes besides its key: the bytes before it, and its share of half-full nodes.
const ENTRY_BYTES: u64 = 16 + 24;

/// A batch of entries ends after this many bytes of keys.
const BATCH_BYTES: usize = 128 << 10;

/// How many keys in a row a batch passes at most while its view shows none of them.
pub(super) const LOOKED_MAX: usize = 64;

/// The most keys that a check for deletions looks at, since writers wait meanwhile.
const LEARNT_MAX: usize = 4096;

/// The bound of a view of all records.
pub(crate) const NEWEST: u64 = u64::MAX;

/// The most that a single key adds to a memtable.
pub(crate) fn space_for(key: &[u8]) -> u64 {
    let key = (key.len() as u64).next_multiple_of(8);
    // The rest of the arena's chunk may be too short for it.
    ENTRY_BYTES + key + key * key / arena::CHUNK_BYTES as u64
}

/// A large value's part of a memtable.
pub(crate) fn space_for_large(value: &LargeRecord) -> u64 {
    LARGE_SPACE_BYTES + value.extents().count() as u64 * size_of::<Extent>() as u64
}

/// The newest record of each key, and older ones.
struct Entries {
    newest: KeyTree,
    /// Older records that views may show, of some keys; the newest first.
    older: BTreeMap<Box<[u8]>, Vec<Entry>>,
    older_bytes: u64,
    /// Higher than all records' numbers.
    end: u64,
    /// Higher than all puts' numbers.
    puts_end: u64,
}

/// Entries in order, and how far they go.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) known: VecDeque<KnownKey>,
    /// The last key looked at, if the batch ended because it had passed many keys in a row.
    pub(crate) skipped: Option<KnownKey>,
}

/// The extents of a large value, so that a flush need not read its head for them.
struct LargeSpace {
    extents: Box<[Extent]>,
    /// Whether it was replaced: only older views show it.
    is_dead: bool,
}

/// A keyspace's newest records: mutable first, then immutable until it has been flushed.
pub(crate) struct Memtable {
    entries: RwLock<Entries>,
    /// For each view, the number that its records are below, in order.
    views: Mutex<Vec<u64>>,
    bytes: AtomicU64,
    keys: AtomicU64,
    deletions: AtomicU64,
    /// Bytes of the records in the log that the newest entries point to.
    record_bytes: AtomicU64,
    is_immutable: AtomicBool,
    is_flushed: AtomicBool,
    /// Bytes of the large values that were put into it.
    large_bytes: AtomicU64,
    /// The extents of these, by the places of their heads.
    large: Mutex<BTreeMap<u64, LargeSpace>>,
    /// The budget that its memory counts in.
    budget: Arc<MemtableBudget>,
    /// Where the keyspace is known to have no values.
    gaps: Arc<Gaps>,
    /// One more than that of the memtable before it.
    pub(super) generation: u64,
    /// The number of the first record that may be in it, and its place in the log.
    pub(crate) first_sequence: u64,
    pub(crate) log_offset: u64,
}

impl Memtable {
    /// An empty memtable, for records from this number on. No gaps of the levels on the device are known.
    pub(crate) fn new(first_sequence: u64, log_offset: u64, budget: &Arc<MemtableBudget>) -> Self {
        Self::with_gaps(0, first_sequence, log_offset, budget, Arc::new(Gaps::new(budget)))
    }

    /// The memtable behind a removal of all keys. It leaves a generation out, so that this one is not taken for the one before it. Views of
    /// the removed contents see the same numbers, so it has no gaps.
    pub(super) fn following_removal(&self, first_sequence: u64, log_offset: u64) -> Self {
        let gaps = Arc::new(self.no_gaps());
        Self::with_gaps(self.generation + 2, first_sequence, log_offset, &self.budget, gaps)
    }

    /// The memtable that follows this one, once [`make_immutable`](Self::make_immutable) was called. The keyspace's gaps stay the same.
    pub(super) fn following(&self, first_sequence: u64, log_offset: u64) -> Self {
        Self::with_gaps(self.generation + 1, first_sequence, log_offset, &self.budget, Arc::clone(&self.gaps))
    }

    fn with_gaps(
        generation: u64,
        first_sequence: u64,
        log_offset: u64,
        budget: &Arc<MemtableBudget>,
        gaps: Arc<Gaps>,
    ) -> Self {
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
            budget: Arc::clone(budget),
            gaps,
            generation,
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

    /// Its keys, their records' bytes, and its deletions.
    pub(crate) fn contents(&self) -> Contents {
        let records = Records {
            bytes: self.record_bytes.load(Ordering::Relaxed),
            deletions: self.deletions.load(Ordering::Relaxed),
        };
        Contents { entries: self.keys.load(Ordering::Relaxed), records: Some(records) }
    }

    /// Adds a large value that is about to be put. Returns how many bytes all of them have.
    pub(crate) fn add_large(&self, value: &LargeRecord) -> u64 {
        let extents: Box<[Extent]> = value.extents().collect();
        self.grow(space_for_large(value));
        self.large.lock().insert(value.head_offset, LargeSpace { extents, is_dead: false });
        let bytes = value.list.value_bytes;
        self.large_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// The extents of all large values that were put into it.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.large.lock().values().flat_map(|space| &space.extents).copied().collect()
    }

    /// The extents of large values that were replaced in it. Views may still show them.
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
        self.budget.add(with_begun(before + bytes) - with_begun(before));
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.remove(bytes);
    }

    /// Ends all writes to it: it is to be flushed.
    pub(super) fn make_immutable(&self) {
        // No view learns a gap of the keyspace meanwhile, nor later: further puts go to another memtable.
        let _entries = self.entries.write();
        let was_immutable = self.is_immutable.swap(true, Ordering::Relaxed);
        debug_assert!(!was_immutable, "a memtable becomes immutable once");
        self.budget.make_immutable(with_begun(self.bytes()));
    }

    /// Notes that it was flushed.
    pub(super) fn flushed(&self) {
        debug_assert!(self.is_immutable.load(Ordering::Relaxed), "a memtable that is written to was flushed");
        let was_flushed = self.is_flushed.swap(true, Ordering::Relaxed);
        debug_assert!(!was_flushed, "a memtable is flushed once");
        self.budget.flushed(with_begun(self.bytes()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.read().newest.is_empty()
    }

    /// Locks it for insertions. Readers wait, and see all of them at once.
    pub(crate) fn fill(&self) -> Filling<'_> {
        Filling { memtable: self, entries: self.entries.write() }
    }

    /// Locks it against insertions.
    pub(crate) fn stay(&self) -> Staying<'_> {
        Staying { memtable: self, entries: self.entries.read() }
    }

    /// Ends a view.
    pub(crate) fn release(&self, before: u64) {
        let mut views = self.views.lock();
        if let Ok(place) = views.binary_search(&before) {
            views.remove(place);
        }
    }

    /// The newest record of a key, of those with numbers below `before`: a view's bound, or [`NEWEST`].
    pub(crate) fn get(&self, key: &[u8], before: u64) -> Option<Pointer> {
        let entries = self.entries.read();
        entries.newest.get(key).and_then(|entry| entries.at(key, &entry, before))
    }

    /// The newest record of a key, if its number is not below `since`.
    pub(super) fn get_since(&self, key: &[u8], since: u64) -> Option<Pointer> {
        let entry = self.entries.read().newest.get(key)?;
        (entry.sequence >= since).then_some(entry.pointer)
    }

    /// The first `most` keys of a range whose newest records have no number below `since`.
    pub(super) fn some_since(
        &self,
        lower: Bound<&[u8]>,
        is_beyond: impl Fn(&[u8]) -> bool,
        since: u64,
        most: usize,
    ) -> Vec<(Vec<u8>, Pointer)> {
        let mut some = Vec::new();
        self.entries.read().newest.walk(lower, Direction::Up, |key, entry| {
            if is_beyond(key) {
                return ControlFlow::Break(());
            }
            if entry.sequence >= since {
                some.push((key.to_vec(), entry.pointer));
            }
            if some.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        some
    }

    /// The first entries within a bound, in order. There are fewer than `most` if their keys are long, or if the view shows few.
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

    /// No gaps yet, for a view to learn its own.
    pub(super) fn no_gaps(&self) -> Gaps {
        Gaps::new(&self.budget)
    }

    /// Adds a gap that a view of the records below `before` has found, unless a put has come into it since. Returns the number from which
    /// on views know the gap.
    ///
    /// Puts wait meanwhile, and cut gaps afterwards; a rotation waits as well.
    pub(super) fn learn(&self, start: &[u8], end: &[u8], before: u64) -> Option<u64> {
        let entries = self.entries.read();
        if self.is_immutable.load(Ordering::Relaxed) {
            return None;
        }
        // If there were puts since, each key has to be looked at. A key that was put and deleted since was there in between.
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
            (_, true) => self.budget.remove_flushed(bytes),
            (true, false) => self.budget.remove_immutable(bytes),
            (false, false) => self.budget.remove(bytes),
        }
    }
}

/// The memory of a memtable whose entries take that many bytes.
fn with_begun(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes + BEGUN_BYTES }
}

impl Entries {
    /// Whether all keys between two places are deleted; false if there are too many.
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

    /// A key's newest record below a number.
    fn at(&self, key: &[u8], newest: &Entry, before: u64) -> Option<Pointer> {
        if newest.sequence < before {
            return Some(newest.pointer);
        }
        let older = self.older.get(key)?;
        older.iter().find(|entry| entry.sequence < before).map(|entry| entry.pointer)
    }
}

/// Bytes of a record in the log. Large values are elsewhere.
fn bytes_of_log(pointer: Pointer) -> u64 {
    if pointer.kind() == PointerKind::Extents { 0 } else { u64::from(pointer.record_bytes()) }
}

/// A memtable that is locked for insertions.
pub(crate) struct Filling<'memtable> {
    memtable: &'memtable Memtable,
    entries: RwLockWriteGuard<'memtable, Entries>,
}

impl Filling<'_> {
    /// Sets the newest record of a key. Returns the replaced record: it is garbage, though a view may still show it.
    pub(crate) fn insert(&mut self, key: &[u8], sequence: u64, pointer: Pointer) -> Option<Pointer> {
        self.entries.end = self.entries.end.max(sequence + 1);
        if pointer.kind() != PointerKind::Tombstone {
            self.entries.puts_end = self.entries.puts_end.max(sequence + 1);
            self.memtable.gaps.cut(key);
        }
        let newest = &mut self.entries.newest;
        let before = newest.bytes();
        let entry = Entry { sequence, pointer };
        if pointer.kind() == PointerKind::Tombstone {
            self.memtable.deletions.fetch_add(1, Ordering::Relaxed);
        }
        let Some((place, replaced)) = newest.insert(key, entry) else {
            let added = newest.bytes() - before;
            self.memtable.keys.fetch_add(1, Ordering::Relaxed);
            self.memtable.record_bytes.fetch_add(bytes_of_log(pointer), Ordering::Relaxed);
            self.memtable.grow(added);
            return None;
        };
        if sequence < replaced.sequence {
            self.memtable.bury(pointer);
            return Some(pointer);
        }
        newest.set(place, entry);
        self.memtable.record_bytes.fetch_add(bytes_of_log(pointer), Ordering::Relaxed);
        self.memtable.record_bytes.fetch_sub(bytes_of_log(replaced.pointer), Ordering::Relaxed);
        self.memtable.bury(replaced.pointer);
        self.keep_for_views(key, replaced);
        Some(replaced.pointer)
    }

    fn keep_for_views(&mut self, key: &[u8], replaced: Entry) {
        let entries = &mut *self.entries;
        let views = self.memtable.views.lock();
        let Some(newest) = views.last() else {
            // Records that were kept for views go with the first replacement after the last view.
            entries.older.clear();
            self.memtable.shrink(std::mem::take(&mut entries.older_bytes));
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
        // Of several records between the same two views, only the newest is shown.
        older.dedup_by_key(|entry| views.partition_point(|before| *before <= entry.sequence));
        added += older.len() as u64 * size_of::<Entry>() as u64;
        let removed = before * size_of::<Entry>() as u64;
        entries.older_bytes = entries.older_bytes + added - removed;
        self.memtable.grow(added);
        self.memtable.shrink(removed);
    }
}

/// A memtable that is locked against insertions.
pub(crate) struct Staying<'memtable> {
    memtable: &'memtable Memtable,
    entries: RwLockReadGuard<'memtable, Entries>,
}

impl Staying<'_> {
    /// Whether all its records are below a number.
    pub(crate) fn is_before(&self, before: u64) -> bool {
        self.entries.end <= before
    }

    /// Begins a view of the present records: those below the number that it returns. [`Memtable::release`] ends it.
    pub(crate) fn begin_view(&self) -> u64 {
        let before = self.entries.end;
        // The list stays in order: this number only rises, and not while the lock is held.
        self.memtable.views.lock().push(before);
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

    fn memtable() -> Memtable {
        let budget = Arc::new(MemtableBudget::new(1 << 30, 0, 1 << 20));
        Memtable::new(1, 0, &budget)
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let level = memtable();
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
    fn records_that_no_view_shows_are_not_kept() {
        let level = memtable();
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
                fn views_never_change(steps in proptest::collection::vec(prop_oneof![
            4 => (0_u8..6).prop_map(Step::Insert),
            1 => Just(Step::Begin),
            1 => any::<prop::sample::Index>().prop_map(Step::End),
        ], 1..200)) {
                        let level = memtable();
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
