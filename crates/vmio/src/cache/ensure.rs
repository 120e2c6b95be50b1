//! The miss path as a function call, for code that knows which pages it is about to touch.

use std::ops::Range;

use crate::cache::fault_error::FaultError;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::sys::signal::SignalsBlocked;

/// Pages brought in while signals stay blocked. Blocking costs two system calls for all of them, and a signal waits for
/// no more pages than these.
const STEP_PAGES: usize = WINDOW_PAGES_MAX;

impl Region {
    /// Brings in the pages of a range that a load would miss, neighbours with one read. An error comes with its page.
    pub(crate) fn ensure(&self, pages: Range<u64>) -> Result<(), (u64, FaultError)> {
        self.ensure_while(pages, || true)
    }

    /// Like [`Self::ensure`], as long as `goes_on` returns true. Each step asks it first.
    pub(crate) fn ensure_while(&self, pages: Range<u64>, goes_on: impl Fn() -> bool) -> Result<(), (u64, FaultError)> {
        let mut next = pages.start;
        while let Some(absent) = (next..pages.end).find(|page| !self.table.is_active(*page)) {
            if !goes_on() {
                break;
            }
            next = pages.end.min(absent + STEP_PAGES as u64);
            let _signals = SignalsBlocked::new();
            for page in absent..next {
                self.ensure_page(page, next - page).map_err(|failure| (page, failure))?;
            }
        }
        Ok(())
    }

    fn ensure_page(&self, page: u64, wanted: u64) -> Result<(), FaultError> {
        loop {
            let word = self.table.peek(page);
            if word.is_active() {
                // A load gets the poison pattern. Here poison is an error, as it is for a pin.
                return if word.is_poisoned() { Err(FaultError::Unreadable(self.why_poisoned(page))) } else { Ok(()) };
            }
            self.fault_run(Place { view: 0, page }, wanted, false)?;
        }
    }
}
