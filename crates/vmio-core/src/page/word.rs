//! The page word: 32 bits that are the only authority on a page. Every transition is a compare-and-swap on it.
//!
//! ```text
//!             begin_load                finish_load
//!   Absent ──────────────▶ Loading ──────────────────▶ Clean ─┐ or Dirty
//!     ▲  ▲                    │ fail_load               │  ▲  │ begin_upgrade (a store trapped)
//!     │  └────────────────────┘                         │  │  ▼
//!     │ finish_evict        begin_evict                 │  │ Upgrading ── finish_upgrade ──▶ Dirty
//!     └────────── Evicting ◀────────────────────────────┘  │                                 │
//!                                                          └── Protecting ◀── begin_protect ─┘
//!                                              finish_protect (copied: write in flight)
//! ```
//!
//! Loading, Upgrading, Protecting and Evicting belong to the one thread that entered them; others wait on the word.
//! Over frames whose stores trap, the program can store to a page in Dirty, and for a moment in Loading, Upgrading and the
//! Evicting of a discard, while the owner makes its step. In Dirty a page may be write-protected all the same: a trapped store
//! unprotects it. `inactive.rs` has the other frames.

use crate::atomic::{AtomicU32, Ordering, sleep_on, wake_all};
use crate::page::snapshot::{
    EPOCH, FREQUENCY_KEPT_DIRTY, FRESH, IN_FLIGHT, INACTIVE, PIN_MAX, PINNED_FOR_WRITING, POISONED, STORED, Snapshot,
    State, WAITERS,
};
use crate::page::visit::{Visit, visits_of};

/// The result of an attempt to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// Pinned; the page stays resident until [`PageWord::unpin`].
    Pinned,
    /// Not settled in memory: fetch it or wait, then try again.
    NotResident(Snapshot),
    /// As many pins hold it as fit the word.
    TooMany,
}

/// How a write in flight has ended for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// The write has landed.
    Landed,
    /// It failed, and the page is Dirty again.
    DirtyAgain,
    /// It failed, and the page had become Dirty again in the same epoch.
    Repeatable,
    /// It failed, and the page is becoming newer, or has become newer in another epoch: the bytes of the write are lost.
    Overtaken,
}

/// How a page arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loaded {
    /// Dirty at once, in this sync epoch: a store missed it.
    pub dirty_in: Option<bool>,
    /// It could not be read and holds the poison pattern.
    pub poisoned: bool,
    /// It was filled with zeros because the device holds garbage there.
    pub fresh: bool,
    /// Its frequency, 7 at most: [`visits_of`] says how many visits it survives.
    pub frequency: u8,
}

/// The word itself. All zeros is an untouched, absent page.
#[derive(Default)]
#[repr(transparent)]
pub struct PageWord(AtomicU32);

// SAFETY: an AtomicU32 of zero is valid and needs no drop; loom's is never placed in a sparse array.
#[cfg(not(loom))]
unsafe impl crate::zero_init::ZeroInit for PageWord {}

