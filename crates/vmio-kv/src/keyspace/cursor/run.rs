//! Runs of keys that have no value.

use crate::error::Result;
use crate::format::leaf::KnownKey;
use crate::keyspace::gaps::behind;
use crate::log::Log;
use crate::tree::Direction;

/// Shorter runs are not recorded as gaps: to pass their keys costs about as much as to pass a gap.
const LEARNT_MIN: usize = 32;
/// Longer runs are recorded in parts: recording keeps writers waiting, and a cursor that stops early has recorded something.
const PART: usize = 512;

/// Keys in a row that a cursor has passed.
pub(super) struct Run {
    begin: Begin,
    /// The last of several keys.
    last: Option<KnownKey>,
    skipped: usize,
}

enum Begin {
    /// Begins with this key.
    Key(KnownKey),
    /// Begins where a known gap ends.
    Place(Vec<u8>),
}

/// The place before a key, in a direction.
pub(super) fn place_before(key: &[u8], direction: Direction) -> Vec<u8> {
    match direction {
        Direction::Up => key.to_vec(),
        Direction::Down => behind(key),
    }
}

/// The place behind a key, in a direction.
fn place_behind(key: &[u8], direction: Direction) -> Vec<u8> {
    match direction {
        Direction::Up => behind(key),
        Direction::Down => key.to_vec(),
    }
}

impl Run {
    /// A run that begins with a key, for which `looked` keys were looked at.
    pub(super) fn from_key(first: KnownKey, looked: usize) -> Self {
        Run { begin: Begin::Key(first), last: None, skipped: looked }
    }

    /// A run that begins at the end of a known gap.
    pub(super) fn from_place(place: Vec<u8>) -> Self {
        Run { begin: Begin::Place(place), last: None, skipped: 0 }
    }

    /// Adds a key, for which `looked` keys were looked at.
    pub(super) fn push(&mut self, known: KnownKey, looked: usize) {
        self.last = Some(known);
        self.skipped += looked;
    }

    /// Whether the run is so long that a part of it should be recorded.
    pub(super) fn is_long(&self) -> bool {
        self.skipped >= PART
    }

    /// The places that the run begins and ends at, in the order of keys, if it is worth recording; the run begins anew at its end. It
    /// reads the records of keys that are not known as a whole.
    pub(super) fn places(
        &mut self,
        log: &Log,
        direction: Direction,
        is_before_known: bool,
    ) -> Result<Option<[Vec<u8>; 2]>> {
        // Gaps that a put has cut are joined again: otherwise a cursor would stop at each part for ever.
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
