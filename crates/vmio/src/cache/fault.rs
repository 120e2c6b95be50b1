//! The miss path: from the trap to a page that the program may touch. Everything here is async-signal-safe.
//!
//! A miss goes through these, in this order:
//!
//! 1. the trap: [`handle_fault`], in the thread that has touched an absent page;
//! 2. find: the region by [`REGIONS`], the page by [`Region::fault_run`], which makes its word Loading;
//! 3. charge: [`Region::load`] takes pages of the budget, by `direct_reclaim.rs` where none is free;
//! 4. load: `load.rs` claims the neighbours that come along, and reads all of them at once;
//! 5. install: `load.rs` makes them visible and their words Clean or Dirty.

use std::time::Instant;

use vmio_core::page::snapshot::{Snapshot, State};

use crate::backing::Access;
use crate::cache::fault_error::FaultError;
use crate::cache::region::views::Place;
use crate::cache::region::{REGIONS, Region};
use crate::cache::view_tables::InSpan;
use crate::engine::DeactivatableFrames;
use crate::sys::abort::AbortOnUnwind;
use crate::sys::signal::{FaultAccess, Resolution};
use crate::sys::{PAGE_BYTES, cpu, probes};
use crate::telemetry::counters::Counter;

/// The process's fault handler: finds the region and resolves the fault in the faulting thread.
pub(crate) fn handle_fault(address: usize, access: FaultAccess) -> Resolution {
    let Some(region) = REGIONS.find(address) else { return Resolution::Declined };
    let Some(place) = region.views.place_of(address) else { return Resolution::Declined };
    if place.page >= region.table.pages() || !region.shared.generation.is_current() {
        return Resolution::Declined;
    }
    let started = region.shared.telemetry.measures_misses.then(Instant::now);
    let store = match access {
        FaultAccess::Load => false,
        FaultAccess::Store => true,
        // A load of a settled page does not fault, so the access was a store, or another thread has settled the page since. If
        // no store is allowed here, the access counts as a load; a store then faults again. Where the kernel notes stores, a
        // store need not be told from a load.
        FaultAccess::Unknown => {
            let word = region.table.word(place.page).load();
            let may_be_store = word.is_settled_resident() && !word.is_poisoned();
            may_be_store && region.access == Access::ReadWrite && region.deactivatable().is_none()
        }
    };
    let outcome = region.fault_run(place, 1, store);
    if let Some(started) = started {
        let ns = started.elapsed().as_nanos() as u64;
        let core = cpu::current();
        region.shared.telemetry.count(core, Counter::TimedMisses, 1);
        region.shared.telemetry.count(core, Counter::HandlerNs, ns);
    }
    if outcome.is_ok() { Resolution::Resolved } else { Resolution::Declined }
}

impl Region {
    /// Makes a page resident, and writable if it is for a store.
    pub(crate) fn fault(&self, page: u64, store: bool) -> Result<(), FaultError> {
        self.fault_run(Place { view: 0, page }, 1, store)
    }

