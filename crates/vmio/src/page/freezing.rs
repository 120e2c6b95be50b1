//! Pages that a commit has protected and not copied yet: Dirty in another epoch than the present one. They are frozen: their
//! frames stay protected until the commit has its copy, by itself or from a store that copied the page first.

use crate::page::word::{EPOCH, IN_FLIGHT, PageWord, Snapshot, State};

impl Snapshot {
    /// Whether a commit is about to copy it, if this is the present epoch.
    pub(crate) fn is_frozen(self, present: bool) -> bool {
        self.state() == State::Dirty && self.epoch() != present
    }
}

impl PageWord {
    /// Frozen → Upgrading, for the thread whose store trapped and that copies the page first. Declines a page in flight: its
    /// older image has to land before the newer one is written.
    pub(crate) fn begin_save(&self, present: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| (word.is_frozen(present) && !word.in_flight()).then(|| word.with_state(State::Upgrading)))
    }

    /// Upgrading → Dirty in the present epoch, with the write of the copy in flight: nobody writes what is newer before it has
    /// landed. The frame is writable now.
    pub(crate) fn finish_save(&self, present: bool) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(State::Dirty).with(EPOCH, present).with(IN_FLIGHT, true)
        });
    }

    /// The commit has failed: a page that is frozen in that present epoch becomes part of the next one.
    pub(crate) fn thaw(&self, present: bool) {
        self.settle(|word| if word.is_frozen(present) { word.with(EPOCH, present) } else { word });
    }
}
