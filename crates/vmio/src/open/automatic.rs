//! A cache whose capacity follows the available memory, and the look that its thread takes again and again.

use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::cache::CacheCore;
use crate::cache::overhead::Overhead;
use crate::cache::resize::OnUnreachable;
use crate::cache::shared::memory::capacity_for_pins;
use crate::elastic::{Follower, Governor, Observer};
use crate::error::{Error, Result};
use crate::kernel_engine::KernelCore;
use crate::managed::ManagedCore;
use crate::open::{Cache, FaultBackend};
use crate::sys::PAGE_BYTES;

/// The pause after a capacity that the cache could not reach: each attempt evicts and writes.
const REST: Duration = Duration::from_secs(5);

/// The parts of the thread that follows the memory, before there is a cache.
pub(super) struct FollowerParts {
    governor: Governor,
    observer: Observer,
    first_capacity: u64,
}

impl FollowerParts {
    /// For a capacity within bounds.
    pub(super) fn new(bounds: &RangeInclusive<u64>) -> Result<Self> {
        Overhead::LEAST.capacity_pages(*bounds.start())?;
        Overhead::LEAST.capacity_pages(*bounds.end())?;
        if bounds.is_empty() {
            let value = format!("{} to {} bytes", bounds.start(), bounds.end());
            return Err(Error::BadOption { option: "capacity_auto", value, expected: "the smaller capacity first" });
        }
        let (governor, mut observer) = (Governor::new(bounds.clone()), Observer::new(Path::new("/")));
        let first_capacity = governor.first(observer.look(Instant::now(), 0));
        Ok(FollowerParts { governor, observer, first_capacity })
    }

    /// The capacity to build the cache with, in bytes.
    pub(super) fn first_capacity(&self) -> u64 {
        self.first_capacity
    }

    /// Starts the thread that follows the memory.
    pub(super) fn start(self, cache: &Cache) -> io::Result<()> {
        let followed = Followed::of(cache);
        let FollowerParts { mut governor, mut observer, .. } = self;
        let mut resting_until = None;
        let follower = Follower::start(move || follow(&mut governor, &mut observer, &followed, &mut resting_until))?;
        let _ = match cache.backend() {
            FaultBackend::Cached(core) => core.follower.set(follower),
            FaultBackend::Managed(core) => core.follower.set(follower),
            FaultBackend::Kernel(core) => core.follower.set(follower),
        };
        Ok(())
    }
}

/// A cache that may end before the thread does.
enum Followed {
    Cached(Weak<CacheCore>),
    Managed(Weak<ManagedCore>),
    Kernel(Weak<KernelCore>),
}

impl Followed {
    fn of(cache: &Cache) -> Self {
        match cache.backend() {
            FaultBackend::Cached(core) => Followed::Cached(Arc::downgrade(core)),
            FaultBackend::Managed(core) => Followed::Managed(Arc::downgrade(core)),
            FaultBackend::Kernel(core) => Followed::Kernel(Arc::downgrade(core)),
        }
    }

    fn cache(&self) -> Option<Cache> {
        let backend = match self {
            Followed::Cached(core) => FaultBackend::Cached(core.upgrade()?),
            Followed::Managed(core) => FaultBackend::Managed(core.upgrade()?),
            Followed::Kernel(core) => FaultBackend::Kernel(core.upgrade()?),
        };
        Some(Cache { backend })
    }
}

/// Takes one look, and breaks when the cache is gone.
fn follow(
    governor: &mut Governor,
    observer: &mut Observer,
    followed: &Followed,
    resting_until: &mut Option<Instant>,
) -> ControlFlow<()> {
    let Some(cache) = followed.cache() else { return ControlFlow::Break(()) };
    let stats = cache.stats();
    let held_pages = match cache.backend() {
        FaultBackend::Cached(_) => stats.resident_pages + stats.table_pages,
        // The kernel counts its page cache as available.
        FaultBackend::Managed(_) => 0,
        // The module has reserved all of it, used or not.
        FaultBackend::Kernel(_) => stats.capacity_pages,
    };
    let overhead = cache.overhead();
    let present = overhead.capacity_bytes(stats.capacity_pages as u32);
    let now = Instant::now();
    let seen = observer.look(now, held_pages * PAGE_BYTES as u64);
    // The floors of mappings hold in any case.
    let least = overhead.capacity_bytes(cache.least_capacity_pages() as u32);
    let next =
        governor.decide(present, seen).max(needed_for_pins(overhead, stats.pinned_pages)).max(least.min(present));
    if overhead.capacity_pages(next).is_ok_and(|pages| u64::from(pages) == stats.capacity_pages) {
        return ControlFlow::Continue(());
    }
    if next < present && resting_until.is_some_and(|until| now < until) {
        return ControlFlow::Continue(());
    }
    tracing::debug!(present, next, ?seen, "the capacity follows the memory there is");
    if let Err(error) = cache.resize_or(next, OnUnreachable::KeepSmallest) {
        tracing::debug!(%error, next, "the capacity has not become what it should be");
        *resting_until = Some(Instant::now() + REST);
    }
    ControlFlow::Continue(())
}

/// The least capacity, in bytes, at which pins may hold this many pages.
fn needed_for_pins(overhead: Overhead, pinned_pages: u64) -> u64 {
    u32::try_from(capacity_for_pins(pinned_pages)).map_or(0, |pages| overhead.capacity_bytes(pages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::shared::memory::pinned_pages_max;

    /// Pins within the limit never need more than the present capacity.
    #[test]
    fn what_pins_need_is_the_least_that_they_may_hold_so_much_of() {
        for capacity in 256..4096 {
            let most = pinned_pages_max(capacity);
            assert!(capacity_for_pins(most) <= u64::from(capacity), "{capacity}");
        }
        for pinned in 1..4096 {
            let needed = capacity_for_pins(pinned) as u32;
            assert!(pinned_pages_max(needed) >= pinned && pinned_pages_max(needed - 1) < pinned, "{pinned}");
        }
    }
}
