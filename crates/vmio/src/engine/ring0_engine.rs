//! Guest mode at ring 0: the faulting thread handles its own fault there, without the kernel.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use vmio_ring0::{FramePool, Holder, Level, Machine, ManagedRange, Pages, Rights};

use crate::engine::ring0_shared_frames::Ring0SharedFrames;
use crate::engine::{DeactivatableFrames, FaultCalls, FaultEngine, HoldCalls, Prepare, Ring0Frames};
use crate::options::Engine;
use crate::sys::reservation::Reservation;
use crate::sys::signal::{FaultAccess, Resolution};
use crate::sys::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// Where `3` has the machine run at ring 3, for development on hosts that emulate ring 0.
const LEVEL: &str = "VMIO_RING0_LEVEL";

/// Of the cache that was started first; others have the same.
static CALLS: OnceLock<FaultCalls> = OnceLock::new();

/// A managed range of a mapping's, and the padding up to whole large pages.
pub(super) type Managed = (ManagedRange, Option<Reservation>);

/// Delivers faults in the machine, in the thread that took them.
pub(crate) struct Ring0Engine {
    pages: Pages,
    /// By their first address.
    ranges: Mutex<HashMap<usize, Managed>>,
}

impl Ring0Engine {
    /// The machine of this process.
    pub(crate) fn machine() -> vmio_ring0::Result<&'static Machine> {
        let is_ring_3 = std::env::var(LEVEL).is_ok_and(|level| level == "3");
        Machine::start(if is_ring_3 { Level::Ring3 } else { Level::Ring0 })
    }

    /// Has `calls` made for the faults of this process's ranges, and for system calls that use their memory. The pool has as many frames as the
    /// host has memory, so that a cache can grow; of those `capacity_pages` may have memory.
    pub(crate) fn start(calls: FaultCalls, capacity_pages: u32) -> vmio_ring0::Result<(Self, Ring0Frames)> {
        let machine = Self::machine()?;
        let calls = CALLS.get_or_init(|| calls);
        machine.hold_for_calls(&calls.for_system_calls);
        machine.enter_on_touch()?;
        let memory = rustix::system::sysinfo();
        let frames = (memory.totalram * u64::from(memory.mem_unit) / PAGE_BYTES as u64).min(u64::from(u32::MAX / 2));
        let pool = FramePool::new(machine, capacity_pages.max(frames as u32), capacity_pages)?;
        let pages = Pages::new(machine, pool);
        Ok((Ring0Engine { pages: pages.clone(), ranges: Mutex::default() }, Ring0Frames::new(pages)))
    }

    fn manage(&self, range: &Reservation) -> io::Result<()> {
        let managed = manage(&self.pages, range, Owner::Range)?;
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.insert(range.base() as usize, managed);
        Ok(())
    }
}

/// Where the frames of a range go with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// To the pool.
    Range,
    /// Nowhere: the pages have other addresses.
    Others,
}

/// Leaves the faults of a new range to the cache.
pub(super) fn manage(pages: &Pages, range: &Reservation, owner: Owner) -> io::Result<Managed> {
    // Outside the machine a touch has to fault.
    range.make_inaccessible()?;
    let padding = range.pad(HUGE_PAGE_BYTES)?;
    let addresses = range.addresses();
    let addresses = addresses.start..addresses.end.next_multiple_of(HUGE_PAGE_BYTES);
    let most = if range.is_read_only() { Rights::Read } else { Rights::ReadWrite };
    // SAFETY: a new reservation, and addresses behind it that were free: nobody has references to what lies there.
    let managed = unsafe {
        match owner {
            Owner::Range => ManagedRange::new(pages.clone(), addresses, most, on_fault),
            Owner::Others => ManagedRange::over_frames_of_others(pages.clone(), addresses, most, on_fault),
        }
    };
    Ok((managed.map_err(io::Error::other)?, padding))
}

fn on_fault(address: usize, is_store: bool) -> bool {
    let access = if is_store { FaultAccess::Store } else { FaultAccess::Load };
    CALLS.get().is_some_and(|calls| (calls.resolve)(address, access) == Resolution::Resolved)
}

impl Holder for HoldCalls {
    fn hold(&self, addresses: Range<usize>, for_stores: bool, may_wait: bool) -> Result<(), i32> {
        (self.hold)(addresses, for_stores, may_wait)
    }

    fn release(&self, addresses: Range<usize>, for_stores: bool) {
        (self.release)(addresses, for_stores);
    }

    fn bytes_max(&self, address: usize) -> usize {
        (self.bytes_max)(address)
    }
}

impl FaultEngine for Ring0Engine {
    fn engine(&self) -> Engine {
        Engine::Ring0
    }

    fn attach(&self, range: &Reservation) -> io::Result<()> {
        self.manage(range)
    }

    fn deactivatable(
        &self,
        len: usize,
        align: usize,
        prepare: Prepare<'_>,
    ) -> io::Result<(Reservation, Box<dyn DeactivatableFrames>)> {
        let mut range = Reservation::zeroed(len, align)?;
        prepare(&mut range)?;
        self.manage(&range)?;
        let frames = Ring0SharedFrames::of(&range, self.pages.clone());
        Ok((range, Box::new(frames)))
    }

    fn detach(&self, range: &Reservation) {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let managed = ranges.remove(&(range.base() as usize));
        drop(ranges);
        // Its frames go back to the pool.
        drop(managed);
    }
}
