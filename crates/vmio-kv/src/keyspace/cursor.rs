//! A cursor over a keyspace in the order of its keys: it merges all levels, and finds the newest record of each key.

mod level;
mod run;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::leaf::{Entry, KnownKey};
use crate::format::pointer::PointerKind;
use crate::keyspace::cursor::level::{LevelCursor, Next};
use crate::keyspace::cursor::run::{Run, place_before};
use crate::keyspace::gaps::{Ahead, behind};
use crate::keyspace::memtable::NEWEST;
use crate::keyspace::{Keyspace, View};
use crate::log::Log;
use crate::tree::Direction;

/// A place in a keyspace, between two keys.
pub(crate) struct KeyspaceCursor {
    log: Arc<Log>,
    /// Protects what the levels refer to from reuse.
    view: Arc<View>,
    direction: Direction,
    /// The newest level first.
    levels: Vec<LevelCursor>,
    /// The keys without values that it has just passed.
    run: Option<Run>,
    /// Where the next known gap begins.
    ahead: Option<Vec<u8>>,
    /// How many entries it has passed, returned ones included.
    #[cfg(test)]
    looked: u64,
}

impl KeyspaceCursor {
    /// A cursor at the first key in a direction that is within a bound.
    pub(crate) fn seek(
        keyspace: &Keyspace,
        view: &Arc<View>,
        bound: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Self> {
        Self::seek_with(keyspace, view, bound, (direction, false))
    }

    /// The same. The second part of `how` says whether entries bring the values that leaves hold.
    pub(crate) fn seek_with(
        keyspace: &Keyspace,
        view: &Arc<View>,
        bound: Bound<&[u8]>,
        how: (Direction, bool),
    ) -> Result<Self> {
        let direction = how.0;
        let mut cursor = KeyspaceCursor {
            log: Arc::clone(&keyspace.log),
            view: Arc::clone(view),
            direction,
            levels: Vec::new(),
            run: None,
            ahead: None,
            #[cfg(test)]
            looked: 0,
        };
        let place = match (bound, direction) {
            (Bound::Unbounded, Direction::Up) => Some(Vec::new()),
            (Bound::Unbounded, Direction::Down) => None,
            (Bound::Included(key), Direction::Up) | (Bound::Excluded(key), Direction::Down) => Some(key.to_vec()),
            (Bound::Excluded(key), Direction::Up) | (Bound::Included(key), Direction::Down) => Some(behind(key)),
        };
        let end = cursor.look_ahead(place.as_deref());
        let bound = match (&end, direction) {
            (Some(end), Direction::Up) => Bound::Included(&**end),
            (Some(end), Direction::Down) => Bound::Excluded(&**end),
            (None, _) => bound,
        };
        let version = &view.version;
        cursor.levels.push(LevelCursor::memtable(&version.memtable, view.before, bound, direction));
        let immutable =
            version.immutable.iter().map(|immutable| LevelCursor::memtable(immutable, NEWEST, bound, direction));
        cursor.levels.extend(immutable);
        for root in version.roots() {
            cursor.levels.push(LevelCursor::tree(keyspace, root, version.epoch, bound, how)?);
        }
        cursor.run = end.map(Run::from_place);
        Ok(cursor)
    }

    /// Looks up the gaps from a place on. If the place is in a gap, returns where that gap ends.
    fn look_ahead(&mut self, place: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut ahead = self.view.ahead(place, self.direction);
        let mut end = None;
        // Gaps of the view and of the keyspace may follow each other.
        while let Ahead::Within(place) = ahead {
            ahead = self.view.ahead(Some(&place), self.direction);
            end = Some(place);
        }
        self.ahead = if let Ahead::Begins(place) = ahead { Some(place) } else { None };
        end
    }

    /// The next key with a value, as far as the key is known. `None` if all further keys are known to be beyond an end.
    pub(crate) fn next(&mut self, is_beyond: impl Fn(&KnownKey) -> bool) -> Result<Option<Entry>> {
        loop {
            match self.nearest()?.filter(|next| !is_beyond(next.known())) {
                Some(Next::Entry(entry)) if entry.key.pointer.kind() != PointerKind::Tombstone => {
                    self.end_run();
                    return Ok(Some(entry));
                }
                Some(next) => self.pass(next)?,
                None => {
                    self.end_run();
                    return Ok(None);
                }
            }
        }
    }

    /// The next key, as far as it is known, with the newest level's entry, which may be a deletion. Takes the key out of all levels.
    pub(crate) fn next_or_deleted(&mut self) -> Result<Option<KnownKey>> {
        loop {
            match self.nearest()? {
                Some(Next::Entry(entry)) => return Ok(Some(entry.key)),
                Some(Next::Nothing(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Takes the next entry out of all levels.
    fn nearest(&mut self) -> Result<Option<Next>> {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        let is_nearer = match self.direction {
            Direction::Up => Ordering::Less,
            Direction::Down => Ordering::Greater,
        };
        let mut nearest = None;
        let mut same_key = Vec::new();
        for index in 0..self.levels.len() {
            let (newer, older) = self.levels.split_at_mut(index);
            let Some(next) = &mut older[0].next else { continue };
            let (ordering, shows_nothing) = match nearest.and_then(|nearest: usize| newer[nearest].next.as_mut()) {
                Some(nearest) => {
                    let ordering = self.log.compare(next.known_mut(), nearest.known_mut())?;
                    (ordering, matches!(nearest, Next::Nothing(_)))
                }
                None => (is_nearer, false),
            };
            if ordering == is_nearer {
                nearest = Some(index);
                same_key.clear();
            } else if ordering == Ordering::Equal && shows_nothing {
                // An older level may have an entry of the same key, which counts.
                same_key.extend(nearest.replace(index));
            } else if ordering == Ordering::Equal {
                same_key.push(index);
            }
        }
        for index in same_key {
            self.levels[index].take()?;
        }
        nearest.map_or(Ok(None), |nearest| self.levels[nearest].take())
    }

    /// Passes a key that has no value. At the beginning of a known gap it passes all of the gap.
    fn pass(&mut self, next: Next) -> Result<()> {
        let looked = next.looked();
        let mut known = next.into_known();
        let end = if self.reaches_what_is_ahead(&mut known) {
            self.look_ahead(Some(&place_before(&known.bytes, self.direction)))
        } else {
            None
        };
        match &mut self.run {
            Some(run) => run.push(known, looked),
            run => *run = Some(Run::from_key(known, looked)),
        }
        if end.is_some() || self.run.as_ref().is_some_and(Run::is_long) {
            self.learn(end.is_some());
        }
        if let Some(end) = end {
            self.levels.iter_mut().try_for_each(|level| level.skip_to(&end, self.direction))?;
            self.run = Some(Run::from_place(end));
        }
        Ok(())
    }

    /// Whether a key is at or beyond the beginning of the next known gap; all of the key is known then. If that cannot be told the answer
    /// is no, and the cursor passes the key like others.
    fn reaches_what_is_ahead(&self, known: &mut KnownKey) -> bool {
        let Some(place) = &self.ahead else { return false };
        let is_there = |ordering: Ordering| match self.direction {
            Direction::Up => ordering.is_ge(),
            Direction::Down => ordering.is_lt(),
        };
        let may_be = known.compare_to(place).is_none_or(is_there);
        may_be && self.log.complete(known).is_ok() && known.compare_to(place).is_some_and(is_there)
    }

    fn end_run(&mut self) {
        self.learn(false);
        self.run = None;
    }

    /// Records a gap where there were many keys without values, or where they lie between two known gaps. It leaves out a gap whose keys it
    /// cannot read.
    fn learn(&mut self, is_before_known: bool) {
        let Some(run) = &mut self.run else { return };
        if let Ok(Some([start, end])) = run.places(&self.log, self.direction, is_before_known) {
            self.view.learn(start, end);
        }
    }
}
