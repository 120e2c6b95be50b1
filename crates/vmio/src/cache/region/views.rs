//! Views: the addresses of a region. Views share frames, words and budget with the region, and differ in what is mapped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio_core::page::views::VIEWS_MAX;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// Where the ranges of a region begin; the first is the mapping's own.
pub(crate) struct Views {
    bases: [AtomicUsize; VIEWS_MAX],
    /// The length of each range, in bytes.
    reserved: usize,
    /// Whether there may be others than the region's own range.
    pub(crate) shares_addresses: bool,
    /// Held by a thread that adds or removes a view, or goes to all of them at once.
    changes: Mutex<()>,
}

impl Views {
    /// A region's own range alone, so far.
    pub(super) fn of(range: &Reservation, shares_addresses: bool) -> Self {
        let bases: [AtomicUsize; VIEWS_MAX] = Default::default();
        bases[0].store(range.base() as usize, Ordering::Release);
        Views { bases, reserved: range.len(), shares_addresses, changes: Mutex::default() }
    }

    /// The address at which a view begins; 0 if there is none of that number.
    pub(crate) fn base(&self, view: usize) -> usize {
        self.bases[view].load(Ordering::Acquire)
    }

    /// Sets where a view begins, or with 0 that there is none. The caller holds the lock.
    pub(crate) fn set_base(&self, view: usize, base: usize) {
        self.bases[view].store(base, Ordering::Release);
    }

    /// Keeps views from coming and going.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a page at a view. For a view other than the first, the caller keeps the view from going. Either
    /// the view belongs to the user that touches it, or the span has it among its views and is locked, counted in or
    /// closed.
    pub(crate) fn address_at(&self, place: Place) -> usize {
        self.base(place.view) + place.page as usize * PAGE_BYTES
    }

    /// The page at an address of the region, which the mapping may not reach.
    pub(crate) fn place_of(&self, address: usize) -> Option<Place> {
        (0..VIEWS_MAX).find_map(|view| {
            let base = self.base(view);
            let offset = address.checked_sub(base).filter(|offset| base != 0 && *offset < self.reserved)?;
            Some(Place { view, page: (offset / PAGE_BYTES) as u64 })
        })
    }

    /// Calls `each` with the address of a page at every view.
    pub(crate) fn for_each_address(&self, page: u64, mut each: impl FnMut(usize)) {
        let _no_change = self.lock();
        let views = (0..VIEWS_MAX).filter(|view| self.base(*view) != 0);
        views.for_each(|view| each(self.address_at(Place { view, page })));
    }
}

/// A page as it is seen at one of its region's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the view; 0 is the mapping's own range.
    pub(crate) view: usize,
    /// The number of the page.
    pub(crate) page: u64,
}
