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
//! A page's frame is writable to the program in Dirty only (and in Loading, between install and finish); it may be
//! write-protected in Dirty as well, so a trapped store on a Dirty page un-protects it.

use crate::atomic::{AtomicU32, Ordering, sleep_on, wake_all};
use crate::page::visit::Visit;

const STATE_MASK: u32 = 0b111;
/// In memory but unmapped: the page goes unless a touch comes first. See `inactive.rs`.
pub(super) const INACTIVE: u32 = 1 << 3;
const WAITERS: u32 = 1 << 4;
pub(super) const IN_FLIGHT: u32 = 1 << 5;
pub(super) const FRESH: u32 = 1 << 6;
const POISONED: u32 = 1 << 7;
pub(super) const EPOCH: u32 = 1 << 8;
const PINNED_FOR_WRITING: u32 = 1 << 9;
const PIN_SHIFT: u32 = 10;
const PIN_MAX: u32 = (1 << 10) - 1;
const PIN_MASK: u32 = PIN_MAX << PIN_SHIFT;
const FREQUENCY_SHIFT: u32 = 20;
const FREQUENCY_MASK: u32 = 0b111 << FREQUENCY_SHIFT;
const FREQUENCY_MAX: u8 = (FREQUENCY_MASK >> FREQUENCY_SHIFT) as u8;
/// From this frequency on a dirty page survives visits: after one quick return with S3-FIFO, or two in a row with `KeepRefaulted`.
const FREQUENCY_KEPT_DIRTY: u8 = 2;
/// A thread has taken the kernel's note of a store while the page could not be written back: see `inactive.rs`.
pub(super) const STORED: u32 = 1 << 23;
const HISTORY_SHIFT: u32 = 24;
const HISTORY_MASK: u32 = 0xff << HISTORY_SHIFT;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Not in memory.
    Absent = 0,
    /// One thread is fetching it.
    Loading = 1,
    /// In memory, write-protected, the same as on the device (or about to be: in flight).
    Clean = 2,
    /// In memory and newer than the device.
    Dirty = 3,
    /// A trapped store makes the page writable, or a touch reactivates it.
    Upgrading = 4,
    /// The flusher protects and copies a Dirty page; stores to it wait, loads do not.
    Protecting = 5,
    /// The page is being unmapped.
    Evicting = 6,
}

/// One value of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(u32);

impl Snapshot {
    /// The word of a page that has never been in memory, or of which nothing is known any more.
    pub(crate) const UNTOUCHED: Self = Self(0);

