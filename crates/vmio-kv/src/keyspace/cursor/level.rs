//! A cursor over one level of a keyspace.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::catalogue::Root;
use crate::format::leaf::{Entry, KnownKey};
use crate::keyspace::Keyspace;
use crate::keyspace::memtable::{LOOKED_MAX, Memtable, Shown};
use crate::log::Log;
use crate::tree::{Cursor, Direction};

/// How many entries a cursor takes from a memtable at a time, at first and at most. A search for one key needs few.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 64;

/// The next step of a walk through a level.
pub(super) enum Next {
    Entry(Entry),
    /// The level shows no entry up to this key, the key itself included.
    Nothing(KnownKey),
}

impl Next {
    pub(super) fn known(&self) -> &KnownKey {
        match self {
            Next::Entry(Entry { key: known, .. }) | Next::Nothing(known) => known,
        }
    }

    pub(super) fn into_known(self) -> KnownKey {
        match self {
            Next::Entry(Entry { key: known, .. }) | Next::Nothing(known) => known,
        }
    }

    /// How many entries were looked at for it.
    pub(super) fn looked(&self) -> usize {
        match self {
            Next::Entry(_) => 1,
            Next::Nothing(_) => LOOKED_MAX,
        }
    }

    pub(super) fn known_mut(&mut self) -> &mut KnownKey {
        match self {
            Next::Entry(Entry { key: known, .. }) | Next::Nothing(known) => known,
        }
    }
}

/// A place in a level, and the next step in a direction.
pub(super) struct LevelCursor {
    place: Place,
    pub(super) next: Option<Next>,
}

enum Place {
    Memtable(MemtableCursor),
    Tree(Cursor<Arc<Log>>),
}

struct MemtableCursor {
    memtable: Arc<Memtable>,
    /// The cursor shows no records from this number on.
    before: u64,
    direction: Direction,
    shown: Shown,
    most: usize,
}

impl MemtableCursor {
    fn new(memtable: &Arc<Memtable>, before: u64, direction: Direction) -> Self {
        let (memtable, shown) = (Arc::clone(memtable), Shown::default());
        MemtableCursor { memtable, before, direction, shown, most: BATCH_MIN }
    }

    /// The first entry within a bound, which the cursor has come to.
    fn next_within(&mut self, bound: Bound<&[u8]>) -> Option<Next> {
        if self.shown.known.is_empty() && self.shown.skipped.is_none() {
            self.shown = self.memtable.some(bound, self.direction, self.before, self.most);
            self.most = BATCH_MAX.min(4 * self.most);
        }
        let known = self.shown.known.pop_front().map(|known| Next::Entry(Entry::to_record(known)));
        known.or_else(|| self.shown.skipped.take().map(Next::Nothing))
    }

    /// The first entry within a bound, wherever the cursor is.
    fn skip_to(&mut self, bound: Bound<&[u8]>) -> Option<Next> {
        *self = MemtableCursor::new(&self.memtable, self.before, self.direction);
        self.next_within(bound)
    }
}

impl LevelCursor {
    pub(super) fn memtable(memtable: &Arc<Memtable>, before: u64, bound: Bound<&[u8]>, direction: Direction) -> Self {
        let mut cursor = MemtableCursor::new(memtable, before, direction);
        let next = cursor.next_within(bound);
        LevelCursor { place: Place::Memtable(cursor), next }
    }

    /// Of a tree. Its entries bring the values that leaves hold, if `how` says so besides the direction.
    pub(super) fn tree(
        keyspace: &Keyspace,
        root: Root,
        epoch: u64,
        bound: Bound<&[u8]>,
        how: (Direction, bool),
    ) -> Result<Self> {
        let mut cursor = Cursor::seek(&keyspace.log, keyspace.number, root, epoch, bound, how)?;
        let next = next_of_tree(&mut cursor)?;
        Ok(LevelCursor { place: Place::Tree(cursor), next })
    }

    /// Goes to the next entry; returns the one that it was at.
    pub(super) fn take(&mut self) -> Result<Option<Next>> {
        let Some(taken) = self.next.take() else { return Ok(None) };
        self.next = match &mut self.place {
            Place::Memtable(cursor) => cursor.next_within(Bound::Excluded(&taken.known().bytes)),
            Place::Tree(cursor) => next_of_tree(cursor)?,
        };
        Ok(Some(taken))
    }

    /// Goes to the first entry behind a place, unless it is there already.
    pub(super) fn skip_to(&mut self, place: &[u8], direction: Direction) -> Result<()> {
        let Some(next) = &self.next else { return Ok(()) };
        let ordering = next.known().compare_to(place);
        let (is_behind, bound) = match direction {
            Direction::Up => (ordering.is_some_and(Ordering::is_ge), Bound::Included(place)),
            Direction::Down => (ordering.is_some_and(Ordering::is_lt), Bound::Excluded(place)),
        };
        if is_behind {
            return Ok(());
        }
        self.next = match &mut self.place {
            Place::Memtable(cursor) => cursor.skip_to(bound),
            Place::Tree(cursor) => {
                cursor.skip_to(bound)?;
                next_of_tree(cursor)?
            }
        };
        Ok(())
    }
}

fn next_of_tree(cursor: &mut Cursor<Arc<Log>>) -> Result<Option<Next>> {
    let entry = cursor.next()?.map(Next::Entry);
    Ok(entry.or_else(|| cursor.take_skipped().map(Next::Nothing)))
}
