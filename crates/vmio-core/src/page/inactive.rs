//! The page word over frames that can be deactivated and whose stores the kernel notes (`DeactivatableFrames`).
//!
//! ```text
//!            begin_deactivate           finish_deactivate
//!   Clean ──────────────────▶ Evicting ─────────────────▶ Clean ──┐ inactive  begin_drop
//!   or Dirty                                              or Dirty├──────────────────────▶ Evicting ──▶ Absent
//!     ▲                       begin_reactivate (a touch) ┌────────┘ (Clean only; Dirty is written first)
//!     └──────────────────────── Upgrading ◀──────────────┘
//!       finish_reactivate
//! ```
//!
//! An active Clean page is the same as on the device, unless the kernel has noted a store since. A thread that takes
//! the kernel's notes of a span (and so erases them) holds the span's lock, and either writes a page that was stored to
//! or leaves the Stored mark on its word. An inactive page changes only once it is active again, so its word knows all.

use crate::page::snapshot::{EPOCH, FRESH, INACTIVE, STORED, Snapshot, State};
use crate::page::visit::Visit;
use crate::page::visit::visits_of;
use crate::page::word::PageWord;

impl PageWord {
    /// Clean or Dirty, active → Evicting, to deactivate the page. Declines a page that is pinned, in flight, or
    /// survives the visit. Returns the word before.
    #[inline]
    pub fn begin_deactivate(&self, visit: Visit) -> Result<Snapshot, Snapshot> {
        let before = self.update(|word| {
            let free = word.is_settled_resident() && !word.is_inactive() && !word.in_flight() && word.pins() == 0;
            let next = || visit.survivor(word).unwrap_or(word.with_state(State::Evicting));
            free.then(next).filter(|next| *next != word)
        })?;
        if visit.survivor(before).is_some() { Err(before) } else { Ok(before) }
    }

