//! Pages that a commit has protected and not copied yet: Dirty in another epoch than the present one. They are frozen: their
//! frames stay protected until the commit has its copy, by itself or from a store that copied the page first.

use crate::page::word::{EPOCH, IN_FLIGHT, PageWord, STORED, Snapshot, State};

impl Snapshot {
    /// Whether a commit is about to copy it, if this is the present epoch.
    pub(crate) fn is_frozen(self, present: bool) -> bool {
        self.state() == State::Dirty && self.epoch() != present
    }
}

impl PageWord {
    /// Frozen → Upgrading, for the thread whose store trapped and that copies the page first. The write of the copy is in flight
    /// from now on, since it may be over before the page is let go: nobody writes what is newer before. Declines a page in
    /// flight, whose older image has to land first.
    pub(crate) fn begin_save(&self, present: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let is_ours = word.is_frozen(present) && !word.in_flight();
            is_ours.then(|| word.with_state(State::Upgrading).with(IN_FLIGHT, true))
        })
    }

    /// Upgrading → Dirty in the present epoch: the copy is queued, and the frame is writable.
    pub(crate) fn finish_save(&self, present: bool) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(State::Dirty).with(EPOCH, present).with(STORED, false)
        });
    }

    /// The commit has failed: a page that is frozen in that present epoch becomes part of the next one.
    pub(crate) fn thaw(&self, present: bool) {
        self.settle(|word| if word.is_frozen(present) { word.with(EPOCH, present) } else { word });
    }
}
