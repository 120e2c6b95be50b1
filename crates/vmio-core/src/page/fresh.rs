//! The Fresh mark: the device holds garbage for a page. Its word says so, until the page is dirty or somebody takes the
//! mark back.

use crate::page::snapshot::{FRESH, State};
use crate::page::word::PageWord;

impl PageWord {
    /// Marks an absent page as garbage on the device; false if it is in memory or on its way.
    #[inline]
    pub fn mark_fresh(&self) -> bool {
        self.update(|word| (word.state() == State::Absent).then(|| word.with(FRESH, true))).is_ok()
    }

    /// Takes the mark back, wherever the page is.
    #[inline]
    pub fn forget_fresh(&self) {
        let _ = self.update(|word| word.is_fresh().then(|| word.with(FRESH, false)));
    }
}
