//! Occupancy: how many pages of a span are in memory or on their way in, and their priority. It is also the gate behind
//! which the span's memory is given back. Both are in one word, so that a thread that changes the priority knows for
//! how many pages.

use crate::atomic::{AtomicU32, Ordering, sleep_on, wake_all};

/// The memory of the span is being given back: no page may come in.
const CLOSED: u32 = 1 << 31;
/// A thread waits for the gate to open.
const WAITERS: u32 = 1 << 30;

/// The span has a priority of its own, not its owner's.
const OWN_PRIORITY: u32 = 1 << 28;
const PRIORITY_SHIFT: u32 = 20;
const PRIORITY: u32 = 0xff << PRIORITY_SHIFT;
const COUNT: u32 = (1 << PRIORITY_SHIFT) - 1;

/// A count that can be closed while it is zero. A thread is counted before it changes the word of an absent page, to
/// fetch the page or otherwise. So behind a closed gate no page is in memory, and no word changes. All zeros is empty
/// and open, of priority 0.
#[derive(Default)]
pub struct Occupancy(AtomicU32);

/// Pages whose span had one priority, and has another, or the same.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "somebody counts them by priority"]
pub struct PriorityChange {
    /// How many pages are resident.
    pub pages: u32,
    /// The priority before.
    pub from: u8,
    /// The priority after.
    pub to: u8,
}

impl Occupancy {
    /// Counts one more page, once the gate is open; returns the priority that the page counts under. A thread that has
    /// closed the gate waits for nobody.
    #[inline]
    pub fn enter(&self) -> u8 {
        let mut seen = self.0.load(Ordering::SeqCst);
        loop {
            let wanted = if seen & CLOSED == 0 { seen + 1 } else { seen | WAITERS };
            match self.0.compare_exchange(seen, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if seen & CLOSED == 0 => return priority_in(seen),
                Ok(_) => {
                    sleep_on(&self.0, wanted);
                    seen = self.0.load(Ordering::SeqCst);
                }
                Err(changed) => seen = changed,
            }
        }
    }

    /// Counts this many fewer pages; returns the priority that they counted under.
    #[inline]
    pub fn leave(&self, count: u32) -> u8 {
        let before = self.0.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(before & CLOSED == 0 && before & COUNT >= count);
        priority_in(before)
    }

    /// The number of pages that are counted.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst) & COUNT
    }

    /// The span's priority.
    #[inline]
    pub fn priority(&self) -> u8 {
        priority_in(self.0.load(Ordering::SeqCst))
    }

    /// Whether [`Self::set_priority`] was called.
    #[inline]
    pub fn has_own_priority(&self) -> bool {
        self.0.load(Ordering::SeqCst) & OWN_PRIORITY != 0
    }

    /// Gives the span a priority of its own.
    #[inline]
    pub fn set_priority(&self, priority: u8) -> PriorityChange {
        self.change_priority(|seen| OWN_PRIORITY | with_priority(seen, priority))
    }

    /// Gives the span its owner's priority, unless it has one of its own.
    #[inline]
    pub fn inherit_priority(&self, priority: u8) -> PriorityChange {
        self.change_priority(|seen| if seen & OWN_PRIORITY == 0 { with_priority(seen, priority) } else { seen })
    }

    fn change_priority(&self, next: impl Fn(u32) -> u32) -> PriorityChange {
        let update = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| Some(next(seen)));
        let (Ok(before) | Err(before)) = update;
        PriorityChange { pages: before & COUNT, from: priority_in(before), to: priority_in(next(before)) }
    }

    /// Whether a thread waits for the gate to open.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.0.load(Ordering::SeqCst) & WAITERS != 0
    }

    /// Closes the gate if it is open and the count is zero.
    #[inline]
    pub fn try_close(&self) -> bool {
        let closed = |seen| (seen & (COUNT | CLOSED) == 0).then_some(seen | CLOSED);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, closed).is_ok()
    }

    /// Opens the gate again. Only the thread that has closed it may.
    #[inline]
    pub fn open(&self) {
        let before = self.0.fetch_and(!(CLOSED | WAITERS), Ordering::SeqCst);
        debug_assert!(before & CLOSED != 0);
        if before & WAITERS != 0 {
            wake_all(&self.0);
        }
    }
}

fn priority_in(word: u32) -> u8 {
    (word >> PRIORITY_SHIFT) as u8
}

fn with_priority(word: u32, priority: u8) -> u32 {
    word & !PRIORITY | u32::from(priority) << PRIORITY_SHIFT
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn it_closes_only_when_empty_and_only_once() {
        let pages = Occupancy::default();
        pages.enter();
        assert!(!pages.try_close());
        pages.leave(1);
        assert!(pages.try_close() && !pages.try_close());
        assert_eq!(pages.count(), 0);
        pages.open();
        assert!(pages.try_close());
    }

    #[test]
    fn who_changes_the_priority_knows_of_how_many_pages() {
        let pages = Occupancy::default();
        assert_eq!((pages.enter(), pages.enter()), (0, 0));
        assert_eq!(pages.inherit_priority(128), PriorityChange { pages: 2, from: 0, to: 128 });
        assert_eq!((pages.priority(), pages.count(), pages.has_own_priority()), (128, 2, false));
        assert_eq!(pages.set_priority(255), PriorityChange { pages: 2, from: 128, to: 255 });
        assert_eq!(pages.enter(), 255);
        assert_eq!(pages.inherit_priority(7), PriorityChange { pages: 3, from: 255, to: 255 }, "it has its own");
        assert!(pages.has_own_priority());
        assert_eq!((pages.leave(3), pages.count()), (255, 0));
        assert!(pages.try_close());
        pages.open();
        assert_eq!((pages.priority(), pages.has_own_priority()), (255, true), "closing forgets no priority");
    }

    #[test]
    fn who_comes_meanwhile_waits_until_it_opens() {
        let (pages, opened) = (Occupancy::default(), AtomicBool::new(false));
        assert!(pages.try_close());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    pages.enter();
                    assert!(opened.load(Ordering::SeqCst), "in through a closed gate");
                });
            }
            while pages.0.load(Ordering::SeqCst) & WAITERS == 0 {
                std::thread::yield_now();
            }
            opened.store(true, Ordering::SeqCst);
            pages.open();
        });
        assert_eq!(pages.count(), 4);
    }
}
