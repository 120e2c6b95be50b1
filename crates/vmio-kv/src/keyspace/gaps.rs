//! Gaps: ranges of keys that are known to have no value. A search for the next key with a value passes each gap at once.
//!
//! Scans find gaps where they have passed many deleted keys in a row. A put into a gap cuts it. A gap does not say where the deletions are,
//! so that flushes and collections do not change it. Gaps are kept in memory only.
//!
//! A gap begins and ends at places between keys. A place is a byte string: lesser keys are before it, others behind it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::keyspace::MemtableBudget;
use crate::tree::Direction;

/// The most gaps at a time.
const GAPS_MAX: usize = 1 << 16;
/// Bytes of a gap besides those of its two places: its share of a node, and two allocations.
const GAP_BYTES: u64 = 112;

/// The place directly behind a key.
pub(super) fn behind(key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(key.len() + 1);
    place.extend_from_slice(key);
    place.push(0);
    place
}

/// The known gaps from a place on, in a direction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// The place is in a gap, which ends here.
    Within(Vec<u8>),
    /// The next gap begins here.
    Begins(Vec<u8>),
    /// There is no gap.
    Nothing,
}

impl Ahead {
    /// Combines the answers of two sets of gaps.
    pub(super) fn or(self, other: Ahead, direction: Direction) -> Ahead {
        match (self, other) {
            (Ahead::Nothing, known) | (known, Ahead::Nothing) => known,
            (Ahead::Within(end), _) | (_, Ahead::Within(end)) => Ahead::Within(end),
            (Ahead::Begins(one), Ahead::Begins(other)) => Ahead::Begins(match direction {
                Direction::Up => one.min(other),
                Direction::Down => one.max(other),
            }),
        }
    }
}

struct Gap {
    end: Vec<u8>,
    /// Views of the records below this number, or below a higher one, have nothing in the gap.
    since: u64,
    /// Whether a search has gone past it of late.
    is_used: AtomicBool,
}

impl Gap {
    fn new(end: Vec<u8>, since: u64, is_used: bool) -> Self {
        Gap { end, since, is_used: AtomicBool::new(is_used) }
    }

    fn bytes(&self, start: &[u8]) -> u64 {
        GAP_BYTES + (start.len() + self.end.len()) as u64
    }
}

/// Gaps that do not overlap. Two that touch are one, unless a put has come between.
#[derive(Default)]
struct Ranges {
    by_start: BTreeMap<Vec<u8>, Gap>,
    /// Where the search for an unused gap goes on.
    hand: Vec<u8>,
}

/// All known gaps of a keyspace, or of a view.
pub(crate) struct Gaps {
    ranges: RwLock<Ranges>,
    /// Whether there are any: puts look at this first. Puts and learning exclude each other; see
    /// [`Memtable::learn`](super::memtable::Memtable::learn).
    any: AtomicBool,
    /// The budget that the gaps' memory counts in.
    budget: Arc<MemtableBudget>,
}

impl Gaps {
    /// No gaps yet.
    pub(crate) fn new(budget: &Arc<MemtableBudget>) -> Self {
        Gaps { ranges: RwLock::default(), any: AtomicBool::new(false), budget: Arc::clone(budget) }
    }

    /// The known gaps from a place on, for views of the records below a number. `None` is the place behind all keys.
    pub(super) fn ahead(&self, place: Option<&[u8]>, direction: Direction, before: u64) -> Ahead {
        if !self.any.load(Ordering::Relaxed) {
            return Ahead::Nothing;
        }
        let ranges = self.ranges.read();
        match direction {
            Direction::Up => ranges.above(place, before),
            Direction::Down => ranges.below(place, before),
        }
    }

    /// Adds a gap between two places, for views of the records below `since` or a higher number. Returns the number from which on views
    /// know the gap now. It is higher if the gap was joined with its neighbours.
    pub(super) fn learn(&self, start: Vec<u8>, end: Vec<u8>, since: u64) -> u64 {
        let (mut start, mut end, mut since, mut is_used) = (start, end, since, false);
        let mut ranges = self.ranges.write();
        while let Some((known, gap)) = ranges.up_to(Bound::Included(&end)).filter(|(_, gap)| gap.end >= start) {
            if *known <= start && gap.end >= end && gap.since <= since {
                return gap.since;
            }
            if *known < start || gap.end > end {
                since = since.max(gap.since);
            }
            let known = known.clone();
            if let Some(gap) = ranges.take(&known, &self.budget) {
                is_used |= gap.is_used.load(Ordering::Relaxed);
                (start, end) = (start.min(known), end.max(gap.end));
            }
        }
        ranges.insert(start, Gap::new(end, since, is_used), &self.budget);
        self.any.store(!ranges.by_start.is_empty(), Ordering::Relaxed);
        since
    }

