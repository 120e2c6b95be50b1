//! The replacement policies to compare vmio's own with.
//!
//! Pages have dense numbers, in the order of their first access.

use std::collections::{BTreeSet, VecDeque};

use hashlink::LinkedHashMap;

/// A simulated cache.
pub trait Replacement {
    /// Touches the page that the trace touches at `time`. Returns whether it was there.
    fn access(&mut self, page: u32, time: usize) -> bool;
}

/// Least recently used: the page goes that was not touched for the longest time.
pub struct Lru {
    capacity: usize,
    pages: LinkedHashMap<u32, ()>,
}

impl Lru {
    /// A cache of this number of pages.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, pages: LinkedHashMap::new() }
    }
}

impl Replacement for Lru {
    fn access(&mut self, page: u32, _time: usize) -> bool {
        if self.pages.to_back(&page).is_some() {
            return true;
        }
        if self.pages.len() == self.capacity {
            self.pages.pop_front();
        }
        self.pages.insert(page, ());
        false
    }
}

/// FIFO with a second chance: passes over a page once if a touch came since it passed it last.
pub struct Clock {
    capacity: usize,
    queue: VecDeque<u32>,
    /// Whether each page is there, and whether it is touched.
    pages: Vec<(bool, bool)>,
}

impl Clock {
    /// A cache of `capacity` pages, for a trace of a known number of pages.
    pub fn new(capacity: usize, pages: usize) -> Self {
        Self { capacity, queue: VecDeque::new(), pages: vec![(false, false); pages] }
    }
}

impl Replacement for Clock {
    fn access(&mut self, page: u32, _time: usize) -> bool {
        let (present, touched) = &mut self.pages[page as usize];
        if *present {
            *touched = true;
            return true;
        }
        *present = true;
        while self.queue.len() == self.capacity
            && let Some(victim) = self.queue.pop_front()
        {
            let (present, touched) = &mut self.pages[victim as usize];
            if std::mem::take(touched) { self.queue.push_back(victim) } else { *present = false }
        }
        self.queue.push_back(page);
        false
    }
}

/// S3-FIFO (Yang et al., SOSP 2023): a small queue for new pages, a main one for pages that were touched again, and a list of the pages
/// that left the small one.
pub struct S3Fifo {
    capacity: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: LinkedHashMap<u32, ()>,
    /// The number of touches of each page since it came, 3 at most; none if it is not there.
    touches: Vec<Option<u8>>,
}

impl S3Fifo {
    /// A cache of `capacity` pages, for a trace of a known number of pages.
    pub fn new(capacity: usize, pages: usize) -> Self {
        Self {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: LinkedHashMap::new(),
            touches: vec![None; pages],
        }
    }

    fn evict_from_small(&mut self) {
        while let Some(page) = self.small.pop_front() {
            if self.touches[page as usize].is_some_and(|touches| touches > 1) {
                self.touches[page as usize] = Some(0);
                self.main.push_back(page);
                continue;
            }
            self.touches[page as usize] = None;
            if self.ghosts.len() >= self.capacity * 9 / 10 {
                self.ghosts.pop_front();
            }
            self.ghosts.insert(page, ());
            return;
        }
    }

    fn evict_from_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            match &mut self.touches[page as usize] {
                Some(touches @ 1..) => {
                    *touches -= 1;
                    self.main.push_back(page);
                }
                there => {
                    *there = None;
                    return;
                }
            }
        }
    }
}

impl Replacement for S3Fifo {
    fn access(&mut self, page: u32, _time: usize) -> bool {
        if let Some(touches) = &mut self.touches[page as usize] {
            *touches = (*touches + 1).min(3);
            return true;
        }
        while self.small.len() + self.main.len() >= self.capacity {
            if self.small.len() > self.capacity / 10 || self.main.is_empty() {
                self.evict_from_small();
            } else {
                self.evict_from_main();
            }
        }
        self.touches[page as usize] = Some(0);
        let queue = if self.ghosts.remove(&page).is_some() { &mut self.main } else { &mut self.small };
        queue.push_back(page);
        false
    }
}

/// ARC (Megiddo and Modha, FAST 2003): pages touched once, pages touched again, and a border between them that follows the misses.
pub struct Arc {
    capacity: usize,
    /// The number of pages that those touched once may have.
    once_wanted: usize,
    once: LinkedHashMap<u32, ()>,
    again: LinkedHashMap<u32, ()>,
    once_ghosts: LinkedHashMap<u32, ()>,
    again_ghosts: LinkedHashMap<u32, ()>,
}

impl Arc {
    /// A cache of this number of pages.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            once_wanted: 0,
            once: LinkedHashMap::new(),
            again: LinkedHashMap::new(),
            once_ghosts: LinkedHashMap::new(),
            again_ghosts: LinkedHashMap::new(),
        }
    }

    fn replace(&mut self, wanted_again: bool) {
        let surplus = self.once.len() > self.once_wanted || (wanted_again && self.once.len() == self.once_wanted);
        let (from, ghosts) = if !self.once.is_empty() && (surplus || self.again.is_empty()) {
            (&mut self.once, &mut self.once_ghosts)
        } else {
            (&mut self.again, &mut self.again_ghosts)
        };
        if let Some((page, ())) = from.pop_front() {
            ghosts.insert(page, ());
        }
    }
}