    /// Like [`Self::fault`], at one of the region's views, for the first of `wanted` pages. The page is mapped at that view
    /// afterwards. If the page must be read, the same read brings in those of the other pages that are absent, as far as they
    /// are neighbours and the budget has pages for them.
    pub(crate) fn fault_run(&self, place: Place, wanted: u64, store: bool) -> Result<(), FaultError> {
        let page = place.page;
        if store && self.access == Access::ReadOnly {
            return Err(FaultError::ReadOnly);
        }
        let _verifier_may_panic = AbortOnUnwind::new();
        let mut inside = if self.views.shares_addresses { Some(self.enter(place)?) } else { None };
        let word = self.table.word(page);
        let mut peeked = Some(self.table.peek(page));
        loop {
            let seen = peeked.take().unwrap_or_else(|| word.load());
            match seen.state() {
                State::Absent => {
                    if inside.as_ref().is_some_and(|inside| !inside.has_page()) {
                        // The page was in memory a moment ago.
                        drop(inside.take());
                        inside = Some(self.enter(place)?);
                        continue;
                    }
                    if let Ok(before) = self.begin_load(page) {
                        // The mapping may have been shortened meanwhile; the thread that shortens it looks at the word after.
                        if page >= self.table.pages() {
                            self.fail_load(page);
                            return Err(FaultError::BeyondEnd);
                        }
                        let is_charged = inside.as_mut().map(InSpan::take_page).is_some();
                        probes::miss_begin(self.views.address_at(place), store);
                        let loaded = self.load(place, wanted, before, store, is_charged);
                        probes::miss_end(self.views.address_at(place), loaded.is_ok());
                        return loaded;
                    }
                }
                State::Clean | State::Dirty => {
                    if let Some(frames) = self.deactivatable() {
                        match word.begin_reactivate() {
                            Ok(before) => return self.reactivate(frames, place, before, store),
                            Err(_) => continue,
                        }
                    }
                    if !store {
                        return Ok(());
                    }
                    if seen.is_poisoned() {
                        return Err(FaultError::Poisoned);
                    }
                    let Some(permit) = self.permit_store_to(page) else { continue };
                    if let Ok(before) = word.begin_upgrade(permit.epoch) {
                        let upgraded = self.upgrade(page, before);
                        // A thread does not hold up a commit while it helps to write.
                        drop(permit);
                        if before.state() == State::Clean {
                            self.shared.slow_down_for_dirty(cpu::current());
                        }
                        return upgraded;
                    }
                }
                State::Loading | State::Upgrading | State::Protecting | State::Evicting => {
                    self.shared.telemetry.count(cpu::current(), Counter::FaultWaits, 1);
                    self.await_huge_page(page);
                    word.wait_while(Snapshot::is_busy);
                    if self.deactivatable().is_some() && !self.views.shares_addresses && word.load().is_resident() {
                        // The other thread has most likely mapped the page: the instruction, or the caller, tries again.
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Serves a minor fault: the touch of an inactive page. Also serves the touch of a page that is mapped at another address
    /// only, and the touch of an active page. That happens because a neighbour was deactivated while the page came in, or
    /// because a pin needs the page to be Dirty; a store may have hit it.
    pub(crate) fn reactivate(
        &self,
        frames: &dyn DeactivatableFrames,
        place: Place,
        before: Snapshot,
        store: bool,
    ) -> Result<(), FaultError> {
        debug_assert_eq!(self.table.word(place.page).load().state(), State::Upgrading);
        debug_assert!(before.is_settled_resident());
        let shared = &*self.shared;
        let page = place.page;
        let was_dirty = before.state() == State::Dirty;
        let epoch = self.announce_dirty(page);
        // Protecting the page forgets the kernel's note of it here. Of an inactive page, the word knows all.
        let forgets_nothing = || before.is_inactive() || self.views.shares_addresses && !self.was_stored_at(place);
        let protect = !store && !before.needs_write() && forgets_nothing();
        let newly_mapped = match frames.reactivate(self.views.address_at(place), protect) {
            Ok(newly_mapped) => newly_mapped,
            Err(error) => {
                self.table.word(page).fail_reactivate(before);
                return Err(FaultError::Refused(error.raw_os_error().unwrap_or(libc::EFAULT)));
            }
        };
        let dirty_in = match (was_dirty, store) {
            (true, _) => Some(before.epoch()),
            (false, true) => Some(epoch),
            (false, false) => None,
        };
        if !before.is_inactive() {
            self.table.word(page).finish_reactivate(dirty_in, None);
        } else {
            let order = self.order();
            let frequency = order.policy.frequency_of_reactivated(before.frequency());
            order.move_reactivated(cpu::current(), before.frequency(), frequency);
            self.table.word(page).finish_reactivate(dirty_in, Some(frequency));
        }
        if before.is_inactive() || self.views.shares_addresses && newly_mapped {
            shared.telemetry.count(cpu::current(), Counter::MinorFaults, 1);
        }
        if store && !was_dirty {
            self.count_dirty(page);
        }
        Ok(())
    }

    /// Serves a store to a resident page that is protected: the page is clean, or write-back or eviction has protected its
    /// span.
    fn upgrade(&self, page: u64, before: Snapshot) -> Result<(), FaultError> {
        debug_assert_eq!(self.table.word(page).load().state(), State::Upgrading);
        debug_assert!(before.is_settled_resident() && !before.is_poisoned());
        let shared = &*self.shared;
        let core = cpu::current();
        shared.telemetry.count(core, Counter::WriteProtectFaults, 1);
        shared.telemetry.count(core, Counter::ShootdownsStore, 1);
        let epoch = self.announce_dirty(page);
        self.keep_pre_image(page, before);
        let unprotected = self.frames().unprotect(self.table.address(page), PAGE_BYTES);
        // Dirty in any case: had its last write failed meanwhile, "clean" would be a lie.
        if before.state() == State::Dirty {
            // The page still holds the stores of an earlier epoch.
            self.table.word(page).finish_upgrade(before.epoch());
        } else {
            self.table.word(page).finish_upgrade(epoch);
            self.count_dirty(page);
        }
        unprotected.map_err(|error| FaultError::Refused(error.raw_os_error().unwrap_or(libc::EFAULT)))
    }
}
