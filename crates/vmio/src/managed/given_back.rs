//! Pages that the program needs no more for now. They are out of its page tables, still in the page cache, and wait in
//! line to be dropped like the rest.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backing::Access;
use crate::managed::arrivals::Known;
use crate::managed::ledger::{Ledger, Totals, Unmapped};
use crate::managed::region::ManagedRegion;
use crate::sys::PAGE_BYTES;
use crate::sys::page_cache;
use crate::sys::page_scan::PageScan;

/// Pages of one stretch that the program has given back.
struct GivenBack {
    region: Arc<ManagedRegion>,
    stretch: u64,
    pages: u64,
}

/// Pages given back that the reclaimer has not taken over yet. So the program need not wait for the ledger, whose
/// holder may wait for the device.
#[derive(Default)]
pub(super) struct Inbox {
    given_back: Mutex<Vec<GivenBack>>,
}

impl Inbox {
    fn given_back(&self) -> MutexGuard<'_, Vec<GivenBack>> {
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unmaps the pages of a range that no pin holds, and counts them as in line.
    pub(super) fn let_go(
        &self,
        region: &Arc<ManagedRegion>,
        pages: &Range<u64>,
        (scan, totals, stretch_pages): (&PageScan, &Totals, u64),
    ) -> io::Result<()> {
        let end = region.reach().end / PAGE_BYTES as u64;
        let bytes_of = |pages: &Range<u64>| pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64;
        let reached = pages.start.min(end)..pages.end.min(end);
        if reached.is_empty() || region.has_failed() {
            return Ok(());
        }
        let stretch_of = |address: usize| ((address - region.map.base() as usize) / PAGE_BYTES) as u64 / stretch_pages;
        let mut stretches = Vec::new();
        // The range may be large, and little of it in memory.
        scan.present(region.map.addresses(&bytes_of(&reached)), |run| {
            stretches.extend(stretch_of(run.start)..=stretch_of(run.end - 1));
        })?;
        stretches.dedup();
        for stretch in stretches {
            let whole = stretch * stretch_pages..((stretch + 1) * stretch_pages).min(end);
            let addresses = region.map.addresses(&bytes_of(&whole));
            let before = scan.count(addresses.clone())?;
            for part in region.pins.free_parts(whole.start.max(reached.start)..whole.end.min(reached.end)) {
                // Pages that the program has locked by itself stay.
                let _ = region.map.unmap(&bytes_of(&part));
            }
            // The kernel unmaps a huge page as a whole.
            let pages = before.saturating_sub(scan.count(addresses)?);
            if pages > 0 {
                totals.in_line.fetch_add(pages, Ordering::Relaxed);
                self.given_back().push(GivenBack { region: Arc::clone(region), stretch, pages });
            }
        }
        Ok(())
    }

    /// Forgets the pages of a region.
    pub(super) fn forget(&self, region: &Arc<ManagedRegion>) {
        self.given_back().retain(|given_back| !Arc::ptr_eq(&given_back.region, region));
    }
}

impl Ledger {
    /// Puts stretches that the program gave back in line, as a whole: others may have brought in more of their pages.
    pub(super) fn take_given_back(&mut self, inbox: &Inbox) {
        let given_back = std::mem::take(&mut *inbox.given_back());
        if given_back.is_empty() {
            return;
        }
        for GivenBack { region, stretch, pages } in given_back {
            let of_stretch = self.pages_of(&region, stretch);
            if of_stretch.is_empty() || region.has_failed() {
                continue;
            }
            let bytes = of_stretch.start * PAGE_BYTES as u64..of_stretch.end * PAGE_BYTES as u64;
            let known = region.arrivals.get(stretch);
            // A stretch that is given back again and again is in memory only once.
            let in_memory = page_cache::look(region.file(), &bytes).and_then(|cached| {
                let mapped = self.scan.count(region.map.addresses(&bytes)).ok()?;
                Some(cached.pages.saturating_sub(mapped))
            });
            let is_written = region.access != Access::ReadWrite;
            let is_same = |waiting: &&mut Unmapped| waiting.bytes == bytes && Arc::ptr_eq(&waiting.region, &region);
            let waiting = if known.is_in_line { self.line.iter_mut().find(is_same) } else { None };
            if let Some(waiting) = waiting {
                let most = of_stretch.end - of_stretch.start;
                waiting.pages = in_memory.unwrap_or((waiting.pages + pages).min(most));
                waiting.is_written &= is_written;
                continue;
            }
            region.arrivals.set(stretch, Known { is_in_line: true, ..known });
            let pages = in_memory.unwrap_or(pages + known.cached_only());
            self.line.push_back(Unmapped { region, bytes, pages, dirty: 0, is_written });
        }
        self.count_line();
    }

    /// Begins to write the first stretch in line whose write has not begun; `false` if there is none.
    pub(super) fn write_given_back(&mut self) -> bool {
        let first = self.line.iter().position(|unmapped| !unmapped.is_written);
        first.map(|index| self.write_in_line(index)).is_some()
    }

    /// Begins to write a stretch in line.
    pub(super) fn write_in_line(&mut self, index: usize) {
        let (region, bytes) = (Arc::clone(&self.line[index].region), self.line[index].bytes.clone());
        let dirty = self.begin_write(&region, &bytes, 0);
        let unmapped = &mut self.line[index];
        (unmapped.dirty, unmapped.is_written) = (unmapped.dirty.max(dirty), true);
    }
}
