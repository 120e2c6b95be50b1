//! The keys and ranges that a transaction has read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::key_range::KeyRange;
use crate::tree::Direction;

/// The reads of a transaction, by the places of keyspaces.
#[derive(Default)]
pub(super) struct Reads(BTreeMap<usize, OfKeyspace>);

/// The reads of a keyspace.
#[derive(Default)]
pub(super) struct OfKeyspace {
    pub(super) keys: BTreeSet<Box<[u8]>>,
    scans: Vec<Scanned>,
}

/// How far a scan has come from either end.
struct Scanned {
    range: KeyRange,
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
    is_whole: bool,
}

impl Reads {
    pub(super) fn add_key(&mut self, place: usize, key: &[u8]) {
        let keys = &mut self.0.entry(place).or_default().keys;
        if !keys.contains(key) {
            keys.insert(key.into());
        }
    }

    /// Adds a scan that has read nothing yet. Returns its number.
    pub(super) fn begin_scan(&mut self, place: usize, range: KeyRange) -> usize {
        let scans = &mut self.0.entry(place).or_default().scans;
        scans.push(Scanned { range, front: None, back: None, is_whole: false });
        scans.len() - 1
    }

    /// A scan has come to a key, from one end.
    pub(super) fn reach(&mut self, place: usize, scan: usize, direction: Direction, key: &[u8]) {
        let scanned = &mut self.0.entry(place).or_default().scans[scan];
        let reached = match direction {
            Direction::Up => &mut scanned.front,
            Direction::Down => &mut scanned.back,
        };
        match reached {
            Some(last) => key.clone_into(last),
            None => *reached = Some(key.to_vec()),
        }
    }

    /// A scan has come to its end.
    pub(super) fn end_scan(&mut self, place: usize, scan: usize) {
        self.0.entry(place).or_default().scans[scan].is_whole = true;
    }

    /// The keyspaces that were read.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().filter(|(_, of)| !of.keys.is_empty() || of.ranges().next().is_some()).map(|(place, _)| *place)
    }

    pub(super) fn of(&self, place: usize) -> &OfKeyspace {
        static NOTHING: OfKeyspace = OfKeyspace { keys: BTreeSet::new(), scans: Vec::new() };
        self.0.get(&place).unwrap_or(&NOTHING)
    }
}

impl OfKeyspace {
    /// The ranges that were read as a whole.
    pub(super) fn ranges(&self) -> impl Iterator<Item = KeyRange> + '_ {
        self.scans.iter().flat_map(Scanned::ranges)
    }
}

impl Scanned {
    fn ranges(&self) -> impl Iterator<Item = KeyRange> + '_ {
        let KeyRange { lower, upper } = &self.range;
        let whole = self.is_whole.then(|| self.range.clone());
        let parts = !self.is_whole;
        let front = self.front.as_ref().filter(|_| parts);
        let back = self.back.as_ref().filter(|_| parts);
        let front = front.map(|last| KeyRange { lower: lower.clone(), upper: Bound::Included(last.clone()) });
        let back = back.map(|last| KeyRange { lower: Bound::Included(last.clone()), upper: upper.clone() });
        whole.into_iter().chain(front).chain(back)
    }
}
