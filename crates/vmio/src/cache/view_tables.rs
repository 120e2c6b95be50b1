//! One region at several addresses: how its views come and go, and the page tables that a span has at each.
//!
//! The kernel notes stores by address, and a page is dirty if a store has hit it at any address. So a thread that takes
//! the notes of a span takes them at each view at which the span has page tables. A page may have no mapping at such a
//! view. Its note there must say "not stored to"; but the kernel says the opposite of an entry that never was
//! protected. Therefore vmio protects the whole span at a view before it maps the first page there. It does so again
//! whenever it deactivates pages and takes their notes. None of this is needed for safety: a note too many costs a
//! write of a clean page, and a page that the kernel swaps out keeps its note.

use vmio_core::page::snapshot::State;
use vmio_core::page::views::VIEWS_MAX;
use vmio_core::page::{SPAN_BYTES, SPAN_PAGES, span_of};

use crate::backing::Access;
use crate::cache::fault_error::FaultError;
use crate::cache::region::views::Place;
use crate::cache::region::{REGIONS, Region};
use crate::cache::tables::TABLE_PAGES;
use crate::error::{Error, Result};
use crate::sys::address_table::GRANULE_BYTES;
use crate::sys::cpu;
use crate::sys::pagemap::StoredPages;
use crate::sys::reservation::Reservation;
use crate::sys::signal::SignalsBlocked;

/// Counts the caller in a span until this is dropped: the span's page tables stay.
pub(crate) struct InSpan<'a> {
    region: &'a Region,
    span: u64,
    /// Pages of the budget that are not spent yet.
    pages: u32,
}

impl<'a> InSpan<'a> {
    /// Counts the caller in the span of that number, once its memory is not being given back.
    pub(crate) fn of(region: &'a Region, number: u64) -> Self {
        region.add_resident(number);
        InSpan { region, span: number, pages: 0 }
    }

    /// Whether a page of the budget is left for a page.
    pub(crate) fn has_page(&self) -> bool {
        self.pages > 0
    }

    /// Hands that page over.
    pub(crate) fn take_page(&mut self) {
        self.pages -= 1;
    }
}

impl Drop for InSpan<'_> {
    fn drop(&mut self) {
        self.region.shared.memory.release(self.pages);
        self.region.remove_resident(self.span, 1);
    }
}

