//! Whether keys have changed since a view.
//!
//! A key has changed if its value differs. A record that the collector, a reorganization or a compaction into leaves has moved has the same
//! value.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::leaf::{Entry, KnownKey};
use crate::format::pointer::{Pointer, PointerKind};
use crate::key_range::{KeyRange, is_beyond};
use crate::keyspace::memtable::Memtable;
use crate::keyspace::{Keyspace, KeyspaceCursor, View};
use crate::tree::Direction;

/// How many records are taken from a memtable at a time.
const BATCH: usize = 64;

/// The records of a keyspace that came after a view. All are in memory.
pub(crate) struct NewerRecords<'view> {
    keyspace: &'view Keyspace,
    view: &'view View,
    /// The memtables that have such records, the newest first.
    memtables: Vec<Arc<Memtable>>,
}

impl Keyspace {
    /// The records that came after a view. `None` if a memtable that may have some is in memory no more. The caller keeps writers out.
    pub(crate) fn newer_than<'view>(&'view self, view: &'view View) -> Option<NewerRecords<'view>> {
        let now = self.current();
        let of_view = &view.version.memtable;
        let mut memtables: Vec<&Arc<Memtable>> = std::iter::once(&now.memtable).chain(&now.immutable).collect();
        // Older ones have nothing that the view does not show.
        memtables.retain(|memtable| memtable.generation > of_view.generation);
        if memtables.len() as u64 != now.memtable.generation - of_view.generation {
            return None;
        }
        memtables.push(of_view);
        memtables.retain(|memtable| !memtable.stay().is_before(view.before));
        let memtables = memtables.into_iter().map(Arc::clone).collect();
        Some(NewerRecords { keyspace: self, view, memtables })
    }

    /// Whether a key has different values in two views.
    pub(crate) fn differs(&self, key: &[u8], views: [&View; 2]) -> Result<bool> {
        let [old, new] = views.map(|view| self.newest(&view.version, view.before, key));
        Ok(!self.is_same_value(old?, new?)?)
    }

    /// The first key of a range that has different values in two views.
    pub(crate) fn first_difference(&self, range: &KeyRange, views: [&Arc<View>; 2]) -> Result<Option<Vec<u8>>> {
        let lower = range.lower.as_ref().map(Vec::as_slice);
        let [old, new] = views.map(|view| KeyspaceCursor::seek(self, view, lower, Direction::Up));
        let (mut old, mut new) = (old?, new?);
        loop {
            let (left, right) = (self.next_within(&mut old, range)?, self.next_within(&mut new, range)?);
            match (left, right) {
                (None, None) => return Ok(None),
                (Some(left), Some(right)) if left.bytes == right.bytes => {
                    if !self.is_same_value(Some(left.pointer), Some(right.pointer))? {
                        return Ok(Some(left.bytes));
                    }
                }
                (left, right) => return Ok(left.into_iter().chain(right).map(|known| known.bytes).min()),
            }
        }
    }

    /// The next key of a range with a value.
    fn next_within(&self, cursor: &mut KeyspaceCursor, range: &KeyRange) -> Result<Option<KnownKey>> {
        let next = cursor.next(|known| is_beyond(&range.upper, Ordering::Greater, |end| known.compare_to(end)))?;
        let Some(Entry { key: mut known, .. }) = next else { return Ok(None) };
        self.log.complete(&mut known)?;
        let is_within = !is_beyond(&range.upper, Ordering::Greater, |end| Some(known.bytes.as_slice().cmp(end)));
        Ok(is_within.then_some(known))
    }

    /// Whether two records of a key have the same value, or both none. Large values count as different unless they are one and the same.
    fn is_same_value(&self, left: Option<Pointer>, right: Option<Pointer>) -> Result<bool> {
        let value = |pointer: Option<Pointer>| pointer.filter(|pointer| pointer.kind() != PointerKind::Tombstone);
        let (left, right) = match (value(left), value(right)) {
            (None, None) => return Ok(true),
            (Some(left), Some(right)) => (left.record(), right.record()),
            _ => return Ok(false),
        };
        if left == right {
            return Ok(true);
        }
        if [left, right].iter().any(|pointer| pointer.kind() == PointerKind::Extents) {
            return Ok(false);
        }
        let value = self.log.read(left, |record| record.value.to_vec())?;
        self.log.read(right, |record| record.value == value)
    }
}

impl NewerRecords<'_> {
    /// Whether there is one of a key, whatever its value.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.memtables.iter().any(|memtable| memtable.get_since(key, self.view.before).is_some())
    }

    /// Whether there is one of a range, whatever its value.
    pub(crate) fn has_within(&self, range: &KeyRange) -> bool {
        let lower = range.lower.as_ref().map(Vec::as_slice);
        let is_beyond = |key: &[u8]| is_beyond(&range.upper, Ordering::Greater, |end| Some(key.cmp(end)));
        self.memtables.iter().any(|memtable| !memtable.some_since(lower, is_beyond, self.view.before, 1).is_empty())
    }

    /// Whether a key has changed.
    pub(crate) fn has_changed(&self, key: &[u8]) -> Result<bool> {
        let newest = self.memtables.iter().find_map(|memtable| memtable.get_since(key, self.view.before));
        newest.map_or(Ok(false), |newest| self.is_other(key, newest))
    }

    /// A key of a range that has changed. It takes a key that has changed and changed back for one, where a flush began in between.
    pub(crate) fn changed_in(&self, range: &KeyRange) -> Result<Option<Vec<u8>>> {
        for memtable in &self.memtables {
            let mut lower = range.lower.clone();
            loop {
                let is_beyond = |key: &[u8]| is_beyond(&range.upper, Ordering::Greater, |end| Some(key.cmp(end)));
                let from = lower.as_ref().map(Vec::as_slice);
                let some = memtable.some_since(from, is_beyond, self.view.before, BATCH);
                for (key, newest) in &some {
                    if self.is_other(key, *newest)? {
                        return Ok(Some(key.clone()));
                    }
                }
                if some.len() < BATCH {
                    break;
                }
                lower = some.into_iter().next_back().map_or(Bound::Unbounded, |(last, _)| Bound::Excluded(last));
            }
        }
        Ok(None)
    }

    /// Whether a record has another value than the view shows.
    fn is_other(&self, key: &[u8], newest: Pointer) -> Result<bool> {
        let shown = self.keyspace.newest(&self.view.version, self.view.before, key)?;
        Ok(!self.keyspace.is_same_value(shown, Some(newest))?)
    }
}