    /// Cuts the gap that a key is in: the key has a value from here on.
    pub(super) fn cut(&self, key: &[u8]) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut ranges = self.ranges.write();
        let within = ranges.up_to(Bound::Included(key)).filter(|(_, gap)| *gap.end > *key);
        let Some(start) = within.map(|(start, _)| start.clone()) else { return };
        let Some(gap) = ranges.take(&start, &self.budget) else { return };
        let behind = behind(key);
        if behind < gap.end {
            ranges.insert(behind, Gap::new(gap.end, gap.since, false), &self.budget);
        }
        if *start < *key {
            ranges.insert(start, Gap::new(key.to_vec(), gap.since, false), &self.budget);
        }
        self.any.store(!ranges.by_start.is_empty(), Ordering::Relaxed);
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        let bytes = self.ranges.get_mut().by_start.iter().map(|(start, gap)| gap.bytes(start)).sum();
        self.budget.give_back_of_gaps(bytes);
    }
}

impl Ranges {
    /// The last gap that begins within a bound.
    fn up_to(&self, bound: Bound<&[u8]>) -> Option<(&Vec<u8>, &Gap)> {
        self.by_start.range::<[u8], _>((Bound::Unbounded, bound)).next_back()
    }

    fn above(&self, place: Option<&[u8]>, before: u64) -> Ahead {
        let Some(place) = place else { return Ahead::Nothing };
        if let Some((_, gap)) = self.up_to(Bound::Included(place))
            && *gap.end > *place
            && gap.since <= before
        {
            gap.is_used.store(true, Ordering::Relaxed);
            return Ahead::Within(gap.end.clone());
        }
        let next = self.by_start.range::<[u8], _>((Bound::Excluded(place), Bound::Unbounded)).next();
        next.map_or(Ahead::Nothing, |(start, _)| Ahead::Begins(start.clone()))
    }

    fn below(&self, place: Option<&[u8]>, before: u64) -> Ahead {
        let next = self.up_to(place.map_or(Bound::Unbounded, Bound::Excluded));
        let Some((start, gap)) = next else { return Ahead::Nothing };
        if place.is_none_or(|place| *gap.end < *place) {
            return Ahead::Begins(gap.end.clone());
        }
        if gap.since <= before {
            gap.is_used.store(true, Ordering::Relaxed);
            return Ahead::Within(start.clone());
        }
        let next = self.up_to(Bound::Excluded(start));
        next.map_or(Ahead::Nothing, |(_, gap)| Ahead::Begins(gap.end.clone()))
    }

    fn take(&mut self, start: &[u8], budget: &MemtableBudget) -> Option<Gap> {
        let gap = self.by_start.remove(start)?;
        budget.give_back_of_gaps(gap.bytes(start));
        Some(gap)
    }

    /// Adds a gap, and forgets unused ones for it. If it can forget none, it does not add the gap.
    fn insert(&mut self, start: Vec<u8>, gap: Gap, budget: &MemtableBudget) {
        let bytes = gap.bytes(&start);
        while self.by_start.len() >= GAPS_MAX || !budget.take_for_gaps(bytes) {
            let Some(unused) = self.unused() else { return };
            self.take(&unused, budget);
        }
        self.by_start.insert(start, gap);
    }

