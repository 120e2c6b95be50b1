//! Scans of a keyspace, from both ends.

mod end;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reorganization::Gathering;
use crate::db::scan::end::{Ahead, End};
use crate::db::value_reader::Source;
use crate::db::value_reader::ValueReader;
use crate::error::Result;
use crate::extents::LargeValue;
use crate::format::leaf::KnownKey;
use crate::format::pointer::PointerKind;
use crate::key_range::{KeyRange, is_beyond};
use crate::keyspace::{KeyspaceCursor, View};
use crate::tree::Direction;

/// An iterator over the keys and values of a range, in order, as they were when the scan began. `rev` and `next_back` go backwards.
///
/// It ends with the first error. It reads ahead, the more the longer it goes on.
///
/// A scan may outlive the handle that began it. While it exists, nothing reuses the space of the records that it shows.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
/// for name in ["apple", "banana", "blueberry", "cherry"] {
///     db.put(name.as_bytes(), b"fruit")?;
/// }
/// let last = db.scan(..).next_back().transpose()?;
/// assert_eq!(last, Some((b"cherry".to_vec(), b"fruit".to_vec())));
/// let keys: Vec<_> = db.prefix(b"b").keys().rev().collect::<Result<_, _>>()?;
/// assert_eq!(keys, [b"blueberry".to_vec(), b"banana".to_vec()]);
/// assert_eq!(db.scan(b"banana"..b"cherry").count(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Scan {
    handle: OpenHandle<Progress>,
    is_over: bool,
}

/// A scan that reads keys alone; see [`Scan::keys`].
pub struct Keys(Scan);

/// A scan that returns values as readers; see [`Scan::readers`].
pub struct Readers(Scan);

/// The state of a scan.
pub(super) struct Progress {
    open: OpenKeyspace,
    view: Arc<View>,
    range: KeyRange,
    /// The part of the range that neither end has reached yet.
    left: KeyRange,
    front: Option<End>,
    back: Option<End>,
    wants_values: bool,
    /// Whether large values are left in `large`, unread.
    leaves_large: bool,
    large: Option<LargeValue>,
    /// The keyspace had been dropped when the scan began.
    is_of_dropped: bool,
}

impl Scan {
    pub(super) fn new(handle: OpenHandle<Progress>) -> Self {
        Scan { handle, is_over: false }
    }

    /// Returns values as readers, so that a long value need not be in memory as a whole.
    pub fn readers(mut self) -> Readers {
        self.change(|progress| progress.leaves_large = true);
        Readers(self)
    }

    /// Returns keys alone. It reads records of long keys only, since nothing else has all of their bytes.
    pub fn keys(mut self) -> Keys {
        self.change(|progress| progress.wants_values = false);
        Keys(self)
    }

    /// Moves the front to the first key of the range that is not less than `key`, ahead or behind.
    pub fn seek(&mut self, key: &[u8]) {
        self.change(|Progress { range, left, .. }| {
            let is_before = is_beyond(&range.lower, Ordering::Less, |lower| Some(key.cmp(lower)));
            left.lower = if is_before { range.lower.clone() } else { Bound::Included(key.to_vec()) };
        });
        self.begin_anew();
    }

    /// Moves the back to the last key of the range that is not greater than `key`, ahead or behind.
    pub fn seek_back(&mut self, key: &[u8]) {
        self.change(|Progress { range, left, .. }| {
            let is_behind = is_beyond(&range.upper, Ordering::Greater, |upper| Some(key.cmp(upper)));
            left.upper = if is_behind { range.upper.clone() } else { Bound::Included(key.to_vec()) };
        });
        self.begin_anew();
    }

    /// Changes the scan; in a forked child it does nothing, and `next` returns the error.
    fn change(&mut self, change: impl FnOnce(&mut Progress)) {
        if let Ok(progress) = self.handle.get_mut() {
            change(progress);
        }
    }

