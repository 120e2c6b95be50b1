//! Keys in a row that have no value.

use crate::error::Result;
use crate::format::leaf::KnownKey;
use crate::log::Log;
use crate::keyspace::gaps::behind;
use crate::tree::Direction;

/// Shorter ones are gone by each time: to go past one at once costs about as much.
const LEARNT_MIN: usize = 32;
/// Longer ones are learnt in parts: who learns one keeps writers waiting, and who does not go on has learnt something.
const PART: usize = 512;

/// Keys in a row that a cursor has gone by.
pub(super) struct Run {
    begin: Begin,
    /// The last of several.
    last: Option<KnownKey>,
    skipped: usize,
}

enum Begin {
    /// With the first of them.
    Key(KnownKey),
    /// Where it is known already that there is nothing.
    Place(Vec<u8>),
}

/// The place before a key on the way.
pub(super) fn place_before(key: &[u8], direction: Direction) -> Vec<u8> {
    match direction {
        Direction::Up => key.to_vec(),
        Direction::Down => behind(key),
    }
}

/// The place behind a key on the way.
fn place_behind(key: &[u8], direction: Direction) -> Vec<u8> {
    match direction {
        Direction::Up => behind(key),
        Direction::Down => key.to_vec(),
    }
}

impl Run {
    /// With a first key; so many were looked at for it.
    pub(super) fn from_key(first: KnownKey, looked: usize) -> Self {
        Run { begin: Begin::Key(first), last: None, skipped: looked }
    }

    /// From the end of what is known to be empty on.
    pub(super) fn from_place(place: Vec<u8>) -> Self {
        Run { begin: Begin::Place(place), last: None, skipped: 0 }
    }

    /// Goes on to a key; so many were looked at for it.
    pub(super) fn push(&mut self, known: KnownKey, looked: usize) {
        self.last = Some(known);
        self.skipped += looked;
    }

    /// Whether so much of it has come together that it should be learnt before it goes on.
    pub(super) fn is_long(&self) -> bool {
        self.skipped >= PART
    }

    /// The two places, in the order of keys, that it is between, and where it goes on; none if it is not worth it. Of keys that are not
    /// known as a whole the records are read.
    pub(super) fn places(
        &mut self,
        log: &Log,
        direction: Direction,
        is_before_known: bool,
    ) -> Result<Option<[Vec<u8>; 2]>> {
        // A range that was cut comes together again: else each of its parts would be gone to for ever.
        let joins_two = is_before_known && matches!(self.begin, Begin::Place(_));
        let is_worth_it = self.skipped >= LEARNT_MIN || joins_two;
        let Some(last) = self.last.as_mut().filter(|_| is_worth_it) else { return Ok(None) };
        log.complete(last)?;
        let end = place_behind(&last.bytes, direction);
        let begin = match &mut self.begin {
            Begin::Key(first) => {
                log.complete(first)?;
                place_before(&first.bytes, direction)
            }
            Begin::Place(place) => std::mem::take(place),
        };
        *self = Run::from_place(end.clone());
        Ok(Some(match direction {
            Direction::Up => [begin, end],
            Direction::Down => [end, begin],
        }))
    }
}
