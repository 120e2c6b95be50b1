//! Pages that a system call uses, with an engine whose pages the kernel does not have at the same addresses.
//!
//! A thread makes calls anywhere in the program, in a handler that has interrupted the allocator for instance: nothing here allocates.

use std::io;
use std::ops::Range;

use crate::backing::Access;
use crate::cache::call_holds::{CallHolds, Hold, Released, give_up};
use crate::cache::pins::{PinError, charge, pin_until};
use crate::cache::region::Region;
use crate::cache::shared::memory::Purpose;
use crate::engine::HoldCalls;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// The cache's part in such calls.
pub(crate) const HOLD_CALLS: HoldCalls = HoldCalls { prepare, hold, release, bytes_max };

/// One call holds no more than this: by then the copy costs more than the call.
const BYTES_MAX: usize = 1 << 20;
/// Nor more than one part in this many of the cache or of the mapping's ceiling: several threads may make calls at a time.
const CACHE_PART: u32 = 16;

fn prepare() -> io::Result<()> {
    CallHolds::of_process().map(drop)
}

fn hold(addresses: Range<usize>, for_stores: bool, may_wait: bool) -> Result<(), i32> {
    // A thread that closes or shortens the mapping waits for pages on their way in.
    let _signals = SignalsBlocked::in_miss();
    let holds = CallHolds::of_process().map_err(|_| libc::EFAULT)?;
    let mut address = addresses.start;
    while address < addresses.end {
        let held = holds.enter(&addresses, address, for_stores).and_then(|(hold, region)| {
            match bring_in(&hold, region, may_wait) {
                Ok(()) => holds.settle(&hold, region),
                Err(errno) => {
                    holds.end(&hold, region);
                    return Err(errno);
                }
            }
            Ok(hold.end())
        });
        match held {
            Ok(end) => address = end,
            Err(errno) => {
                release_until(holds, &addresses, address, for_stores);
                return Err(errno);
            }
        }
    }
    Ok(())
}

fn release(addresses: Range<usize>, for_stores: bool) {
    let _signals = SignalsBlocked::in_miss();
    if let Ok(holds) = CallHolds::of_process() {
        release_until(holds, &addresses, addresses.end, for_stores);
    }
}

/// Releases the parts of a hold up to an address.
fn release_until(holds: &'static CallHolds, asked: &Range<usize>, end: usize, for_stores: bool) {
    let mut address = asked.start;
    while address < end {
        let Some(released) = holds.release(asked, address, for_stores) else {
            debug_assert!(false, "the pages at {address:#x} are not held");
            return;
        };
        address = match released {
            Released::Pages(hold, region) => {
                region.frames().conceal(hold.address, hold.len(), for_stores);
                // A thread that waits for copies looks at the holds when it is woken: this one does not count from the release on.
                give_up(region, hold.pages(), hold.count);
                holds.end(&hold, region);
                hold.end()
            }
            Released::Frames(hold, left) => {
                left.release(hold.pages());
                hold.end()
            }
        };
    }
}

/// Brings the pages of a hold in, pins them, and exposes them; `Err` is an errno.
fn bring_in(hold: &Hold, region: &Region, may_wait: bool) -> Result<(), i32> {
    let access = if hold.for_stores { Access::ReadWrite } else { Access::ReadOnly };
    // A commit of an atomic mapping could not tell what the call stores.
    if hold.for_stores && (region.access == Access::ReadOnly || region.journaled.is_some()) {
        return Err(libc::EFAULT);
    }
    let pages = hold.pages();
    if pages.end > region.table.pages() {
        return Err(libc::EFAULT);
    }
    let purpose = if may_wait { Purpose::WaitingCall } else { Purpose::Any };
    charge(region, hold.count, purpose).map_err(|_| libc::ENOMEM)?;
    let mut pinned = pages.start..pages.start;
    let held = pin_until(region, &mut pinned, pages.end, access).map_err(errno).and_then(|()| {
        // A mapping that is being shortened looks for pins after it has set its new length.
        if pages.end > region.table.pages() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the pages are pinned, for stores if those are exposed, and concealed before the pins end.
        let exposed = unsafe { region.frames().expose(hold.address, hold.len(), hold.for_stores) };
        let is_forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        exposed.map_err(|error| if is_forbidden(&error) { libc::EFAULT } else { libc::ENOMEM })
    });
    if held.is_err() {
        give_up(region, pinned, hold.count);
    }
    held
}

fn errno(why: PinError) -> i32 {
    if why == PinError::TooMany { libc::ENOMEM } else { libc::EFAULT }
}

fn bytes_max(address: usize) -> usize {
    let _signals = SignalsBlocked::in_miss();
    let Ok(holds) = CallHolds::of_process() else { return PAGE_BYTES };
    let pages = holds.with_region(address, |region| {
        let cache = region.shared.memory.capacity_pages();
        region.tenant.as_ref().map_or(cache, |tenant| tenant.pages_max().min(cache)) / CACHE_PART
    });
    (pages.unwrap_or(0) as usize * PAGE_BYTES).clamp(PAGE_BYTES, BYTES_MAX)
}
