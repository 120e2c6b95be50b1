//! Pins of pages in a region: they stay in memory, and for stores also dirty and writable.

use std::ops::Range;
use std::sync::atomic::Ordering;

use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::word::PinOutcome;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::backing::Access;
use crate::cache::fault_error::FaultError;
use crate::cache::region::Region;
use crate::cache::shared::memory::Purpose;
use crate::error::{Error, Result};
use crate::sys::PAGE_BYTES;

/// Why a page could not be pinned, in a form that needs no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinError {
    /// As many pins hold a page as can.
    TooMany,
    /// The page of that number could not be brought in.
    Fault(u64, FaultError),
    /// The kernel did not give the right to store; its errno.
    Refused(i32),
}

impl PinError {
    /// The error to return for a region.
    pub(crate) fn into_error(self, region: &Region) -> Error {
        match self {
            PinError::TooMany => {
                Error::TooManyPins { wanted_pages: 1, limit_pages: region.shared.memory.pinned_pages_max() }
            }
            PinError::Fault(page, why) => why.into_error(region, page),
            PinError::Refused(code) => {
                Error::system("un-protecting pinned pages")(std::io::Error::from_raw_os_error(code))
            }
        }
    }
}

/// Pins the pages behind those that are pinned already, until `end`. `pinned` has the pages so far, even if this fails.
pub(crate) fn pin_until(region: &Region, pinned: &mut Range<u64>, end: u64, access: Access) -> Result<(), PinError> {
    while pinned.end < end {
        let span_end = (span_of(pinned.end) + 1) * SPAN_PAGES as u64;
        match access {
            Access::ReadOnly => pin_for_reading(region, pinned, end.min(span_end))?,
            Access::ReadWrite => pin_for_writing(region, pinned, end.min(span_end))?,
        }
    }
    Ok(())
}

fn pin_for_reading(region: &Region, pinned: &mut Range<u64>, end: u64) -> Result<(), PinError> {
    while pinned.end < end {
        pin_when_resident(region, pinned.end)?;
        pinned.end += 1;
    }
    Ok(())
}

/// The thread that writes back skips pages pinned for writing when it protects a span. The mark is set under the span's lock, so that no such pin
/// appears after the thread that writes back has looked. The pages become writable after that.
fn pin_for_writing(region: &Region, pinned: &mut Range<u64>, end: u64) -> Result<(), PinError> {
    let first = pinned.end;
    while pinned.end < end {
        let page = pinned.end;
        loop {
            let seen = region.table.word(page).load();
            if seen.state() != State::Dirty || seen.is_inactive() {
                region.fault(page, true).map_err(|why| PinError::Fault(page, why))?;
            }
            let _held = region.table.span(span_of(page)).lock();
            match region.table.word(page).pin(true) {
                PinOutcome::Pinned => break,
                PinOutcome::TooMany => return Err(PinError::TooMany),
                // Write-back came in between.
                PinOutcome::NotResident(_) => {}
            }
        }
        pinned.end += 1;
    }
    // Dirty pages may still be protected, from a write-back that a store has overtaken or that has failed.
    let len = (end - first) as usize * PAGE_BYTES;
    let unprotected = region.frames().unprotect(region.table.address(first), len);
    unprotected.map_err(|error| PinError::Refused(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn pin_when_resident(region: &Region, page: u64) -> Result<(), PinError> {
    loop {
        match region.table.word(page).pin(false) {
            PinOutcome::Pinned => return Ok(()),
            PinOutcome::TooMany => return Err(PinError::TooMany),
            PinOutcome::NotResident(word) if word.is_poisoned() && word.state() == State::Clean => {
                return Err(PinError::Fault(page, FaultError::Unreadable(region.why_poisoned(page))));
            }
            PinOutcome::NotResident(word) if word.is_busy() => region.table.word(page).wait_while(Snapshot::is_busy),
            PinOutcome::NotResident(_) => {
                region.fault(page, false).map_err(|why| PinError::Fault(page, why))?;
            }
        }
    }
}

/// Charges pinned pages against the limits of the cache and of the mapping, until [`uncharge`].
pub(crate) fn charge(region: &Region, pages: u64, purpose: Purpose) -> Result<()> {
    let shared = &region.shared;
    let refused = |limit_pages| Err(Error::TooManyPins { wanted_pages: pages, limit_pages });
    let limit = shared.memory.pinned_pages_max();
    let taken = shared
        .memory
        .pinned_pages
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| purpose.taken(before, pages, limit));
    if taken.is_err() {
        return refused(limit);
    }
    if let Some(tenant) = region.tenant.as_deref()
        && !tenant.charge_pins(pages, purpose)
    {
        shared.memory.pinned_pages.fetch_sub(pages, Ordering::SeqCst);
        return refused(tenant.pinned_pages_max());
    }
    // A thread that shrinks the cache looks for pins after it has set the capacity.
    if shared.memory.has_too_many_pins_for(shared.memory.capacity_pages()) {
        uncharge(region, pages);
        return refused(shared.memory.pinned_pages_max());
    }
    Ok(())
}

/// Ends a charge.
pub(crate) fn uncharge(region: &Region, pages: u64) {
    region.shared.memory.pinned_pages.fetch_sub(pages, Ordering::SeqCst);
    if let Some(tenant) = &region.tenant {
        tenant.uncharge_pins(pages);
    }
}
