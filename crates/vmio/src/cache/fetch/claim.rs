//! How a fetch takes pages: it claims the pages that it must read, and settles them when the read has ended.
//!
//! Nothing here waits, allocates or takes a lock of the program's: other pages are Loading meanwhile, and a signal handler
//! of the program may be waiting for them.

use vmio_core::budget::Taken;

use crate::cache::fault_error::FaultError;
use crate::cache::fetch::request::Urgency;
use crate::cache::read_failures::ReadFailure;
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// The result of an attempt to claim pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// This many pages from the first on need nothing more.
    Present(u64),
    /// This many pages are Loading now, by us, and have their budget: read them.
    Absent(u64),
    /// Another thread owns the first page, for a short while.
    Busy,
    /// There is no budget for the first page.
    Short,
    /// The first page is not available.
    Failed(FaultError),
}

impl Region {
    /// Looks at a wanted page. If it must be read, claims it with the pages that follow, `most` pages in all.
    pub(crate) fn claim(&self, core: usize, page: u64, most: u64, urgency: Urgency) -> Claimed {
        let seen = self.table.peek(page);
        if seen.is_active() {
            if seen.is_poisoned() {
                return Claimed::Failed(FaultError::Unreadable(ReadFailure::Kind(std::io::ErrorKind::InvalidData)));
            }
            return Claimed::Present(1);
        }
        if seen.is_busy() {
            return Claimed::Busy;
        }
        if seen.is_resident() {
            return self.claim_inactive(page);
        }
        match self.claim_absent(core, page, urgency, true) {
            Claimed::Absent(_) => {}
            other => return other,
        }
        let others = page + 1..page + most;
        let claimed = others.take_while(|other| self.claim_absent(core, *other, urgency, false) == Claimed::Absent(1));
        Claimed::Absent(1 + claimed.count() as u64)
    }

    /// Claims an inactive page.
    fn claim_inactive(&self, page: u64) -> Claimed {
        let (Some(frames), Ok(before)) = (self.deactivatable(), self.table.word(page).begin_reactivate()) else {
            return Claimed::Busy; // The word has changed since the look.
        };
        match self.reactivate(frames, Place { view: 0, page }, before, false) {
            Ok(()) => Claimed::Present(1),
            Err(error) => Claimed::Failed(error),
        }
    }

    /// Claims one absent page. If the device holds garbage there, fills the page at once if it is the first of its run,
    /// and declines it if not.
    fn claim_absent(&self, core: usize, page: u64, urgency: Urgency, first: bool) -> Claimed {
        let Ok(before) = self.begin_load(page) else { return Claimed::Busy };
        // The mapping may have been shortened meanwhile; the thread that shortens it looks at the word after.
        if page >= self.table.pages() {
            self.fail_load(page);
            return Claimed::Failed(FaultError::BeyondEnd);
        }
        let is_fresh = self.is_fresh(page, before);
        if is_fresh && !first {
            self.fail_load(page);
            return Claimed::Busy;
        }
        if !self.take_budget(core, page, urgency) {
            self.fail_load(page);
            return Claimed::Short;
        }
        if is_fresh { self.fill_fresh(core, page) } else { Claimed::Absent(1) }
    }

    fn fill_fresh(&self, core: usize, page: u64) -> Claimed {
        match self.fill(core, Place { view: 0, page }, false) {
            Ok(()) => Claimed::Present(1),
            Err(error) => Claimed::Failed(error),
        }
    }

    /// Takes the budget for a page that is counted in its span, if the budget is free at once. A guess leaves half of
    /// the reserve to the other requests.
    fn take_budget(&self, core: usize, page: u64, urgency: Urgency) -> bool {
        let shared = &*self.shared;
        if urgency == Urgency::Guessed && shared.memory.budget.free() <= shared.memory.watermarks().low / 2 {
            shared.workers.wake(false);
            return false;
        }
        let charge = self.charge_of(page);
        if urgency != Urgency::Overdue && self.at_ceiling(charge - 1).is_some() {
            return false;
        }
        match shared.memory.budget.take(core, charge) {
            None => return false,
            Some(Taken::Local) => {}
            Some(Taken::Refilled) => {
                let free = shared.memory.budget.free();
                if free < shared.memory.watermarks().low {
                    shared.workers.wake(free < shared.memory.watermarks().low / 2);
                }
            }
        }
        self.charge(page, charge);
        true
    }

    /// Ends the read of claimed pages. `arrived` is the number of bytes, or an error number below zero. If the read
    /// came short, reads the pages as a fault would, one by one if need be: most likely that fails as well, and says
    /// why. Returns the first page that could not be brought in.
    pub(crate) fn settle_fetched(
        &self,
        core: usize,
        first: u64,
        data: &mut [u8],
        arrived: i32,
    ) -> Option<(u64, FaultError)> {
        // Bytes that others may have appended to the file are no part of the mapping.
        let left = self.backing.len().saturating_sub(first * PAGE_BYTES as u64);
        let read = match u64::try_from(arrived) {
            Ok(bytes) => self.accept_read(core, (first, self.table.len()), data, bytes.min(left) as usize),
            Err(_) => Err(ReadFailure::Os(-arrived)),
        };
        if read.is_ok() || self.read(core, first, data).is_ok() {
            return self.settle_read(first, data);
        }
        let mut failed = None;
        for (data, page) in data.chunks_mut(PAGE_BYTES).zip(first..) {
            let failure = match self.read(core, page, data) {
                Ok(()) => self.settle_read(page, data),
                Err(failure) => Some(self.refuse(page, failure)),
            };
            failed = failed.or(failure);
        }
        failed
    }

    /// Installs pages that were read, except those that do not verify.
    fn settle_read(&self, first: u64, data: &[u8]) -> Option<(u64, FaultError)> {
        let pages = data.len() / PAGE_BYTES;
        self.shared.telemetry.count(cpu::current(), Counter::FetchedPages, pages as u64);
        let mut failed = None;
        let mut next = 0;
        for at in 0..=pages {
            let verified = match data.get(at * PAGE_BYTES..(at + 1) * PAGE_BYTES) {
                Some(page) => self.verify(first + at as u64, page),
                None => Ok(()),
            };
            if at < pages && verified.is_ok() {
                continue;
            }
            if next < at {
                let run = first + next as u64;
                let installed = self.install_claimed(cpu::current(), run, &data[next * PAGE_BYTES..at * PAGE_BYTES]);
                failed = failed.or(installed.err().map(|error| (run, error)));
            }
            if let Err(failure) = verified {
                let refused = self.refuse(first + at as u64, failure);
                failed = failed.or(Some(refused));
            }
            next = at + 1;
        }
        failed
    }

    /// Gives up a claimed page that could not be brought in.
    fn refuse(&self, page: u64, failure: ReadFailure) -> (u64, FaultError) {
        self.note_read_failure(page, failure);
        self.fail_charged_loads(page..page + 1);
        (page, FaultError::Unreadable(failure))
    }
}
