//! Floors: the pages that mappings keep for themselves, which together leave a cache what it needs.

use std::sync::{Arc, PoisonError};

use crate::cache::overhead::PAGES_MIN;
use crate::cache::shared::Shared;
use crate::cache::shared::eviction::Eviction;
use crate::cache::tenant::Tenant;
use crate::error::{Error, Result};
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// The pages that floors leave of a cache, beside the reserve of free pages at which its workers stop: the smallest
/// cache there is, and the smallest such reserve.
const FREE_MIN: u64 = PAGES_MIN + 32;
/// The reserve is one page in this many, and no more than `RESERVE_MAX`: see `Watermarks`.
const RESERVE_SHARE: u32 = 32;
const RESERVE_MAX: u64 = 32 * 1024;

impl Shared {
    /// Adds a tenant, and keeps its floor from now on. Fails if the floors of all tenants would not leave what a cache
    /// needs.
    pub(crate) fn add_tenant(&self, tenant: &Arc<Tenant>) -> Result<()> {
        let _signals = SignalsBlocked::new();
        let floor = u64::from(tenant.bounds.floor);
        // Only the holder of this lock adds to the list, so the list below is long enough.
        let _same_capacity = self.memory.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if floor > 0 {
            let others = self.eviction.floor_pages();
            let limit = floors_max(self.memory.capacity_pages());
            if floor + others > limit {
                let [floor_bytes, others_bytes, limit_bytes] =
                    [floor, others, limit].map(|pages| pages * PAGE_BYTES as u64);
                return Err(Error::FloorsTooHigh { floor_bytes, others_bytes, limit_bytes });
            }
        }
        let count = self.eviction.gate.read().unwrap_or_else(PoisonError::into_inner).len();
        let (mut longer, tenant) = (Vec::with_capacity(count + 1), Arc::clone(tenant));
        let mut tenants = self.eviction.gate.write().unwrap_or_else(PoisonError::into_inner);
        // A thread that misses a page may wait for the gate, and hold what allocating would wait for.
        longer.append(&mut tenants);
        longer.push(tenant);
        std::mem::swap(&mut *tenants, &mut longer);
        drop(tenants);
        drop(longer);
        Ok(())
    }
}

impl Eviction {
    /// Removes a tenant, and no longer keeps its floor. Its order is empty, or about to be.
    pub(crate) fn dismiss(&self, tenant: &Arc<Tenant>) {
        let _signals = SignalsBlocked::new();
        self.gate.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, tenant));
    }

    /// The sum of the floors of all open mappings.
    fn floor_pages(&self) -> u64 {
        let tenants = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        tenants.iter().map(|tenant| u64::from(tenant.bounds.floor)).sum()
    }

    /// The least capacity that leaves what a cache needs beside the floors.
    pub(crate) fn least_capacity_pages(&self) -> u64 {
        least_capacity(self.floor_pages())
    }
}

/// The most pages that the floors of all mappings may have together.
fn floors_max(capacity: u32) -> u64 {
    u64::from(capacity).saturating_sub(FREE_MIN + u64::from(capacity / RESERVE_SHARE).min(RESERVE_MAX))
}

/// The least capacity with room for floors of this many pages.
fn least_capacity(floors: u64) -> u64 {
    let free = FREE_MIN + floors;
    if floors == 0 { PAGES_MIN } else { free + ((free - 1) / u64::from(RESERVE_SHARE - 1)).min(RESERVE_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_capacity_has_room_for_the_floors_and_a_page_less_has_not() {
        for floors in [1, 255, 1000, 40_000, 10_000_000, 1_000_000_000] {
            let least = least_capacity(floors);
            assert!(floors_max(least as u32) >= floors && floors_max(least as u32 - 1) < floors, "{floors}: {least}");
        }
        assert_eq!(least_capacity(0), PAGES_MIN);
    }
}