impl PageWord {
    /// The word as it is now.
    #[inline]
    pub fn load(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::SeqCst))
    }

    /// Replaces the word by the result of `next`, unless `next` declines; returns the word before.
    pub(super) fn update(&self, next: impl Fn(Snapshot) -> Option<Snapshot>) -> Result<Snapshot, Snapshot> {
        let mut current = self.load();
        loop {
            let Some(wanted) = next(current) else { return Err(current) };
            match self.0.compare_exchange_weak(current.0, wanted.0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(current),
                Err(seen) => current = Snapshot(seen),
            }
        }
    }

    /// Like [`Self::update`], for the owner of a busy state, which may always proceed; wakes all threads that wait.
    pub(super) fn settle(&self, next: impl Fn(Snapshot) -> Snapshot) {
        if let Ok(before) = self.update(|word| Some(next(word).with(WAITERS, false)))
            && before.0 & WAITERS != 0
        {
            wake_all(&self.0);
        }
    }

    /// Absent → Loading. Returns the word before.
    #[inline]
    pub fn begin_load(&self) -> Result<Snapshot, Snapshot> {
        // First without a load: where the word has no memory yet, the kernel would have to replace its page of zeros after a load.
        let loading = Snapshot::UNTOUCHED.with_state(State::Loading);
        if self.0.compare_exchange(0, loading.0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Ok(Snapshot::UNTOUCHED);
        }
        self.update(|word| (word.state() == State::Absent).then(|| word.with_state(State::Loading).with(STORED, false)))
    }

    /// Loading → Clean, or Dirty. A page filled in place of reading keeps its Fresh mark until it is dirty.
    #[inline]
    pub fn finish_load(&self, loaded: Loaded) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Loading);
            let word = word
                .with_frequency(loaded.frequency)
                .with_history(visits_of(loaded.frequency))
                .with(POISONED, loaded.poisoned);
            match loaded.dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH, false),
                None => word.with_state(State::Clean).with(FRESH, loaded.fresh),
            }
        });
    }

    /// Loading → Absent: the page could not be read. All that was known of it stays.
    #[inline]
    pub fn fail_load(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Loading);
            word.with_state(State::Absent).with(STORED, false)
        });
    }

    /// Clean or Dirty → Upgrading, for the thread whose store trapped. Returns the word before. Declines poisoned pages; with
    /// `present`, the epoch of the present commit, also pages that a commit has yet to copy.
    #[inline]
    pub fn begin_upgrade(&self, present: Option<bool>) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let is_frozen = present.is_some_and(|present| word.is_frozen(present));
            (word.is_settled_resident() && !word.is_poisoned() && !is_frozen).then(|| word.with_state(State::Upgrading))
        })
    }

    /// Upgrading → Dirty in the given sync epoch: the frame is writable now, or that failed (a Dirty page may be protected).
    #[inline]
    pub fn finish_upgrade(&self, epoch: bool) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false)
        });
    }

    /// Dirty → Protecting, for the thread that writes back. Declines pages in flight (one write at a time) and pages pinned for
    /// writing (system calls would fail on a protected page); with `only_epoch`, those of another epoch as well.
    #[inline]
    pub fn begin_protect(&self, only_epoch: Option<bool>) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            (word.state() == State::Dirty
                && !word.in_flight()
                && !word.is_pinned_for_writing()
                && only_epoch.is_none_or(|epoch| epoch == word.epoch()))
            .then(|| word.with_state(State::Protecting))
        })
    }

    /// Dirty → Protecting, for the evictor. Declines pages that [`Self::begin_protect`] declines, pages that the visit passes over, and
    /// pages that survive it with `FREQUENCY_KEPT_DIRTY` or more. A page kept for less would trap its next store, which costs more than
    /// the miss that this saves.
    #[inline]
    pub fn begin_protect_to_evict(&self, only_epoch: Option<bool>, visit: Visit) -> Result<Snapshot, Snapshot> {
        let survivor = |word: Snapshot| {
            visit.survivor(word).filter(|left| *left == word || word.frequency() >= FREQUENCY_KEPT_DIRTY)
        };
        let before = self.update(|word| {
            let free = word.state() == State::Dirty
                && !word.in_flight()
                && !word.is_pinned_for_writing()
                && only_epoch.is_none_or(|epoch| epoch == word.epoch());
            free.then(|| survivor(word).unwrap_or(word.with_state(State::Protecting))).filter(|next| *next != word)
        })?;
        if survivor(before).is_some() { Err(before) } else { Ok(before) }
    }

    /// Protecting → Clean with its write in flight: the frame is protected, and there is a copy of its contents.
    #[inline]
    pub fn finish_protect(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Protecting);
            word.with_state(State::Clean).with(IN_FLIGHT, true)
        });
    }

    /// Protecting → Dirty: the page could not be protected.
    #[inline]
    pub fn fail_protect(&self) {
        self.settle(|word| word.with_state(State::Dirty));
    }

    /// Puts a Dirty page that is pinned for writing in flight, by a copy. The page stays Dirty, from now on in the given epoch: stores
    /// after the copy belong to the next sync.
    #[inline]
    pub fn begin_write_while_pinned(&self, epoch: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            (word.state() == State::Dirty && word.is_pinned_for_writing() && !word.in_flight())
                .then(|| word.with(IN_FLIGHT, true).with(EPOCH, epoch))
        })
    }

    /// Ends the write in flight. After a failure a Clean page is Dirty again, in `failed_in`'s epoch.
    #[inline]
    pub fn finish_write(&self, failed_in: Option<bool>) -> WriteEnd {
        let next = |word: Snapshot| {
            debug_assert!(word.in_flight());
            let landed = word.with(IN_FLIGHT, false);
            match failed_in {
                Some(epoch) if word.state() == State::Clean => landed.with_state(State::Dirty).with(EPOCH, epoch),
                // A thread reactivates the page, and may call it clean again.
                Some(_) if word.state() == State::Upgrading => landed.with(STORED, true),
                _ => landed,
            }
        };
        // WAITERS stays for the owner of a busy state to clear; threads that wait for the write wake up all the same.
        match self.update(|word| Some(next(word).with(WAITERS, word.is_busy() && word.0 & WAITERS != 0))) {
            Ok(before) => {
                if before.0 & WAITERS != 0 {
                    wake_all(&self.0);
                }
                match failed_in {
                    None => WriteEnd::Landed,
                    Some(_) if before.state() == State::Clean => WriteEnd::DirtyAgain,
                    Some(epoch) if before.state() == State::Dirty && before.epoch() == epoch => WriteEnd::Repeatable,
                    Some(_) => WriteEnd::Overtaken,
                }
            }
            Err(_) => WriteEnd::Landed,
        }
    }

    /// Clean → Evicting, unless the page is in flight, pinned, or survives the visit.
    #[inline]
    pub fn begin_evict(&self, visit: Visit) -> bool {
        let before = self.update(|word| {
            let free = word.state() == State::Clean && !word.in_flight() && word.pins() == 0;
            let next = || visit.survivor(word).unwrap_or(word.with_state(State::Evicting));
            free.then(next).filter(|next| *next != word)
        });
        before.is_ok_and(|word| visit.survivor(word).is_none())
    }

    /// Evicting → Absent, once the frame is gone; `history` is the time of the eviction (1 to 255).
    #[inline]
    pub fn finish_evict(&self, history: u8) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            word.with_state(State::Absent).with(POISONED | INACTIVE | STORED, false).with_history(history)
        });
    }

    /// Evicting → the state before it: the frame could not be unmapped.
    #[inline]
    pub fn fail_evict(&self, before: State) {
        self.settle(|word| word.with_state(before));
    }

    /// Dirty → Evicting without a write, for a range that the program gave up (`Advice::Free`, `Advice::Invalidate`).
    #[inline]
    pub fn begin_discard(&self) -> bool {
        self.update(|word| {
            (word.state() == State::Dirty && !word.in_flight() && word.pins() == 0)
                .then(|| word.with_state(State::Evicting))
        })
        .is_ok()
    }

    /// Adds a pin to a settled resident page. For writing, the page must be Dirty.
    #[inline]
    pub fn pin(&self, for_writing: bool) -> PinOutcome {
        let outcome = self.update(|word| {
            let wanted = if for_writing { word.state() == State::Dirty } else { word.is_settled_resident() };
            (wanted && word.pins() < PIN_MAX && !word.is_poisoned() && !word.is_inactive()).then(|| {
                let pinned = word.with_pins(word.pins() + 1);
                if for_writing { pinned.with(PINNED_FOR_WRITING, true) } else { pinned }
            })
        });
        match outcome {
            Ok(_) => PinOutcome::Pinned,
            Err(word) if word.pins() == PIN_MAX => PinOutcome::TooMany,
            Err(word) => PinOutcome::NotResident(word),
        }
    }

    /// Takes a pin away, and wakes the waiting threads: some wait until no pin is left, others until only the program's are.
    #[inline]
    pub fn unpin(&self) {
        let before = self.update(|word| {
            debug_assert!(word.pins() > 0);
            let left = word.pins().saturating_sub(1);
            let is_awaited = word.0 & WAITERS != 0 && word.is_busy(); // As in `finish_write`.
            let for_writing = left > 0 && word.is_pinned_for_writing();
            Some(word.with_pins(left).with(WAITERS, is_awaited).with(PINNED_FOR_WRITING, for_writing))
        });
        if before.is_ok_and(|before| before.0 & WAITERS != 0) {
            wake_all(&self.0);
        }
    }

    /// Sleeps while `waiting` holds of the word; another thread must be on the way to change that.
    #[inline]
    pub fn wait_while(&self, waiting: impl Fn(Snapshot) -> bool) {
        loop {
            match self.update(|word| waiting(word).then(|| word.with(WAITERS, true))) {
                Ok(before) => sleep_on(&self.0, before.with(WAITERS, true).0),
                Err(_) => return,
            }
        }
    }

    /// Takes the page's visits away: the next visit takes the page.
    #[inline]
    pub fn drop_visits_left(&self) {
        let _ = self.update(|word| (word.is_settled_resident() && word.history() > 0).then(|| word.with_history(0)));
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::page::visit::FifoQueue;

    #[test]
    fn a_page_goes_round_once() {
        let word = PageWord::default();
        assert!(word.load().is_untouched());
        word.begin_load().unwrap();
        assert!(word.begin_load().is_err());
        word.finish_load(Loaded::default());
        assert_eq!(word.load().state(), State::Clean);
        assert_eq!(word.begin_upgrade(None).unwrap().state(), State::Clean);
        assert!(!word.begin_evict(Visit::ORDINARY));
        word.finish_upgrade(true);
        assert!(word.load().epoch());
        assert!(word.begin_protect(Some(false)).is_err());
        word.begin_protect(Some(true)).unwrap();
        word.finish_protect();
        assert!(word.load().in_flight());
        assert!(!word.begin_evict(Visit::ORDINARY), "a page in flight stays");
        assert_eq!(word.finish_write(None), WriteEnd::Landed);
        assert!(word.begin_evict(Visit::ORDINARY));
        word.finish_evict(7);
        assert_eq!((word.load().state(), word.load().history()), (State::Absent, 7));
    }

    #[test]
    fn a_failed_write_makes_the_page_dirty_again() {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded { dirty_in: Some(false), ..Loaded::default() });
        word.begin_protect(None).unwrap();
        word.finish_protect();
        assert_eq!(word.finish_write(Some(true)), WriteEnd::DirtyAgain);
        assert_eq!(word.load().state(), State::Dirty);
        assert!(word.load().epoch());
    }

    #[test]
    fn a_write_in_flight_is_not_submitted_twice() {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded { dirty_in: Some(false), ..Loaded::default() });
        word.begin_protect(None).unwrap();
        word.finish_protect();
        word.begin_upgrade(None).unwrap();
        word.finish_upgrade(false);
        assert!(word.begin_protect(None).is_err());
        assert_eq!(word.finish_write(Some(false)), WriteEnd::Repeatable, "it was dirty already");
        word.begin_protect(None).unwrap();
    }

    #[test]
    fn pins_hold_a_page() {
        let word = PageWord::default();
        assert!(matches!(word.pin(false), PinOutcome::NotResident(_)));
        word.begin_load().unwrap();
        word.finish_load(Loaded::default());
        assert!(matches!(word.pin(true), PinOutcome::NotResident(_)), "a clean page is write-protected");
        assert_eq!(word.pin(false), PinOutcome::Pinned);
        assert!(!word.begin_evict(Visit::LAST));
        word.begin_upgrade(None).unwrap();
        word.finish_upgrade(false);
        assert_eq!(word.pin(true), PinOutcome::Pinned);
        assert!(word.begin_protect(None).is_err());
        word.unpin();
        word.unpin();
        assert!(!word.load().is_pinned_for_writing());
        word.begin_protect(None).unwrap();
    }

    #[test]
    fn history_is_a_number_of_visits() {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded { frequency: 2, ..Loaded::default() });
        for _ in 0..3 {
            assert!(!word.begin_evict(Visit::ORDINARY));
        }
        assert!(word.begin_evict(Visit::ORDINARY));
    }

    #[test]
    fn pins_are_bounded() {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded::default());
        for _ in 0..PIN_MAX {
            assert_eq!(word.pin(false), PinOutcome::Pinned);
        }
        assert_eq!(word.pin(false), PinOutcome::TooMany);
    }

    fn loaded(frequency: u8) -> PageWord {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded { frequency, ..Loaded::default() });
        word
    }

    #[test]
    fn a_visit_passes_over_the_pages_of_the_other_queue() {
        let small = Visit { queue: Some(FifoQueue::Small), weight: 1 };
        let main = Visit { queue: Some(FifoQueue::Main), weight: 1 };
        let (new, proven) = (loaded(0), loaded(1));
        assert!(!new.begin_evict(main) && !proven.begin_evict(small));
        assert!(!proven.begin_evict(main), "it survives one visit of those that are for it");
        assert!(new.begin_evict(small) && proven.begin_evict(main));
    }

    #[test]
    fn a_visit_counts_as_many() {
        let word = loaded(3);
        assert!(!word.begin_evict(Visit { queue: None, weight: 4 }));
        assert_eq!(word.load().history(), 3);
        assert!(word.begin_evict(Visit { queue: None, weight: 4 }));
        assert!(loaded(7).begin_evict(Visit::LAST));
    }

    #[test]
    fn what_is_cold_survives_no_visit() {
        let word = loaded(3);
        word.drop_visits_left();
        assert!(word.begin_evict(Visit::ORDINARY));
        // A page on its way out belongs to another thread.
        word.drop_visits_left();
        assert_eq!(word.load().state(), State::Evicting);
    }
}
