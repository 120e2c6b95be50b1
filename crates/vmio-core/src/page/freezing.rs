//! Frozen pages: a commit has protected them and not copied them yet. They are Dirty in another epoch than the present one.
//! Their frames stay protected until the commit has its copy, by itself or from a store that copied the page first.

use crate::page::snapshot::{EPOCH, IN_FLIGHT, STORED, Snapshot, State};
use crate::page::word::PageWord;

impl Snapshot {
    /// Whether a commit is about to copy the page, if this is the present epoch.
    #[inline]
    pub fn is_frozen(self, present: bool) -> bool {
        self.state() == State::Dirty && self.epoch() != present
    }
}

impl PageWord {
    /// Frozen → Upgrading, for the thread whose store trapped and that copies the page first. From now on the write of the
    /// copy is in flight, since it may end before the thread lets the page go: no thread writes newer bytes before. Declines
    /// a page in flight, whose older image has to land first.
    #[inline]
    pub fn begin_save(&self, present: bool) -> Result<Snapshot, Snapshot> {
        self.update(|word| {
            let is_ours = word.is_frozen(present) && !word.in_flight();
            is_ours.then(|| word.with_state(State::Upgrading).with(IN_FLIGHT, true))
        })
    }

    /// Upgrading → Dirty in the present epoch: the copy is queued, and the frame is writable.
    #[inline]
    pub fn finish_save(&self, present: bool) {
        self.settle(|word| {
            debug_assert_eq!(word.state(), State::Upgrading);
            word.with_state(State::Dirty).with(EPOCH, present).with(STORED, false)
        });
    }

    /// After a failed commit: makes a page that is frozen in that present epoch part of the next commit.
    #[inline]
    pub fn thaw(&self, present: bool) {
        let _ = self.update(|word| word.is_frozen(present).then(|| word.with(EPOCH, present)));
    }
}
