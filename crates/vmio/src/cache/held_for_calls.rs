//! Pages that a system call uses, with an engine whose pages the kernel does not have at the same addresses.

use std::io;
use std::ops::Range;

use crate::backing::Access;
use crate::cache::pins::{charge, pin_until, uncharge};
use crate::cache::region::{REGIONS, Region};
use crate::engine::HoldCalls;
use crate::error::Error;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// The cache's part in such calls.
pub(crate) const HOLD_CALLS: HoldCalls = HoldCalls { hold, release, bytes_max };

/// One call holds no more than this: by then the copy costs more than the call.
const BYTES_MAX: usize = 1 << 20;
/// Nor more than one part in this many of the cache or of the mapping's ceiling: several threads may make calls at a time.
const CACHE_PART: u32 = 16;

/// The part of some addresses that lies in one mapping.
struct Part {
    region: &'static Region,
    pages: Range<u64>,
    addresses: Range<usize>,
}

impl Part {
    /// The first part.
    fn first(addresses: &Range<usize>) -> Option<Part> {
        let region = REGIONS.find(addresses.start).filter(|region| region.shared.generation.is_current())?;
        let page = region.views.place_of(addresses.start)?.page;
        // Not the mapping's length, which may become less while a call is under way.
        let room = region.table.reserved() / PAGE_BYTES as u64 - page;
        let pages = ((addresses.len() / PAGE_BYTES) as u64).min(room);
        let end = addresses.start + pages as usize * PAGE_BYTES;
        Some(Part { region, pages: page..page + pages, addresses: addresses.start..end })
    }

    fn hold(&self, access: Access) -> Result<(), i32> {
        let region = self.region;
        // A commit of an atomic mapping could not tell what the call stores.
        if access == Access::ReadWrite && (region.access == Access::ReadOnly || region.journaled.is_some()) {
            return Err(libc::EFAULT);
        }
        if self.pages.end > region.table.pages() {
            return Err(libc::EFAULT);
        }
        let count = self.pages.end - self.pages.start;
        charge(region, count).map_err(|_| libc::ENOMEM)?;
        let mut pinned = self.pages.start..self.pages.start;
        let held =
            pin_until(region, &mut pinned, self.pages.end, access).map_err(|error| errno(&error)).and_then(|()| {
                // A mapping that is being shortened looks for pins after it has set its new length.
                if self.pages.end > region.table.pages() {
                    return Err(libc::EFAULT);
                }
                // SAFETY: the pages are pinned, for stores if those are exposed, and concealed before the pins end.
                let exposed = unsafe {
                    region.frames().expose(self.addresses.start, self.addresses.len(), access == Access::ReadWrite)
                };
                let is_forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
                exposed.map_err(|error| if is_forbidden(&error) { libc::EFAULT } else { libc::ENOMEM })
            });
        if held.is_err() {
            self.unpin(pinned);
        }
        held
    }

    fn release(&self, access: Access) {
        let for_stores = access == Access::ReadWrite;
        self.region.frames().conceal(self.addresses.start, self.addresses.len(), for_stores);
        self.unpin(self.pages.clone());
    }

    fn unpin(&self, pinned: Range<u64>) {
        pinned.for_each(|page| self.region.table.word(page).unpin());
        uncharge(self.region, self.pages.end - self.pages.start);
    }
}

fn errno(error: &Error) -> i32 {
    if matches!(error, Error::TooManyPins { .. }) { libc::ENOMEM } else { libc::EFAULT }
}

fn access(for_stores: bool) -> Access {
    if for_stores { Access::ReadWrite } else { Access::ReadOnly }
}

fn hold(addresses: Range<usize>, for_stores: bool) -> Result<(), i32> {
    // A thread that shortens the mapping waits for pins that are given back.
    let _signals = SignalsBlocked::new();
    let mut rest = addresses.clone();
    while !rest.is_empty() {
        let held = Part::first(&rest).ok_or(libc::EFAULT).and_then(|part| {
            part.hold(access(for_stores))?;
            Ok(part.addresses.end)
        });
        match held {
            Ok(end) => rest.start = end,
            Err(errno) => {
                release(addresses.start..rest.start, for_stores);
                return Err(errno);
            }
        }
    }
    Ok(())
}

fn release(addresses: Range<usize>, for_stores: bool) {
    let _signals = SignalsBlocked::new();
    let mut rest = addresses;
    while let Some(part) = Part::first(&rest).filter(|_| !rest.is_empty()) {
        part.release(access(for_stores));
        rest.start = part.addresses.end;
    }
}

fn bytes_max(address: usize) -> usize {
    let Some(region) = REGIONS.find(address) else { return PAGE_BYTES };
    let cache = region.shared.memory.capacity_pages();
    let pages = region.tenant.as_ref().map_or(cache, |tenant| tenant.pages_max().min(cache)) / CACHE_PART;
    (pages as usize * PAGE_BYTES).clamp(PAGE_BYTES, BYTES_MAX)
}