    fn begin_anew(&mut self) {
        // The other end may have stopped where there is more to show now.
        self.change(|progress| (progress.front, progress.back) = (None, None));
        self.is_over = false;
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        if self.is_over {
            return None;
        }
        let next = self.handle.get_mut().and_then(|progress| progress.take(direction));
        self.is_over = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

impl Progress {
    /// A scan of a keyspace's present contents.
    pub(super) fn now(open: &OpenKeyspace, range: KeyRange) -> Self {
        let view = Arc::new(View::begin(&open.keyspace));
        // After the view: a keyspace that is not dropped now was there when the view began.
        Progress { is_of_dropped: open.keyspace.is_dropped(), ..Self::new(open.clone(), view, range) }
    }

    pub(super) fn new(open: OpenKeyspace, view: Arc<View>, range: KeyRange) -> Self {
        Progress {
            open,
            view,
            left: range.clone(),
            range,
            front: None,
            back: None,
            wants_values: true,
            leaves_large: false,
            large: None,
            is_of_dropped: false,
        }
    }

    pub(super) fn take(&mut self, direction: Direction) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.is_of_dropped {
            return Err(self.open.keyspace.gone());
        }
        let KeyRange { lower, upper } = &mut self.left;
        let (end, begins, ends, beyond) = match direction {
            Direction::Up => (&mut self.front, lower, upper, Ordering::Greater),
            Direction::Down => (&mut self.back, upper, lower, Ordering::Less),
        };
        let end = match end {
            Some(end) => end,
            None => {
                let bound = begins.as_ref().map(Vec::as_slice);
                end.insert(End::new(
                    &self.open,
                    KeyspaceCursor::seek_with(&self.open.keyspace, &self.view, bound, (direction, self.wants_values))?,
                ))
            }
        };
        let (open, log) = (&self.open, &*self.open.keyspace.log);
        let is_beyond_end = |known: &KnownKey| is_beyond(ends, beyond, |end| known.compare_to(end));
        let Some(next) = end.next(open, self.wants_values, is_beyond_end)? else { return Ok(None) };
        let Ahead { known: KnownKey { bytes, complete, pointer, .. }, value, .. } = next;
        let is_large = pointer.kind() == PointerKind::Extents;
        // The record of a large value is its head.
        let wants_value = self.wants_values && !is_large && value.is_none();
        let key = RefCell::new(bytes);
        let value = if wants_value || !complete {
            log.read_from_bypass(&end.bypassed, pointer, |record| {
                if !complete {
                    let mut key = key.borrow_mut();
                    key.clear();
                    key.extend_from_slice(record.key);
                }
                if wants_value { record.value.to_vec() } else { Vec::new() }
            })?
        } else {
            value.unwrap_or_default()
        };
        let key = key.into_inner();
        if is_beyond(ends, beyond, |end| Some(key.as_slice().cmp(end))) {
            return Ok(None);
        }
        let value = match self.wants_values && is_large {
            true => {
                let large = LargeValue::open(log, pointer, &key)?;
                let whole = if self.leaves_large { 0..0 } else { 0..u64::MAX };
                let value = large.read(&log.segment.device, whole)?;
                self.large = Some(large).filter(|_| self.leaves_large);
                value
            }
            false => value,
        };
        if end.is_apart && pointer.kind() == PointerKind::Value {
            let begin = || Gathering::new(open, &self.view, begins.clone(), direction);
            if !end.gathering.get_or_insert_with(begin).take(pointer, &key, &value) {
                end.gathering = None;
            }
        }
        match begins {
            Bound::Excluded(last) => last.clone_from(&key),
            begins => *begins = Bound::Excluded(key.clone()),
        }
        Ok(Some((key, value)))
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Up)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Down)
    }
}

impl FusedIterator for Scan {}

impl Keys {
    /// See [`Scan::seek`].
    pub fn seek(&mut self, key: &[u8]) {
        self.0.seek(key);
    }

