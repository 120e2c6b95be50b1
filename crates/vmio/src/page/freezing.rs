//! Pages that a commit has protected and not copied yet: Dirty in another epoch than the present one. They are frozen: their
//! frames stay protected until the commit has its copy.

use crate::page::word::{EPOCH, PageWord, Snapshot, State};

impl Snapshot {
    /// Whether a commit is about to copy it, if this is the present epoch.
    pub(crate) fn is_frozen(self, present: bool) -> bool {
        self.state() == State::Dirty && self.epoch() != present
    }
}

impl PageWord {
    /// The commit has failed: a page that is frozen in that present epoch becomes part of the next one.
    pub(crate) fn thaw(&self, present: bool) {
        self.settle(|word| if word.is_frozen(present) { word.with(EPOCH, present) } else { word });
    }
}