    /// Where the page is.
    #[inline]
    pub(crate) fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Absent,
            1 => State::Loading,
            2 => State::Clean,
            3 => State::Dirty,
            4 => State::Upgrading,
            5 => State::Protecting,
            _ => State::Evicting,
        }
    }

    /// In memory and owned by no thread.
    pub(crate) fn is_settled_resident(self) -> bool {
        matches!(self.state(), State::Clean | State::Dirty)
    }

    /// Owned by one thread for a short while.
    pub(crate) fn is_busy(self) -> bool {
        !matches!(self.state(), State::Absent | State::Clean | State::Dirty)
    }

    /// Counted against the budget and present, or about to be.
    #[inline]
    pub(crate) fn is_resident(self) -> bool {
        !matches!(self.state(), State::Absent | State::Loading)
    }

    /// On its way out; so is, for a moment, an absent page whose neighbours on both sides go.
    #[inline]
    pub(crate) fn is_leaving(self) -> bool {
        self.state() == State::Evicting
    }

    /// A copy of it is on its way to the device.
    pub(crate) fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    /// In memory but unmapped: the next touch is a minor fault.
    #[inline]
    pub(crate) fn is_inactive(self) -> bool {
        self.0 & INACTIVE != 0
    }

    /// In memory, and a load of it goes through.
    #[inline]
    pub(crate) fn is_active(self) -> bool {
        self.is_resident() && !self.is_leaving() && !self.is_inactive()
    }

    /// Active, and not known to be wanted again.
    pub(crate) fn is_new(self) -> bool {
        self.is_active() && self.frequency() == 0
    }

    /// Settled, and known to be newer than the device.
    pub(crate) fn needs_write(self) -> bool {
        self.state() == State::Dirty || self.state() == State::Clean && self.0 & STORED != 0
    }

    /// The device holds garbage here: fill with zeros in place of reading.
    pub(crate) fn is_fresh(self) -> bool {
        self.0 & FRESH != 0
    }

    /// It could not be read and holds the poison pattern.
    #[inline]
    pub(crate) fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// Never resident so far: no history, nothing known.
    pub(crate) fn is_untouched(self) -> bool {
        self.0 & !WAITERS == 0
    }

    /// The parity of the sync epoch in which it became dirty.
    pub(crate) fn epoch(self) -> bool {
        self.0 & EPOCH != 0
    }

    /// Some thread sleeps until the word changes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_awaited(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// The number of pins that hold it.
    pub(crate) fn pins(self) -> u32 {
        (self.0 & PIN_MASK) >> PIN_SHIFT
    }

    /// A pin that lets system calls write to the page holds it.
    pub(crate) fn is_pinned_for_writing(self) -> bool {
        self.0 & PINNED_FOR_WRITING != 0
    }

    /// Of a resident page, the evictor's visits that it may survive; of an absent one, the time of its eviction (0: never).
    pub(crate) fn history(self) -> u8 {
        (self.0 >> HISTORY_SHIFT) as u8
    }

    /// How often it came back soon, as the policy counts (0 to 7); kept while it is absent.
    pub(crate) fn frequency(self) -> u8 {
        ((self.0 & FREQUENCY_MASK) >> FREQUENCY_SHIFT) as u8
    }

    pub(super) fn with_frequency(self, frequency: u8) -> Self {
        Snapshot(self.0 & !FREQUENCY_MASK | u32::from(frequency.min(FREQUENCY_MAX)) << FREQUENCY_SHIFT)
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Snapshot(self.0 & !STATE_MASK | state as u32)
    }

    pub(super) fn with(self, flag: u32, on: bool) -> Self {
        Snapshot(if on { self.0 | flag } else { self.0 & !flag })
    }

    pub(super) fn with_history(self, history: u8) -> Self {
        Snapshot(self.0 & !HISTORY_MASK | u32::from(history) << HISTORY_SHIFT)
    }

    fn with_pins(self, pins: u32) -> Self {
        Snapshot(self.0 & !PIN_MASK | pins << PIN_SHIFT)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?}", self.state())?;
        for (flag, name) in
            [(IN_FLIGHT, "in-flight"), (FRESH, "fresh"), (POISONED, "poisoned"), (PINNED_FOR_WRITING, "pinned-w")]
                .into_iter()
                .chain([(INACTIVE, "inactive"), (STORED, "stored")])
        {
            if self.0 & flag != 0 {
                write!(out, "+{name}")?;
            }
        }
        write!(out, " pins={} history={}", self.pins(), self.history())
    }
}

/// The result of an attempt to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinOutcome {
    /// Pinned; the page stays resident until [`PageWord::unpin`].
    Pinned,
    /// Not settled in memory: fetch it or wait, then try again.
    NotResident(Snapshot),
    /// As many pins hold it as fit the word.
    TooMany,
}

/// How a write in flight has ended for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteEnd {
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
pub(crate) struct Loaded {
    /// Dirty at once, in this sync epoch: a store missed it.
    pub(crate) dirty_in: Option<bool>,
    /// It could not be read and holds the poison pattern.
    pub(crate) poisoned: bool,
    /// It was filled with zeros because the device holds garbage there.
    pub(crate) fresh: bool,
    /// Its frequency, 7 at most: [`visits_of`] says how many visits it survives.
    pub(crate) frequency: u8,
}

/// How many visits of the evictor a page of this frequency survives.
pub(crate) fn visits_of(frequency: u8) -> u8 {
    (1 << frequency.min(FREQUENCY_MAX)) - 1
}

/// The word itself. All zeros is an untouched, absent page.
#[repr(transparent)]
pub(crate) struct PageWord(AtomicU32);

// SAFETY: an AtomicU32 of zero is valid and needs no drop; loom's is never placed in a sparse array.
#[cfg(not(loom))]
unsafe impl crate::sys::sparse_array::ZeroInit for PageWord {}

impl PageWord {
    /// An untouched page.
    #[cfg(any(test, loom))]
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn new() -> Self {
        PageWord(AtomicU32::new(0))
    }