    /// See [`Scan::seek_back`].
    pub fn seek_back(&mut self, key: &[u8]) {
        self.0.seek_back(key);
    }
}

impl Iterator for Keys {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(key, _)| key))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.0.next_back()?.map(|(key, _)| key))
    }
}

impl FusedIterator for Keys {}

impl Readers {
    fn step(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, ValueReader)>> {
        let found = self.0.step(direction)?;
        Some(found.and_then(|(key, value)| {
            let Progress { open, view, large, .. } = self.0.handle.get_mut()?;
            let source = match large.take() {
                Some(large) => Source::large(&open.keyspace.log, &view.version, large),
                None => Source::small(&open.keyspace.log, &view.version, value),
            };
            Ok((key, ValueReader::new(self.0.handle.map(HandleKind::Reader, |_| source))?))
        }))
    }
}

impl Iterator for Readers {
    type Item = Result<(Vec<u8>, ValueReader)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Up)
    }
}

impl DoubleEndedIterator for Readers {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Down)
    }
}

impl FusedIterator for Readers {}

#[cfg(test)]
mod tests {
    use vmio::backing::Backing;

    use super::*;
    use crate::Error;
    use crate::device::failing_backing::FailingBacking;
    use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
    use crate::{Db, Durability, Options};

    fn key(number: u32) -> Vec<u8> {
        // A leaf has too few bytes of these keys to tell them apart.
        format!("{} a middle that many keys share {number:04}", if number < 50 { 'a' } else { 'b' }).into_bytes()
    }

    /// Evicts a leaf while it is searched, which reads a record, and fails when it is read again.
    fn during_a_failure<Answer: Send>(read: impl Fn(&Db) -> Result<Answer> + Sync) -> Result<Answer> {
        let backing = Arc::new(FailingBacking::new(64 << 20));
        let options = Options::new().memory_bytes(32 << 20).durability(Durability::None);
        let db = Db::create_on(Arc::clone(&backing), options.clone()).expect("a store");
        (0..100).for_each(|number| db.put(&key(number), &number.to_le_bytes()).expect("space"));
        db.flush().expect("compacted");
        db.close().expect("closed");
        let db = Db::open_on(Arc::clone(&backing), options).expect("a store");
        let version = db.default_keyspace().keyspace().version();
        let root = version.roots().next().expect("a tree");
        let leaf = unit_of(root.offset);
        let first = db.default_keyspace().keyspace().find(&version, u64::MAX, &key(0)).expect("read").expect("there");
        let device = &db.default_keyspace().keyspace().log.segment.device;
        (0..backing.len() / ALLOCATION_UNIT_BYTES).for_each(|unit| device.evict(unit));
        backing.hold_next(unit_of(first.offset()));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&db));
            assert!(backing.wait_for_read(|| reader.is_finished()), "no record was read");
            device.evict(leaf);
            backing.fail(Some(leaf));
            backing.go_on();
            reader.join().expect("no panic")
        })
    }

    #[test]
    fn a_leaf_that_cannot_be_read_again_is_an_error_not_a_wrong_answer() {
        let mut errors = 0;
        for number in [0, 20, 49, 50, 99_u32] {
            let expected = Some((key(number), number.to_le_bytes().to_vec()));
            let get = |db: &Db| Ok(db.get(&key(number))?.map(|value| (key(number), value)));
            let up = |db: &Db| db.scan(key(number)..).next().transpose();
            let down = |db: &Db| db.scan(..=key(number)).next_back().transpose();
            for found in [during_a_failure(get), during_a_failure(up), during_a_failure(down)] {
                match found {
                    Err(Error::Io(vmio::Error::Read { .. })) => errors += 1,
                    found => assert_eq!(found.expect("no other error"), expected),
                }
            }
        }
        assert!(errors >= 10, "{errors} times the leaf was looked at again");
    }
}
