//! Changing the capacity of a cache that is in use.

use std::sync::PoisonError;
use std::time::Duration;

use crate::cache::evictor::Evictor;
use crate::cache::fruitless_rounds::{FruitlessRounds, WRITES_FAIL};
use crate::cache::merge_buffers::DIRECT_PAGES;
use crate::cache::pass::{Goal, PASS_PAGES};
use crate::cache::shared::Shared;
use crate::error::{Error, Result};
use crate::sys::signal::SignalsBlocked;

/// The capacity shrinks by this many pages at a time. While pages are owed, no thread gets a page; between two steps,
/// every thread can.
const STEP_PAGES: u32 = 2048;

/// The capacity to end with if the wanted smaller one cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnreachable {
    /// The capacity from before the resize.
    Restore,
    /// The smallest capacity that was reached on the way: freeing some memory is better than freeing none.
    KeepSmallest,
}

/// If the number of owed pages has not fallen for this long, the pages that are left will not leave.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

const TOO_MANY_PINS: &str = "pins would hold more than three quarters of it: drop some";

impl Shared {
    /// Changes the capacity to `pages`. The inner error says why that was not possible.
    pub(crate) fn resize(&self, pages: u32, on_unreachable: OnUnreachable) -> Result<Result<(), &'static str>> {
        // A small evictor, since memory may be short. The workers evict as well.
        let mut evictor = Evictor::new(DIRECT_PAGES, &self.write_back.merge_buffers)
            .map_err(Error::system("reserving memory to evict with"))?;
        // A signal handler that missed a page here would wait for pages that perhaps only this thread can free.
        let _signals = SignalsBlocked::new();
        let _one_at_a_time = self.memory.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if u64::from(pages) < self.eviction.least_capacity_pages() {
            return Ok(Err("the floors of its mappings need more: close one of them"));
        }
        let mut fallback = self.memory.capacity_pages();
        while self.memory.capacity_pages() > pages {
            // Checked before each step: where pins forbid the last step, the steps before it must not evict other pages
            // in vain.
            if self.memory.has_too_many_pins_for(pages) {
                self.set_capacity(fallback);
                return Ok(Err(TOO_MANY_PINS));
            }
            let step = pages.max(self.memory.capacity_pages().saturating_sub(STEP_PAGES));
            self.set_capacity(step);
            if let Err(why) = self.repay_owed(&mut evictor) {
                self.set_capacity(fallback);
                return Ok(Err(why));
            }
            if on_unreachable == OnUnreachable::KeepSmallest {
                fallback = step;
            }
        }
        self.set_capacity(pages);
        Ok(Ok(()))
    }

    /// Evicts until no page is owed.
    fn repay_owed(&self, evictor: &mut Evictor) -> Result<(), &'static str> {
        let (mut least, mut fruitless) = (u32::MAX, FruitlessRounds::new());
        loop {
            let event = self.memory.freed_event();
            let owed = self.memory.budget.limit().owed;
            if self.memory.has_too_many_pins_for(self.memory.capacity_pages()) {
                return Err(TOO_MANY_PINS);
            }
            if owed == 0 {
                return Ok(());
            }
            if owed < least {
                least = owed;
                fruitless.end();
            }
            if let Some(run) = self.write_back.queue.pop() {
                run.write(self);
                continue;
            }
            let goal = if fruitless.count() > 1 { Goal::EvictHard } else { Goal::EVICT };
            let pass = evictor.pass(self, PASS_PAGES.min(owed as usize), goal);
            if pass.freed > 0 {
                continue;
            }
            fruitless.add(pass);
            if fruitless.writes_fail() {
                return Err(WRITES_FAIL);
            }
            if fruitless.time() > PATIENCE {
                return Err("the pages that are left are pinned, or their writes do not end");
            }
            self.memory.wait_for_free(event);
        }
    }
}