    /// The next gap that no search has gone past since the last look at it.
    fn unused(&mut self) -> Option<Vec<u8>> {
        // Once all are marked as unused, the first is.
        for _ in 0..=self.by_start.len() {
            let next = self.by_start.range::<[u8], _>((Bound::Excluded(&*self.hand), Bound::Unbounded)).next();
            let (start, gap) = next.or_else(|| self.by_start.first_key_value())?;
            let (is_used, start) = (gap.is_used.swap(false, Ordering::Relaxed), start.clone());
            self.hand.clone_from(&start);
            if !is_used {
                return Some(start);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn budget(bytes: u64) -> Arc<MemtableBudget> {
        Arc::new(MemtableBudget::new(bytes, 0, 1 << 20))
    }

    fn place(number: u8) -> Vec<u8> {
        vec![number]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        Delete(u8),
        /// A view of some steps ago learns the gap from a key on.
        Learn(u8, usize),
    }

    proptest! {
        #[test]
                fn a_gap_has_no_keys_for_the_views_that_use_it(steps in proptest::collection::vec(prop_oneof![
            2 => (0_u8..24).prop_map(Step::Put),
            3 => (0_u8..24).prop_map(Step::Delete),
            3 => (0_u8..24, 0_usize..6).prop_map(|(from, ago)| Step::Learn(from, ago)),
        ], 1..80)) {
            let gaps = Gaps::new(&budget(1 << 20));
                        // The keys before each number.
            let mut states: Vec<BTreeSet<u8>> = vec![BTreeSet::new()];
            for step in steps {
                let mut now = states[states.len() - 1].clone();
                match step {
                    Step::Put(key) => {
                        now.insert(key);
                        gaps.cut(&place(key));
                    }
                    Step::Delete(key) => { now.remove(&key); }
                    Step::Learn(from, ago) => {
                        let since = states.len() - 1 - ago.min(states.len() - 1);
                                                // As the memtable does: keys that were put since must not be in it.
                        let free = |key: &u8| states[since..].iter().all(|state| !state.contains(key));
                        if let Some(end) = (from..24).take_while(free).last() {
                            gaps.learn(place(from), behind(&place(end)), since as u64);
                        }
                    }
                }
                states.push(now);
                for (before, state) in states.iter().enumerate() {
                    for key in 0..24_u8 {
                                                // The keys that may be skipped, from either side.
                        if let Ahead::Within(end) = gaps.ahead(Some(&place(key)), Direction::Up, before as u64) {
                            prop_assert!(end > place(key));
                            prop_assert!(state.iter().all(|there| *there < key || place(*there) >= end));
                        }
                        let from = behind(&place(key));
                        if let Ahead::Within(end) = gaps.ahead(Some(&from), Direction::Down, before as u64) {
                            prop_assert!(end < from);
                            prop_assert!(state.iter().all(|there| *there > key || place(*there) < end));
                        }
                    }
                }
            }
        }

                /// A walk from one gap to the next meets all of them. Gaps that touch are one.
        #[test]
                fn a_walk_meets_all_gaps(parts in proptest::collection::vec((0_u8..60, 1_u8..6), 1..20)) {
            let gaps = Gaps::new(&budget(1 << 20));
            let mut covered = BTreeSet::new();
            for (start, count) in parts {
                gaps.learn(place(start), place(start + count), 0);
                covered.extend(start..start + count);
            }
            let edges = |is_first: fn(&BTreeSet<u8>, u8) -> bool| {
                (0..=66_u8).filter(|number| is_first(&covered, *number)).map(place).collect::<Vec<_>>()
            };
            let starts = edges(|set, number| set.contains(&number) && !(number > 0 && set.contains(&(number - 1))));
            let ends = edges(|set, number| !set.contains(&number) && number > 0 && set.contains(&(number - 1)));
            let walk = |direction| {
                let mut at = if direction == Direction::Up { Some(Vec::new()) } else { None };
                let (mut begins, mut finishes) = (Vec::new(), Vec::new());
                loop {
                    match gaps.ahead(at.as_deref(), direction, 0) {
                        Ahead::Within(end) => {
                            finishes.push(end.clone());
                            at = Some(end);
                        }
                        Ahead::Begins(start) => {
                            begins.push(start.clone());
                            at = Some(start);
                        }
                        Ahead::Nothing => return (begins, finishes),
                    }
                }
            };
            let (begins, finishes) = walk(Direction::Up);
            prop_assert_eq!(&begins, &starts);
            prop_assert_eq!(&finishes, &ends);
            let (mut begins, mut finishes) = walk(Direction::Down);
            begins.reverse();
            finishes.reverse();
            prop_assert_eq!(&begins, &ends);
            prop_assert_eq!(&finishes, &starts);
        }
    }

    #[test]
    fn gaps_take_no_more_than_their_share_and_used_ones_stay() {
        let budget = budget(1 << 20);
        let gaps = Gaps::new(&budget);
        let key = |number: u64| number.to_be_bytes().to_vec();
        gaps.learn(key(500), key(501), 7);
        for number in 0..10_000 {
            gaps.learn(key(1000 + 3 * number), key(1001 + 3 * number), 7);
            assert_eq!(gaps.ahead(Some(&key(500)), Direction::Up, 7), Ahead::Within(key(501)), "{number}");
        }
        let kept = gaps.ranges.read().by_start.len() as u64;
        assert!(budget.gaps_bytes() <= budget.gaps_bytes_max() && budget.gaps_bytes() == kept * (GAP_BYTES + 16));
        assert!(kept > budget.gaps_bytes_max() / (GAP_BYTES + 16) - 2, "{kept}");
        drop(gaps);
        assert_eq!(budget.gaps_bytes(), 0);
    }
}