impl Replacement for Arc {
    fn access(&mut self, page: u32, _time: usize) -> bool {
        if self.once.remove(&page).is_some() || self.again.remove(&page).is_some() {
            self.again.insert(page, ());
            return true;
        }
        let full = self.once.len() + self.again.len() >= self.capacity;
        if self.once_ghosts.remove(&page).is_some() {
            let step = (self.again_ghosts.len() / (self.once_ghosts.len() + 1)).max(1);
            self.once_wanted = (self.once_wanted + step).min(self.capacity);
            if full {
                self.replace(false);
            }
            self.again.insert(page, ());
            return false;
        }
        if self.again_ghosts.remove(&page).is_some() {
            let step = (self.once_ghosts.len() / (self.again_ghosts.len() + 1)).max(1);
            self.once_wanted = self.once_wanted.saturating_sub(step);
            if full {
                self.replace(true);
            }
            self.again.insert(page, ());
            return false;
        }
        if full {
            if self.once.len() == self.capacity {
                self.once.pop_front();
            } else {
                if self.once.len() + self.once_ghosts.len() >= self.capacity {
                    self.once_ghosts.pop_front();
                }
                self.replace(false);
            }
        }
        let known = self.once.len() + self.again.len() + self.once_ghosts.len() + self.again_ghosts.len();
        if known >= 2 * self.capacity {
            self.again_ghosts.pop_front();
        }
        self.once.insert(page, ());
        false
    }
}

/// Belady's optimum: the page goes whose next touch is the last. Knows the whole trace.
pub struct Optimum {
    capacity: usize,
    /// The time of the next touch of each access's page.
    next: Vec<usize>,
    /// The pages that are there, by the time of their next touch.
    present: BTreeSet<(usize, u32)>,
    /// For each page the time under which `present` has it.
    wanted: Vec<Option<usize>>,
}

impl Optimum {
    /// A cache for a trace of pages below `pages`.
    pub fn new(capacity: usize, pages: usize, trace: &[u32]) -> Self {
        let mut last = vec![usize::MAX; pages];
        let mut next = vec![usize::MAX; trace.len()];
        for (time, page) in trace.iter().enumerate().rev() {
            next[time] = std::mem::replace(&mut last[*page as usize], time);
        }
        Self { capacity, next, present: BTreeSet::new(), wanted: vec![None; pages] }
    }
}

impl Replacement for Optimum {
    fn access(&mut self, page: u32, time: usize) -> bool {
        let next = self.next[time];
        let before = self.wanted[page as usize].replace(next);
        let hit = before.is_some_and(|before| self.present.remove(&(before, page)));
        if !hit
            && self.present.len() == self.capacity
            && let Some((_, victim)) = self.present.pop_last()
        {
            self.wanted[victim as usize] = None;
        }
        self.present.insert((next, page));
        hit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 40;

    fn misses(mut cache: impl Replacement, trace: &[u32]) -> usize {
        trace.iter().enumerate().filter(|(time, page)| !cache.access(**page, *time)).count()
    }

    /// The fewest misses, by trying every victim.
    fn fewest(capacity: usize, trace: &[u32], present: &mut Vec<u32>) -> usize {
        let Some((page, rest)) = trace.split_first() else { return 0 };
        if present.contains(page) {
            return fewest(capacity, rest, present);
        }
        if present.len() < capacity {
            present.push(*page);
            let misses = 1 + fewest(capacity, rest, present);
            present.pop();
            return misses;
        }
        let victims = 0..present.len();
        victims
            .map(|at| {
                let victim = std::mem::replace(&mut present[at], *page);
                let misses = 1 + fewest(capacity, rest, present);
                present[at] = victim;
                misses
            })
            .min()
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_optimum_is_the_optimum(trace in prop::collection::vec(0..5_u32, 0..11), capacity in 1..4_usize) {
            prop_assert_eq!(misses(Optimum::new(capacity, 5, &trace), &trace), fewest(capacity, &trace, &mut Vec::new()));
        }

        #[test]
        fn nobody_beats_it_nor_holds_too_much(
            trace in prop::collection::vec(0..PAGES as u32, 1..800),
            capacity in 1..PAGES,
        ) {
            let distinct = BTreeSet::from_iter(&trace).len();
            let best = misses(Optimum::new(capacity, PAGES, &trace), &trace);
            let others = [
                misses(Lru::new(capacity), &trace),
                misses(Clock::new(capacity, PAGES), &trace),
                misses(S3Fifo::new(capacity, PAGES), &trace),
                misses(Arc::new(capacity), &trace),
            ];
            prop_assert!(best >= distinct);
            // A cache with more pages than its capacity would miss less than the optimum sooner or later.
            prop_assert!(others.iter().all(|misses| *misses >= best), "{best} {others:?}");
            if capacity >= distinct {
                prop_assert_eq!(others[0], distinct);
                prop_assert_eq!(others[1], distinct);
                prop_assert_eq!(others[3], distinct);
            }
        }
    }

    #[test]
    fn a_scan_does_not_drive_out_what_arc_and_s3_fifo_have_seen_twice() {
        let hot = 0..20_u32;
        let mut trace: Vec<u32> = (0..40).flat_map(|_| hot.clone()).collect();
        let mut next = 20;
        for _ in 0..50 {
            trace.extend(next..next + 30);
            trace.extend(hot.clone());
            next += 30;
        }
        let (capacity, pages) = (36, next as usize);
        let lru = misses(Lru::new(capacity), &trace);
        assert!(misses(Arc::new(capacity), &trace) < lru * 9 / 10);
        assert!(misses(S3Fifo::new(capacity, pages), &trace) < lru * 9 / 10);
    }
}
