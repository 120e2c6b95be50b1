//! Direct reclaim: a thread that misses while no page is free, or few are, helps to write, evicts, or waits for a
//! worker. Everything here is async-signal-safe.

use vmio_core::budget::Taken;

use crate::cache::fruitless_rounds::{FruitlessRounds, PATIENCE_ABOVE_FLOORS, WRITES_FAIL};
use crate::cache::merge_buffers::DIRECT_PAGES;
use crate::cache::pass::Goal;
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::cache::tenant::Tenant;
use crate::telemetry::counters::Counter;

/// Rounds of eviction for the pages of a whole span or unit. If these are not enough, the pages come in one by one.
const ROUNDS_MAX: u32 = 4;
/// Passes of a thread that fills the reserve up, each with a harder goal, until one frees a page.
const PASSES_IN_PLACE_MAX: usize = 3;
/// Passes in a row that may bring nothing because pages have visits left to survive; only after these a thread waits.
const IDLE_PASSES_MAX: u32 = 8;

impl Region {
    /// Call this before taking this many more pages of the budget: a mapping at its ceiling evicts from itself first.
    #[inline]
    pub(super) fn make_room(&self, core: usize, more: u32) {
        if let Some(tenant) = self.at_ceiling(more) {
            self.shared.evict_from(core, tenant, more);
        }
    }
}

impl Shared {
    /// Takes pages of the budget for a fault, and evicts if it must. Holds no page of the budget while it waits, since
    /// other threads may wait for pages as well. The error says why no page can go.
    pub(super) fn take_pages(&self, core: usize, pages: u32) -> Result<(), &'static str> {
        match self.memory.budget.take(core, pages) {
            Some(Taken::Local) => {}
            Some(Taken::Refilled) => {
                let free = self.memory.budget.free();
                // In a small cache a core's share may be as large as the reserve.
                let is_low = free < self.memory.watermarks().low || self.memory.budget.pooled() == 0;
                if is_low && !self.refill_in_place(core) {
                    self.workers.wake(free < self.memory.watermarks().low / 2);
                }
            }
            None => return self.evict_and_take(core, pages),
        }
        // Few pages are left: every thread writes a little, so that none stops for long.
        if self.memory.budget.pooled() < self.memory.watermarks().help {
            self.help_write(core);
        }
        Ok(())
    }

    /// Fills the reserve of free pages up in the calling thread, where that takes no system call: to wake a worker would. False if a worker
    /// is wanted, since writes take long or no page can go at once.
    fn refill_in_place(&self, core: usize) -> bool {
        if !self.paging.frames.unmaps_without_calls() || self.workers.writes_are_slow() {
            return false;
        }
        // Without one, another thread is at it.
        let Some(mut evictor) = self.eviction.spare_evictors.pop() else { return true };
        self.telemetry.count(core, Counter::DirectReclaims, 1);
        let short = self.memory.watermarks().high.saturating_sub(self.memory.budget.free());
        let goals = std::iter::successors(Some(Goal::EVICT), |goal| Some(goal.harder()));
        let mut passes = goals.take(PASSES_IN_PLACE_MAX).map(|goal| evictor.pass(self, short as usize, goal));
        let has_freed = passes.any(|pass| pass.freed > 0);
        let _ = self.eviction.spare_evictors.push(evictor);
        has_freed
    }

    /// Takes this many pages for a fault, and evicts if it must. False if a few rounds did not bring enough, since
    /// other threads were faster.
    pub(super) fn try_take_pages(&self, core: usize, pages: u32) -> bool {
        for _ in 0..ROUNDS_MAX {
            let event = self.memory.freed_event();
            if self.memory.budget.take(core, pages).is_some() {
                if self.memory.budget.free() < self.memory.watermarks().low {
                    self.workers.wake(false);
                }
                return true;
            }
            let Some(mut evictor) = self.eviction.spare_evictors.pop() else {
                self.memory.wait_for_free(event);
                continue;
            };
            self.telemetry.count(core, Counter::DirectReclaims, 1);
            evictor.pass(self, DIRECT_PAGES.max(pages as usize), Goal::EVICT);
            let _ = self.eviction.spare_evictors.push(evictor);
        }
        false
    }

    #[cold]
    fn evict_and_take(&self, core: usize, pages: u32) -> Result<(), &'static str> {
        let mut fruitless = FruitlessRounds::new();
        loop {
            self.workers.wake(true);
            let event = self.memory.freed_event();
            if self.memory.budget.take(core, pages).is_some() {
                return Ok(());
            }
            if self.help_write(core) {
                continue;
            }
            let Some(mut evictor) = self.eviction.spare_evictors.pop() else {
                self.memory.wait_for_free(event);
                continue;
            };
            self.telemetry.count(core, Counter::DirectReclaims, 1);
            let pass = evictor.pass(self, DIRECT_PAGES, fruitless.goal());
            let _ = self.eviction.spare_evictors.push(evictor);
            if pass.freed > 0 {
                fruitless.end();
                continue;
            }
            fruitless.add(pass);
            if fruitless.writes_fail() && !self.memory.is_shrinking() {
                return Err(WRITES_FAIL);
            }
            self.memory.wait_for_free(event);
        }
    }

    /// If too many pages are dirty, the calling thread, which makes more of them, writes a run. While pages leave the
    /// cache as well, the reserve of free pages decides which threads help.
    pub(super) fn slow_down_for_dirty(&self, core: usize) {
        if self.needs_help_with_dirty() && self.memory.budget.pooled() >= self.memory.watermarks().high {
            self.help_write(core);
        }
    }

    /// Writes one waiting run; false if there is none.
    fn help_write(&self, core: usize) -> bool {
        let Some(run) = self.write_back.queue.pop() else { return false };
        self.telemetry.count(core, Counter::HelpedWrites, 1);
        run.write(self);
        true
    }

    /// Evicts pages of a tenant until this many more fit below its ceiling. If no page can go, the new pages come in
    /// over the ceiling.
    #[cold]
    #[inline(never)]
    fn evict_from(&self, core: usize, tenant: &Tenant, more: u32) {
        let mut fruitless = FruitlessRounds::new();
        loop {
            let event = self.memory.freed_event();
            let over = tenant.over(more);
            if over == 0 {
                return;
            }
            let Some(mut evictor) = self.eviction.spare_evictors.pop() else {
                // Another thread is at work. Whether a page can go shows in a round of our own.
                self.memory.wait_for_free(event);
                continue;
            };
            self.telemetry.count(core, Counter::DirectReclaims, 1);
            let pass = evictor.pass_of(self, tenant, over as usize + tenant.batch_pages(), fruitless.goal());
            let _ = self.eviction.spare_evictors.push(evictor);
            if pass.freed > 0 {
                fruitless.end();
                continue;
            }
            fruitless.add(pass);
            let is_idle = fruitless.count() > IDLE_PASSES_MAX;
            if fruitless.writes_fail() || is_idle && fruitless.time() > PATIENCE_ABOVE_FLOORS {
                return;
            }
            if is_idle {
                self.memory.wait_for_free(event);
            }
        }
    }
}
