//! The page word over frames that can be hidden and whose stores the kernel notes (`HideableFrames`).
//!
//! ```text
//!            begin_hide                  finish_hide
//!   Clean ───────────────▶ Evicting ───────────────▶ Clean ─┐ hidden   begin_drop
//!   or Dirty                                         or Dirty├──────────────────▶ Evicting ──▶ Absent
//!     ▲                       begin_reveal (a touch) ┌──────┘ (Clean only; Dirty is written first)
//!     └───────────────────── Upgrading ◀─────────────┘
//!       finish_reveal
//! ```
//!
//! In sight, Clean means: the same as on the device unless the kernel has noted a store since. Whoever takes the
//! kernel's notes of a span (and so erases them) holds the span's lock, and either writes a page that was stored to or
//! leaves the Stored mark on its word. Hidden pages change only by being revealed, so of them the word knows all.

use crate::page::visit::Visit;
use crate::page::word::{EPOCH, FRESH, HIDDEN, PageWord, STORED, Snapshot, State, visits_of};

impl PageWord {
    /// Clean or Dirty, in sight → Evicting, to be hidden; not if it is pinned, in flight, or survives the visit. Returns
    /// what it was.
    pub(crate) fn begin_hide(&self, visit: Visit) -> Result<Snapshot, Snapshot> {
        let before = self.update(|word| {
            let free = word.is_settled_resident() && !word.is_hidden() && !word.in_flight() && word.pins() == 0;
            let next = || visit.survivor(word).unwrap_or(word.with_state(State::Evicting));
            free.then(next).filter(|next| *next != word)
        })?;
        if visit.survivor(before).is_some() { Err(before) } else { Ok(before) }
    }

