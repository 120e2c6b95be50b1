//! A level of a keyspace, entry by entry.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::catalogue::Root;
use crate::format::leaf::KnownKey;
use crate::log::Log;
use crate::keyspace::Keyspace;
use crate::keyspace::memtable::{LOOKED_MAX, Memtable, Shown};
use crate::tree::{Cursor, Direction};

/// Entries that are taken from a memtable at a time, first and in the end: who looks for one key needs few.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 64;

/// What comes next in a level.
pub(super) enum Next {
    Entry(KnownKey),
    /// Up to this key, and of it, it shows nothing.
    Nothing(KnownKey),
}

impl Next {
    pub(super) fn known(&self) -> &KnownKey {
        match self {
            Next::Entry(known) | Next::Nothing(known) => known,
        }
    }

    pub(super) fn into_known(self) -> KnownKey {
        match self {
            Next::Entry(known) | Next::Nothing(known) => known,
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
            Next::Entry(known) | Next::Nothing(known) => known,
        }
    }
}

/// A level, and what is the next on the way.
pub(super) struct LevelCursor {
    place: Place,
    pub(super) next: Option<Next>,
}

enum Place {
    Memory(MemoryCursor),
    Tree(Cursor<Arc<Log>>),
}

struct MemoryCursor {
    level: Arc<Memtable>,
    /// Records from this number on are not seen.
    before: u64,
    direction: Direction,
    shown: Shown,
    most: usize,
}

impl MemoryCursor {
    fn new(level: &Arc<Memtable>, before: u64, direction: Direction) -> Self {
        MemoryCursor { level: Arc::clone(level), before, direction, shown: Shown::default(), most: BATCH_MIN }
    }

    /// The first entry within a bound, which the caller has come to.
    fn next_within(&mut self, bound: Bound<&[u8]>) -> Option<Next> {
        if self.shown.known.is_empty() && self.shown.skipped.is_none() {
            self.shown = self.level.some(bound, self.direction, self.before, self.most);
            self.most = BATCH_MAX.min(4 * self.most);
        }
        let known = self.shown.known.pop_front().map(Next::Entry);
        known.or_else(|| self.shown.skipped.take().map(Next::Nothing))
    }

    /// The same, wherever the caller is.
    fn skip_to(&mut self, bound: Bound<&[u8]>) -> Option<Next> {
        *self = MemoryCursor::new(&self.level, self.before, self.direction);
        self.next_within(bound)
    }
}

impl LevelCursor {
    pub(super) fn memtable(level: &Arc<Memtable>, before: u64, bound: Bound<&[u8]>, direction: Direction) -> Self {
        let mut cursor = MemoryCursor::new(level, before, direction);
        let next = cursor.next_within(bound);
        LevelCursor { place: Place::Memory(cursor), next }
    }

    pub(super) fn tree(
        keyspace: &Keyspace,
        root: Root,
        epoch: u64,
        bound: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Self> {
        let mut cursor = Cursor::seek(&keyspace.log, keyspace.number, root, epoch, bound, direction)?;
        let next = next_of_tree(&mut cursor)?;
        Ok(LevelCursor { place: Place::Tree(cursor), next })
    }

    /// To the next entry on the way; returns the one that it has been at.
    pub(super) fn take(&mut self) -> Result<Option<Next>> {
        let Some(taken) = self.next.take() else { return Ok(None) };
        self.next = match &mut self.place {
            Place::Memory(cursor) => cursor.next_within(Bound::Excluded(&taken.known().bytes)),
            Place::Tree(cursor) => next_of_tree(cursor)?,
        };
        Ok(Some(taken))
    }

    /// To the first entry behind a place on the way, if it may be before that.
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
            Place::Memory(cursor) => cursor.skip_to(bound),
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
