//! Tenants: mappings with a floor or a ceiling, and the pages that they hold. docs/design/tenants.md says why they are
//! so.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::merge_buffers::DIRECT_PAGES;
use crate::cache::overhead::PAGES_MIN;
use crate::cache::shared::memory::Purpose;
use crate::error::{Error, Result};
use crate::options::MappingOptions;
use crate::policy::EvictionOrder;
use crate::sys::PAGE_BYTES;

/// A mapping at its ceiling gives up one page in this many of the ceiling at a time, so that a TLB shootdown is for
/// more than one page.
const BATCH_SHARE: u32 = 16;
const ONE_PAGE: u64 = 1 << 32;

/// The pages that a mapping keeps, and the most that it may have. Both include page tables and page words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) floor: u32,
    pub(crate) ceiling: u32,
}

impl Bounds {
    /// The bounds that the options ask for; `None` if they ask for none.
    pub(crate) fn of(options: &MappingOptions) -> Result<Option<Self>> {
        let page = PAGE_BYTES as u64;
        let floor = u32::try_from(options.floor_bytes.div_ceil(page)).map_err(|_| Error::BadOption {
            option: "floor",
            value: format!("{} bytes", options.floor_bytes),
            expected: "less than a cache may have, which is 16 TiB",
        })?;
        let ceiling_bytes = options.ceiling_bytes.unwrap_or(u64::MAX);
        let ceiling = u32::try_from(ceiling_bytes / page).unwrap_or(u32::MAX);
        if u64::from(ceiling) < PAGES_MIN || ceiling < floor {
            return Err(Error::BadOption {
                option: "ceiling",
                value: format!("{ceiling_bytes} bytes, with a floor of {} bytes", options.floor_bytes),
                expected: "1 MiB at least, and no less than the floor",
            });
        }
        let bounds = Bounds { floor, ceiling };
        Ok((bounds != Bounds { floor: 0, ceiling: u32::MAX }).then_some(bounds))
    }
}

/// A mapping with a floor or a ceiling. Its spans stand in an order of their own, so that evictors can pass over them
/// and the mapping can find its own.
pub(crate) struct Tenant {
    pub(super) bounds: Bounds,
    /// The upper half counts the pages that it holds: in memory, on their way in, and in its tables. The lower half
    /// counts the pages that evictors are about to take. Both are in one word, so that two evictors together never take
    /// it below its floor.
    pages: AtomicU64,
    pinned_pages: AtomicU64,
    pub(crate) order: EvictionOrder,
}

impl Tenant {
    pub(crate) fn new(bounds: Bounds, order: EvictionOrder) -> Self {
        Tenant { bounds, pages: AtomicU64::new(0), pinned_pages: AtomicU64::new(0), order }
    }

    /// Counts this many more pages, which are on their way in.
    #[inline]
    pub(crate) fn add(&self, pages: u32) {
        self.pages.fetch_add(u64::from(pages) * ONE_PAGE, Ordering::SeqCst);
    }

    /// Counts this many fewer pages, which are gone or did not come.
    #[inline]
    pub(crate) fn remove(&self, pages: u32) {
        let before = self.pages.fetch_sub(u64::from(pages) * ONE_PAGE, Ordering::SeqCst);
        debug_assert!(before >> 32 >= u64::from(pages), "{pages} of {} pages", before >> 32);
    }

    /// Pages that it holds.
    #[inline]
    pub(crate) fn pages(&self) -> u32 {
        (self.pages.load(Ordering::SeqCst) >> 32) as u32
    }

    /// By how many pages it would exceed its ceiling with this many more.
    #[inline]
    pub(super) fn over(&self, more: u32) -> u32 {
        self.pages().saturating_add(more).saturating_sub(self.bounds.ceiling)
    }

    /// Pages above the floor that no evictor is about to take.
    pub(crate) fn spare_pages(&self) -> u32 {
        spare_pages(self.pages.load(Ordering::SeqCst), self.bounds.floor)
    }

    /// Takes the right to evict up to this many of the pages above the floor, or of all pages if `all`; returns how
    /// many. The caller hands the right back with [`Self::end_claim`] when the pages are gone, or stay.
    pub(crate) fn claim(&self, wanted: u32, all: bool) -> u32 {
        let floor = if all { 0 } else { self.bounds.floor };
        let wanted_of = |word| spare_pages(word, floor).min(wanted);
        let claimed = self.pages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            Some(word + u64::from(wanted_of(word))).filter(|_| wanted_of(word) > 0)
        });
        claimed.map_or(0, wanted_of)
    }

    /// Ends what [`Self::claim`] began.
    pub(crate) fn end_claim(&self, claimed: u32) {
        let before = self.pages.fetch_sub(claimed.into(), Ordering::SeqCst);
        debug_assert!(before as u32 >= claimed, "{claimed} of {} claimed pages", before as u32);
    }

    /// Pages that it gives up at a time when it is at its ceiling.
    pub(crate) fn batch_pages(&self) -> usize {
        (self.bounds.ceiling / BATCH_SHARE).min(DIRECT_PAGES as u32) as usize
    }

    /// The most pages that it may hold.
    pub(crate) fn pages_max(&self) -> u32 {
        self.bounds.ceiling
    }

    /// The most pages that pins may hold: as many as in a cache as large as the ceiling.
    pub(crate) fn pinned_pages_max(&self) -> u64 {
        u64::from(self.bounds.ceiling / 4 * 3)
    }

    /// Charges pinned pages; false if they would be too many.
    pub(crate) fn charge_pins(&self, pages: u64, purpose: Purpose) -> bool {
        let taken = self.pinned_pages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
            purpose.taken(before, pages, self.pinned_pages_max())
        });
        debug_assert!(taken.is_err() || self.pinned_pages.load(Ordering::SeqCst) <= self.pinned_pages_max());
        taken.is_ok()
    }

    /// The opposite of [`Self::charge_pins`].
    pub(crate) fn uncharge_pins(&self, pages: u64) {
        let before = self.pinned_pages.fetch_sub(pages, Ordering::SeqCst);
        debug_assert!(before >= pages, "{pages} of {before} pinned pages");
    }
}

fn spare_pages(word: u64, floor: u32) -> u32 {
    let (held, leaving) = ((word >> 32) as u32, word as u32);
    held.saturating_sub(floor).saturating_sub(leaving)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::EvictionPolicy;

    fn tenant(floor: u32, ceiling: u32) -> Tenant {
        Tenant::new(Bounds { floor, ceiling }, EvictionOrder::new(1, EvictionPolicy::Fifo))
    }

    #[test]
    fn evictors_together_claim_what_is_above_the_floor_and_no_more() {
        let tenant = tenant(100, 1000);
        tenant.add(150);
        assert_eq!((tenant.claim(30, false), tenant.claim(30, false), tenant.claim(30, false)), (30, 20, 0));
        assert_eq!(tenant.claim(30, true), 30);
        tenant.remove(20);
        tenant.end_claim(80);
        assert_eq!((tenant.pages(), tenant.spare_pages(), tenant.claim(100, false)), (130, 30, 30));
    }

    #[test]
    fn over_its_ceiling_is_what_does_not_fit() {
        let tenant = tenant(0, 300);
        tenant.add(299);
        assert_eq!((tenant.over(0), tenant.over(1), tenant.over(3)), (0, 0, 2));
    }
}