impl Region {
    /// Makes sure that the span of a page has page tables at a view, in the budget and in the kernel, before the page
    /// is mapped there. If the page is absent, takes a page of the budget for it as well. The caller owns no word.
    ///
    /// Takes all pages of the budget in one step, before it counts the caller in the span. So no thread holds some
    /// pages while it waits for more, and none keeps the tables of a span from being given back.
    pub(crate) fn enter(&self, place: Place) -> Result<InSpan<'_>, FaultError> {
        let number = span_of(place.page);
        let mut inside = loop {
            let charge = self.charge_at(place);
            if charge > 0 {
                self.make_room(cpu::current(), charge);
                self.shared.take_pages(cpu::current(), charge).map_err(FaultError::Exhausted)?;
            }
            let mut inside = InSpan::of(self, number);
            inside.pages = charge;
            // From here on the charge does not rise, except by eviction of the page.
            if self.charge_at(place) <= charge {
                break inside;
            }
        };
        let span = self.table.span(number);
        if !span.is_charged() {
            inside.pages -= TABLE_PAGES;
            self.charge(place.page, 1 + TABLE_PAGES);
        }
        if !span.views.ready().contains(place.view) && span.views.begin(place.view) {
            // The charge of the span includes the page tables of the first view.
            let own_tables = u32::from(place.view > 0);
            inside.pages -= own_tables;
            self.count_tables(own_tables);
            if self.access == Access::ReadWrite {
                let first = Place { page: number * SPAN_PAGES as u64, ..place };
                // If this fails, pages are written that nobody has stored to.
                let _ = self.frames().protect(self.views.address_at(first), SPAN_BYTES);
            }
            span.views.finish(place.view);
        }
        Ok(inside)
    }

    /// The pages of the budget that mapping a page at a view costs at present.
    fn charge_at(&self, place: Place) -> u32 {
        let span = self.table.span(span_of(place.page));
        let is_ready = place.view == 0 || span.views.ready().contains(place.view);
        let tables = if span.is_charged() { 0 } else { TABLE_PAGES };
        let page = u32::from(self.table.word(place.page).load().state() == State::Absent);
        page + tables + u32::from(!is_ready)
    }

    /// Whether the kernel has noted a store to a page at one address, or cannot say.
    pub(crate) fn was_stored_at(&self, place: Place) -> bool {
        self.deactivatable().is_none_or(|frames| frames.was_stored(self.views.address_at(place)).unwrap_or(true))
    }

    /// Gives the region another range of addresses; returns its number.
    pub(crate) fn add_view(&self) -> Result<(usize, Reservation)> {
        let Some(frames) = self.deactivatable().filter(|_| self.views.shares_addresses) else {
            return Err(Error::OneAddress { backing: self.backing.describe() });
        };
        let _signals = SignalsBlocked::new();
        let _alone = self.views.lock();
        let free = (0..VIEWS_MAX).find(|view| self.views.base(*view) == 0);
        let view =
            free.ok_or_else(|| Error::TooManyViews { backing: self.backing.describe(), limit: VIEWS_MAX as u64 - 1 })?;
        let (read_only, locked) = (self.access == Access::ReadOnly, self.shared.paging.locks_memory);
        let prepare = |range: &mut Reservation| range.prepare_for_frames(read_only, locked);
        let range = frames.share(self.table.reserved() as usize, GRANULE_BYTES, &prepare);
        let range = range.map_err(Error::system("reserving address space for a view"))?;
        self.views.set_base(view, range.base() as usize);
        let inserted = REGIONS.insert(range.addresses(), self);
        inserted
            .inspect_err(|_| {
                self.views.set_base(view, 0);
                frames.unshare(&range);
            })
            .map_err(Error::system("reserving the table of mappings"))?;
        Ok((view, range))
    }

    /// Takes the region's addresses out of the table of mappings, in a forked child, which has nothing there.
    pub(crate) fn forget_addresses(&self) {
        let bases = (0..VIEWS_MAX).map(|view| self.views.base(view)).filter(|base| *base != 0);
        bases.for_each(|base| REGIONS.remove(base..base + self.table.range().len(), self));
    }

    /// Removes a view that no thread touches any more. Stores through the view are not lost.
    pub(crate) fn remove_view(&self, view: usize, range: Reservation) {
        let _signals = SignalsBlocked::new();
        REGIONS.remove(range.addresses(), self);
        // System calls that use pages at the view find nothing there from now on.
        self.call_holds().into_iter().for_each(|holds| holds.leave_at(self, &range.addresses()));
        let _alone = self.views.lock();
        self.shared.paging.engine.detach(&range);
        let mut stored = StoredPages::new();
        let spans = 0..self.table.reserved().div_ceil(SPAN_BYTES as u64);
        let left = spans.filter(|number| self.leave_view(*number, view, &mut stored)).count() as u32;
        self.deactivatable().iter().for_each(|frames| frames.unshare(&range));
        drop(range);
        self.views.set_base(view, 0);
        self.discount_tables(left);
        self.shared.memory.release(left);
    }

    /// Notes stores to a span through a view in the page words, and removes the view from the span's views; false if it
    /// was none of them.
    fn leave_view(&self, number: u64, view: usize, stored: &mut StoredPages) -> bool {
        let span = self.table.span(number);
        if !span.views.ready().contains(view) {
            return false;
        }
        // The count in the span and its lock keep out threads that go to the addresses of all views.
        let inside = InSpan::of(self, number);
        let held = span.lock();
        let leaves = span.views.ready().contains(view);
        if leaves && self.access == Access::ReadWrite {
            self.dirty.spans.insert(number);
            let first = number * SPAN_PAGES as u64;
            let address = self.views.address_at(Place { view, page: first });
            stored.clear();
            if self.deactivatable().is_some_and(|frames| frames.stored(address, SPAN_BYTES, stored).is_err()) {
                stored.assume_all();
            }
            let pages = (first..).take(SPAN_PAGES).filter(|page| stored.contains((page - first) as usize));
            pages.for_each(|page| self.table.word(page).note_store());
        }
        span.views.remove(view);
        drop(held);
        drop(inside);
        leaves
    }
}