    /// The word as it is now.
    #[inline]
    pub(crate) fn load(&self) -> Snapshot {
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
    pub(crate) fn begin_load(&self) -> Result<Snapshot, Snapshot> {
        // First without a load: where the word has no memory yet, the kernel would have to replace its page of zeros after a load.
        let loading = Snapshot::UNTOUCHED.with_state(State::Loading);
        if self.0.compare_exchange(0, loading.0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Ok(Snapshot::UNTOUCHED);
        }
        self.update(|word| (word.state() == State::Absent).then(|| word.with_state(State::Loading).with(STORED, false)))
    }

    /// Loading → Clean, or Dirty. A page filled in place of reading keeps its Fresh mark until it is dirty.
    pub(crate) fn finish_load(&self, loaded: Loaded) {
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
    pub(crate) fn fail_load(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Loading);
            word.with_state(State::Absent).with(STORED, false)
        });
    }

    /// Clean or Dirty → Upgrading, for the thread whose store trapped. Returns the word before. Declines poisoned pages; with
    /// `present`, the epoch of the present commit, also pages that a commit has yet to copy.
    pub(crate) fn begin_upgrade(&self, present: Option<bool>) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let is_frozen = present.is_some_and(|present| word.is_frozen(present));
            (word.is_settled_resident() && !word.is_poisoned() && !is_frozen).then(|| word.with_state(State::Upgrading))
        })
    }

    /// Upgrading → Dirty in the given sync epoch: the frame is writable now, or that failed (a Dirty page may be protected).
    pub(crate) fn finish_upgrade(&self, epoch: bool) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false)
        });
    }

    /// Dirty → Protecting, for the flusher. Declines pages in flight (one write at a time) and pages pinned for
    /// writing (system calls would fail on a protected page); with `only_epoch`, those of another epoch as well.
    pub(crate) fn begin_protect(&self, only_epoch: Option<bool>) -> Result<Snapshot, Snapshot> {
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
    pub(crate) fn begin_protect_to_evict(&self, only_epoch: Option<bool>, visit: Visit) -> Result<Snapshot, Snapshot> {
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
    pub(crate) fn finish_protect(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Protecting);
            word.with_state(State::Clean).with(IN_FLIGHT, true)
        });
    }

    /// Protecting → Dirty: the page could not be protected.
    pub(crate) fn fail_protect(&self) {
        self.settle(|word| word.with_state(State::Dirty));
    }

    /// Puts a Dirty page that is pinned for writing in flight, by a copy. The page stays Dirty, from now on in the given epoch: stores
    /// after the copy belong to the next sync.
    pub(crate) fn begin_write_while_pinned(&self, epoch: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            (word.state() == State::Dirty && word.is_pinned_for_writing() && !word.in_flight())
                .then(|| word.with(IN_FLIGHT, true).with(EPOCH, epoch))
        })
    }

    /// Ends the write in flight. After a failure a Clean page is Dirty again, in `failed_in`'s epoch.
    pub(crate) fn finish_write(&self, failed_in: Option<bool>) -> WriteEnd {
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
    pub(crate) fn begin_evict(&self, visit: Visit) -> bool {
        let before = self.update(|word| {
            let free = word.state() == State::Clean && !word.in_flight() && word.pins() == 0;
            let next = || visit.survivor(word).unwrap_or(word.with_state(State::Evicting));
            free.then(next).filter(|next| *next != word)
        });
        before.is_ok_and(|word| visit.survivor(word).is_none())
    }

    /// Evicting → Absent, once the frame is gone; `history` is the time of the eviction (1 to 255).
    pub(crate) fn finish_evict(&self, history: u8) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            word.with_state(State::Absent).with(POISONED | INACTIVE | STORED, false).with_history(history)
        });
    }

    /// Evicting → the state before it: the frame could not be unmapped.
    pub(crate) fn fail_evict(&self, before: State) {
        self.settle(|word| word.with_state(before));
    }

    /// Dirty → Evicting without a write, for a range that the program gave up (`Advice::Free`, `Advice::Invalidate`).
    pub(crate) fn begin_discard(&self) -> bool {
        self.update(|word| {
            (word.state() == State::Dirty && !word.in_flight() && word.pins() == 0)
                .then(|| word.with_state(State::Evicting))
        })
        .is_ok()
    }

    /// Adds a pin to a settled resident page. For writing, the page must be Dirty.
    pub(crate) fn pin(&self, for_writing: bool) -> PinOutcome {
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
    pub(crate) fn unpin(&self) {
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
    pub(crate) fn wait_while(&self, waiting: impl Fn(Snapshot) -> bool) {
        loop {
            match self.update(|word| waiting(word).then(|| word.with(WAITERS, true))) {
                Ok(before) => sleep_on(&self.0, before.with(WAITERS, true).0),
                Err(_) => return,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_round_once() {
        let word = PageWord::new();
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
        let word = PageWord::new();
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
        let word = PageWord::new();
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
        let word = PageWord::new();
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
        let word = PageWord::new();
        word.begin_load().unwrap();
        word.finish_load(Loaded { frequency: 2, ..Loaded::default() });
        for _ in 0..3 {
            assert!(!word.begin_evict(Visit::ORDINARY));
        }
        assert!(word.begin_evict(Visit::ORDINARY));
    }

    #[test]
    fn pins_are_bounded() {
        let word = PageWord::new();
        word.begin_load().unwrap();
        word.finish_load(Loaded::default());
        for _ in 0..PIN_MAX {
            assert_eq!(word.pin(false), PinOutcome::Pinned);
        }
        assert_eq!(word.pin(false), PinOutcome::TooMany);
    }
}