    /// Evicting → hidden; Dirty, in the given sync epoch, if it was that or has been stored to.
    pub(crate) fn finish_hide(&self, dirty_in: Option<bool>) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            match dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false),
                None => word.with_state(State::Clean),
            }
            .with(HIDDEN, true)
        });
    }

    /// Evicting → in sight as before, or Dirty: it could not be hidden.
    pub(crate) fn fail_hide(&self, dirty_in: Option<bool>) {
        self.settle(|word| match dirty_in {
            Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false),
            None => word.with_state(State::Clean),
        });
    }

    /// Clean or Dirty → Upgrading, for the thread that touched it. Returns what it was.
    pub(crate) fn begin_reveal(&self) -> Result<Snapshot, Snapshot> {
        self.update(|word| word.is_settled_resident().then(|| word.with_state(State::Upgrading)))
    }

    /// Upgrading → in sight; Dirty in the given epoch, or Clean with its frame protected. A page that was hidden has this
    /// frequency from now on, and the visits that go with it.
    pub(crate) fn finish_reveal(&self, dirty_in: Option<bool>, frequency: Option<u8>) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            let word = match dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH, false),
                None => word.with_state(State::Clean),
            }
            .with(HIDDEN, false);
            frequency.map_or(word, |frequency| word.with_frequency(frequency).with_history(visits_of(frequency)))
        });
    }

    /// Upgrading → what it was: it could not be shown.
    pub(crate) fn fail_reveal(&self, before: Snapshot) {
        self.settle(|word| word.with_state(before.state()));
    }

    /// Hidden and Clean → Evicting, to be dropped, unless its write is in flight, or it survives the visit.
    pub(crate) fn begin_drop(&self, visit: Visit) -> bool {
        let before = self.update(|word| {
            let free = word.is_hidden() && word.state() == State::Clean && !word.needs_write() && !word.in_flight();
            free.then(|| visit.survivor(word).unwrap_or(word.with_state(State::Evicting)))
        });
        before.is_ok_and(|word| visit.survivor(word).is_none())
    }

    /// Absent → Evicting: nobody fetches the page while its neighbours on both sides are dropped in one step.
    pub(crate) fn claim_absent(&self) -> bool {
        self.update(|word| (word.state() == State::Absent).then(|| word.with_state(State::Evicting))).is_ok()
    }

    /// Evicting → Absent, after [`Self::claim_absent`]. What was known of it stays.
    pub(crate) fn release_absent(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            word.with_state(State::Absent).with(STORED, false)
        });
    }

    /// Clean or Dirty → Protecting, to be copied and written, if it is dirty or the kernel says that it was stored to.
    /// Not if a write of it is in flight or it is pinned for writing. Returns what it was.
    pub(crate) fn begin_write_tracked(&self, was_stored: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let wanted = word.needs_write() || was_stored && word.state() == State::Clean && !word.is_hidden();
            (wanted && !word.in_flight() && !word.is_pinned_for_writing())
                .then(|| word.with_state(State::Protecting).with(STORED | FRESH, false))
        })
    }

    /// The kernel's note of a store was taken and the page is not being written: remembers it. Not of a page that is
    /// absent, known to be dirty, or hidden and nobody's: of these the kernel has nothing to tell.
    pub(crate) fn note_store(&self) {
        let _ = self.update(|word| match word.state() {
            State::Absent | State::Dirty => None,
            State::Clean if word.is_hidden() => None,
            _ => Some(word.with(STORED, true)),
        });
    }

    /// The page could not be copied after [`Self::begin_write_tracked`]: Dirty.
    pub(crate) fn fail_copy(&self) {
        self.settle(|word| word.with_state(State::Dirty));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::page::word::{Loaded, PinOutcome};

    fn loaded(dirty: bool) -> PageWord {
        let word = PageWord::new();
        assert!(word.begin_load().is_ok());
        word.finish_load(Loaded { dirty_in: dirty.then_some(false), ..Loaded::default() });
        word
    }

    #[test]
    fn a_page_is_hidden_rescued_hidden_again_and_dropped() {
        let word = loaded(false);
        assert_eq!(word.begin_hide(Visit::LAST).unwrap().state(), State::Clean);
        assert!(word.begin_reveal().is_err(), "the evictor owns it");
        word.finish_hide(None);
        assert!(word.load().is_hidden() && word.begin_hide(Visit::LAST).is_err());
        assert!(matches!(word.pin(false), PinOutcome::NotResident(_)), "a hidden page must be revealed first");
        word.begin_reveal().unwrap();
        word.finish_reveal(None, Some(0));
        assert!(!word.load().is_hidden() && !word.begin_drop(Visit::LAST), "only hidden pages are dropped");
        word.begin_hide(Visit::LAST).unwrap();
        word.finish_hide(None);
        assert!(word.begin_drop(Visit::ORDINARY));
        word.finish_evict(3);
        assert_eq!((word.load().state(), word.load().is_hidden()), (State::Absent, false));
    }

    #[test]
    fn a_hidden_page_that_was_stored_to_is_written_before_it_goes() {
        let word = loaded(false);
        word.begin_hide(Visit::LAST).unwrap();
        word.finish_hide(Some(true));
        assert!(!word.begin_drop(Visit::LAST));
        assert_eq!(word.begin_write_tracked(false).unwrap().state(), State::Dirty);
        word.finish_protect();
        assert!(word.load().is_hidden() && !word.begin_drop(Visit::LAST), "in flight");
        word.finish_write(None);
        assert!(word.begin_drop(Visit::LAST));
    }

    #[test]
    fn a_write_that_fails_while_the_page_is_revealed_is_not_forgotten() {
        let word = loaded(true);
        word.begin_hide(Visit::LAST).unwrap();
        word.finish_hide(Some(false));
        word.begin_write_tracked(false).unwrap();
        word.finish_protect();
        assert_eq!(word.begin_reveal().unwrap().state(), State::Clean);
        word.finish_write(Some(false));
        word.finish_reveal(None, Some(0));
        assert!(word.load().needs_write());
    }

    #[test]
    fn a_write_that_fails_while_a_page_in_sight_is_shown_once_more_is_not_forgotten() {
        let word = loaded(true);
        word.begin_write_tracked(false).unwrap();
        word.finish_protect();
        word.begin_reveal().unwrap();
        word.finish_write(Some(false));
        word.finish_reveal(None, Some(0));
        assert!(word.load().needs_write());
    }

    /// Pages on both sides of an absent one were stored to, and so, as far as the kernel can tell, was that.
    #[test]
    fn a_note_about_an_absent_page_is_forgotten() {
        let word = PageWord::new();
        assert!(word.claim_absent());
        word.note_store();
        word.release_absent();
        assert!(word.load().is_untouched());
        word.begin_load().unwrap();
        word.note_store();
        word.fail_load();
        assert!(word.load().is_untouched());
    }

    #[test]
    fn a_note_taken_from_the_kernel_stays_until_the_page_is_written() {
        let word = loaded(false);
        word.note_store();
        assert!(word.load().needs_write());
        word.begin_write_tracked(false).unwrap();
        word.finish_protect();
        assert!(!word.load().needs_write());
        word.note_store();
        word.finish_write(None);
        assert!(word.load().needs_write(), "stored to while it was in flight");
    }
}
