//! The length of a file as this process has learnt it.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;

/// In place of the number of cuts: no length is known.
const NOT_LEARNT: u64 = u64::MAX;
/// How often a thread tries while another one changes it: a signal handler may have interrupted that one, and would wait for its own thread.
const ATTEMPTS_MAX: u32 = 1000;

/// A lower bound of a file's length, and how often others may have cut the file before it was learnt. Both change together, so that nobody takes the
/// length from before a cut for the one after it.
pub(super) struct KnownLength {
    /// How often they have changed, twice; odd while they do.
    changes: AtomicU64,
    len: AtomicU64,
    cuts: AtomicU64,
}

impl KnownLength {
    pub(super) const fn none() -> Self {
        KnownLength { changes: AtomicU64::new(0), len: AtomicU64::new(0), cuts: AtomicU64::new(NOT_LEARNT) }
    }

    /// The length, if it was learnt after this number of cuts.
    #[inline]
    pub(super) fn after(&self, cuts: u64) -> Option<u64> {
        let before = self.changes.load(Ordering::Acquire);
        let (len, learnt_after) = (self.len.load(Ordering::Relaxed), self.cuts.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        (is_whole && learnt_after == cuts).then_some(len)
    }

    /// The file is at least this long after this number of cuts.
    pub(super) fn learn(&self, len: u64, cuts: u64) {
        self.change(|now| (now.1 != cuts || now.0 < len).then_some((len, cuts)));
    }

    /// The same, if the length after these cuts is known: else a call asks the kernel.
    pub(super) fn grow(&self, len: u64, cuts: u64) {
        if self.after(cuts).is_none_or(|now| now < len) {
            self.change(|now| (now.1 == cuts && now.0 < len).then_some((len, cuts)));
        }
    }

    /// Forgets it. Nobody learns it meanwhile.
    pub(super) fn forget(&self) {
        self.change(|_| Some((0, NOT_LEARNT)));
    }

    /// Makes it usable in a forked child: another thread of the parent may have been changing it.
    pub(super) fn reset_in_child(&self) {
        self.changes.store(0, Ordering::SeqCst);
    }

    /// Changes both. If another thread goes on changing them for long, nothing changes: what is known is a lower bound.
    fn change(&self, to: impl Fn((u64, u64)) -> Option<(u64, u64)>) {
        for _ in 0..ATTEMPTS_MAX {
            let now = self.changes.load(Ordering::Relaxed);
            if !now.is_multiple_of(2)
                || self.changes.compare_exchange(now, now + 1, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                thread::yield_now();
                continue;
            }
            // Whoever sees one of the new values sees the odd number, too.
            fence(Ordering::Release);
            let both = (self.len.load(Ordering::Relaxed), self.cuts.load(Ordering::Relaxed));
            if let Some((len, cuts)) = to(both) {
                self.len.store(len, Ordering::Relaxed);
                self.cuts.store(cuts, Ordering::Relaxed);
            }
            self.changes.store(now + 2, Ordering::Release);
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_length_is_known_for_the_cuts_that_it_was_learnt_after() {
        let known = KnownLength::none();
        known.grow(100, 5);
        assert_eq!(known.after(5), None);
        known.learn(100, 5);
        assert_eq!((known.after(5), known.after(6)), (Some(100), None));
        // Another call has made the file longer.
        known.grow(200, 5);
        known.learn(150, 5);
        assert_eq!(known.after(5), Some(200));
        // A cut; a call that began before it has written up to there.
        known.learn(50, 6);
        known.grow(300, 5);
        assert_eq!((known.after(5), known.after(6)), (None, Some(50)));
        known.forget();
        assert_eq!(known.after(6), None);
    }

    /// The length is nine times the number of cuts, says each thread.
    #[test]
    fn nobody_sees_a_length_with_the_cuts_of_another() {
        let (known, is_over) = (KnownLength::none(), AtomicBool::new(false));
        thread::scope(|scope| {
            for first in [1, 2] {
                let (known, is_over) = (&known, &is_over);
                scope.spawn(move || {
                    (0..100_000_u64).map(|n| first + n % 8).for_each(|cuts| known.learn(cuts * 9, cuts));
                    is_over.store(true, Ordering::Relaxed);
                });
            }
            while !is_over.load(Ordering::Relaxed) {
                for cuts in 1..10 {
                    assert!(known.after(cuts).is_none_or(|len| len == cuts * 9));
                }
            }
        });
    }

    /// A handler that interrupts a change does not wait for the thread that it has interrupted.
    #[test]
    fn a_change_in_the_middle_of_another_is_left_out() {
        let known = KnownLength::none();
        known.learn(100, 1);
        known.change(|_| {
            known.learn(900, 1);
            assert_eq!(known.after(1), None);
            Some((200, 1))
        });
        assert_eq!(known.after(1), Some(200));
    }
}
