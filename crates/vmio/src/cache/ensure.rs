//! The miss path as a function call, for code that knows what it is about to touch.

use std::ops::Range;

use crate::cache::fault::FaultError;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::sys::signal::SignalsBlocked;

/// Pages brought in with signals blocked once: two system calls for all of them, and a signal waits for no more.
const STEP_PAGES: usize = WINDOW_PAGES_MAX;

impl Region {
    /// Makes pages resident that are not, neighbours with one read. An error comes with the page that it is about.
    pub(crate) fn ensure(&self, pages: Range<u64>) -> Result<(), (u64, FaultError)> {
        self.ensure_while(pages, || true)
    }

    /// The same, as long as `goes_on`, which is asked before each step.
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
                // It holds poison for those who load: here it is an error, as for a pin.
                return if word.is_poisoned() { Err(FaultError::Unreadable(self.why_poisoned(page))) } else { Ok(()) };
            }
            self.fault_run(Place { view: 0, page }, wanted, false)?;
        }
    }
}