    /// Evicting → inactive: Dirty in the given sync epoch, if the page was dirty or a store has hit it, or Clean.
    #[inline]
    pub fn finish_deactivate(&self, dirty_in: Option<bool>) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            match dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false),
                None => word.with_state(State::Clean),
            }
            .with(INACTIVE, true)
        });
    }

    /// Evicting → active: Dirty in the given sync epoch, or Clean. The page could not be deactivated.
    #[inline]
    pub fn fail_deactivate(&self, dirty_in: Option<bool>) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            match dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH | STORED, false),
                None => word.with_state(State::Clean),
            }
        });
    }

    /// Clean or Dirty → Upgrading, for the thread that touched the page. Returns the word before.
    #[inline]
    pub fn begin_reactivate(&self) -> Result<Snapshot, Snapshot> {
        self.update(|word| word.is_settled_resident().then(|| word.with_state(State::Upgrading)))
    }

    /// Upgrading → active: Dirty in the given epoch, or Clean with its frame protected. A page that was inactive has
    /// this frequency from now on, and the visits that go with it.
    #[inline]
    pub fn finish_reactivate(&self, dirty_in: Option<bool>, frequency: Option<u8>) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            let word = match dirty_in {
                Some(epoch) => word.with_state(State::Dirty).with(EPOCH, epoch).with(FRESH, false),
                None => word.with_state(State::Clean),
            }
            .with(INACTIVE, false);
            frequency.map_or(word, |frequency| word.with_frequency(frequency).with_history(visits_of(frequency)))
        });
    }

    /// Upgrading → the state before: the page could not be mapped.
    #[inline]
    pub fn fail_reactivate(&self, before: Snapshot) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(before.state())
        });
    }

    /// Inactive and Clean → Evicting, to drop the page. Declines a page that needs a write, is in flight, or survives
    /// the visit.
    #[inline]
    pub fn begin_drop(&self, visit: Visit) -> bool {
        let before = self.update(|word| {
            let free = word.is_inactive() && word.state() == State::Clean && !word.needs_write() && !word.in_flight();
            free.then(|| visit.survivor(word).unwrap_or(word.with_state(State::Evicting)))
        });
        before.is_ok_and(|word| visit.survivor(word).is_none())
    }

    /// Absent → Evicting: no thread fetches the page while its neighbours on both sides are dropped in one step.
    #[inline]
    pub fn claim_gap(&self) -> bool {
        self.update(|word| (word.state() == State::Absent).then(|| word.with_state(State::Evicting))).is_ok()
    }

    /// Evicting → Absent, after [`Self::claim_gap`]. All that was known of the page stays.
    #[inline]
    pub fn release_gap(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Evicting);
            word.with_state(State::Absent).with(STORED, false)
        });
    }

    /// Clean or Dirty → Protecting, to copy and write the page, if it is dirty or the kernel has noted a store.
    /// Declines a page that is in flight or pinned for writing. Returns the word before.
    #[inline]
    pub fn begin_write_tracked(&self, was_stored: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let wanted = word.needs_write() || was_stored && word.state() == State::Clean && !word.is_inactive();
            (wanted && !word.in_flight() && !word.is_pinned_for_writing())
                .then(|| word.with_state(State::Protecting).with(STORED | FRESH, false))
        })
    }

    /// Remembers a store for a page that is not being written: the caller has taken the kernel's note of the store.
    /// Skips a page that is absent, known to be dirty, or inactive and nobody's: of these the kernel has nothing to
    /// tell.
    #[inline]
    pub fn note_store(&self) {
        let _ = self.update(|word| match word.state() {
            State::Absent | State::Dirty => None,
            State::Clean if word.is_inactive() => None,
            _ => Some(word.with(STORED, true)),
        });
    }

    /// Protecting → Dirty: the page could not be copied after [`Self::begin_write_tracked`].
    #[inline]
    pub fn fail_copy(&self) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Protecting);
            word.with_state(State::Dirty)
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::page::word::{Loaded, PinOutcome};

    fn loaded(dirty: bool) -> PageWord {
        let word = PageWord::default();
        assert!(word.begin_load().is_ok());
        word.finish_load(Loaded { dirty_in: dirty.then_some(false), ..Loaded::default() });
        word
    }

    #[test]
    fn a_page_is_deactivated_reactivated_deactivated_again_and_dropped() {
        let word = loaded(false);
        assert_eq!(word.begin_deactivate(Visit::LAST).unwrap().state(), State::Clean);
        assert!(word.begin_reactivate().is_err(), "the evictor owns it");
        word.finish_deactivate(None);
        assert!(word.load().is_inactive() && word.begin_deactivate(Visit::LAST).is_err());
        assert!(matches!(word.pin(false), PinOutcome::NotResident(_)), "an inactive page must be reactivated first");
        word.begin_reactivate().unwrap();
        word.finish_reactivate(None, Some(0));
        assert!(!word.load().is_inactive() && !word.begin_drop(Visit::LAST), "only inactive pages are dropped");
        word.begin_deactivate(Visit::LAST).unwrap();
        word.finish_deactivate(None);
        assert!(word.begin_drop(Visit::ORDINARY));
        word.finish_evict(3);
        assert_eq!((word.load().state(), word.load().is_inactive()), (State::Absent, false));
    }

    #[test]
    fn an_inactive_page_that_was_stored_to_is_written_before_it_goes() {
        let word = loaded(false);
        word.begin_deactivate(Visit::LAST).unwrap();
        word.finish_deactivate(Some(true));
        assert!(!word.begin_drop(Visit::LAST));
        assert_eq!(word.begin_write_tracked(false).unwrap().state(), State::Dirty);
        word.finish_protect();
        assert!(word.load().is_inactive() && !word.begin_drop(Visit::LAST), "in flight");
        word.finish_write(None);
        assert!(word.begin_drop(Visit::LAST));
    }

    #[test]
    fn a_write_that_fails_while_the_page_is_reactivated_is_not_forgotten() {
        let word = loaded(true);
        word.begin_deactivate(Visit::LAST).unwrap();
        word.finish_deactivate(Some(false));
        word.begin_write_tracked(false).unwrap();
        word.finish_protect();
        assert_eq!(word.begin_reactivate().unwrap().state(), State::Clean);
        word.finish_write(Some(false));
        word.finish_reactivate(None, Some(0));
        assert!(word.load().needs_write());
    }

    #[test]
    fn a_write_that_fails_while_an_active_page_is_mapped_once_more_is_not_forgotten() {
        let word = loaded(true);
        word.begin_write_tracked(false).unwrap();
        word.finish_protect();
        word.begin_reactivate().unwrap();
        word.finish_write(Some(false));
        word.finish_reactivate(None, Some(0));
        assert!(word.load().needs_write());
    }

    /// Pages on both sides of an absent one were stored to, and so, as far as the kernel can tell, was the absent one.
    #[test]
    fn a_note_about_an_absent_page_is_forgotten() {
        let word = PageWord::default();
        assert!(word.claim_gap());
        word.note_store();
        word.release_gap();
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
