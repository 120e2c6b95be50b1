//! Spans whose frames can be deactivated. When the policy selects a span, its pages become inactive, and leave memory
//! if no thread touches them in time (kmmap's two queues, Kreon §3.3.1).

use std::ops::Range;

use vmio_core::page::page_set::PageSet;
use vmio_core::page::snapshot::State;
use vmio_core::page::span::SpanGuard;
use vmio_core::page::span_of;
use vmio_core::page::visit::Visit;

use crate::backing::Access;
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::cache::whole_spans::runs;
use crate::engine::DeactivatableFrames;
use crate::sys::PAGE_BYTES;
use crate::sys::pagemap::StoredPages;
use crate::sys::unmap::UnmapList;

/// The result of deactivating a span.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deactivated {
    /// Pages that are inactive now, some of them possibly from before.
    pub(crate) pages: u32,
    /// TLB shootdowns that it took.
    pub(crate) shootdowns: u64,
}

impl Region {
    /// Deactivates the pages of a span that do not survive a visit, and finds out which of them were stored to. The
    /// caller holds the span's lock.
    pub(crate) fn deactivate(
        &self,
        frames: &dyn DeactivatableFrames,
        pages: Range<u64>,
        visit: Visit,
        stored: &mut StoredPages,
        held: &SpanGuard<'_>,
    ) -> Deactivated {
        let pages = self.table.pages_left_of(pages, held);
        let [mut ours, mut dirty, mut counted] = [PageSet::default(); 3];
        let mut inactive = Deactivated::default();
        for page in pages.clone() {
            match self.table.word(page).begin_deactivate(visit) {
                Ok(before) => {
                    ours.insert(page);
                    if before.needs_write() {
                        dirty.insert(page);
                    }
                    if before.state() == State::Dirty {
                        counted.insert(page);
                    }
                }
                Err(seen) => inactive.pages += u32::from(seen.is_inactive()),
            }
        }
        let span = span_of(pages.start);
        let Some((first, last)) = ours.bounds(span) else { return inactive };
        // Read now that the words are ours: no thread maps these pages at yet another view.
        let views = self.views_of(span);
        let address = |view, page| self.views.address_at(Place { view, page });
        let gaps = self.table.claim_gaps(&ours, first..last);
        let mut newly = 0;
        let mut refused = PageSet::default();
        for run in runs(first..last + 1, |page| ours.contains(page) || gaps.contains(page)) {
            let mut addresses = views.iter().map(|view| address(view, run.start));
            // SAFETY: every page of the run belongs to us, its word says Evicting; all lie in attached ranges.
            match unsafe { frames.deactivate(&mut addresses, bytes_of(&run)) } {
                Ok(shootdowns) => inactive.shootdowns += shootdowns,
                Err(_) => run.clone().for_each(|page| refused.insert(page)),
            }
        }
        // After the last view, since threads can store to the pages until then. Before any of the words is let go.
        stored.clear();
        for view in views.iter() {
            if frames.stored(address(view, first), bytes_of(&(first..last + 1)), stored).is_err() {
                stored.assume_all();
            }
        }
        if self.views.shares_addresses && self.access == Access::ReadWrite {
            // From now on the words say what the kernel has noted. If a page is touched at one view next, the notes at
            // the other views must not tell the same again.
            for run in
                runs(first..last + 1, |page| !refused.contains(page) && (ours.contains(page) || gaps.contains(page)))
            {
                for view in views.iter() {
                    let _ = frames.protect(address(view, run.start), bytes_of(&run));
                }
            }
        }
        // Of a page that was mapped without protection, the kernel also says that it was stored to.
        let can_be_stored_to = self.access == Access::ReadWrite;
        // From here on a sync may take the pages for dirty.
        let epoch = self.announce_dirty(first);
        self.table.release_gaps(&gaps, first..last);
        for page in first..=last {
            let word = self.table.word(page);
            if ours.contains(page) {
                debug_assert_eq!(word.load().state(), State::Evicting);
                let is_dirty = dirty.contains(page) || can_be_stored_to && stored.contains((page - first) as usize);
                if refused.contains(page) {
                    word.fail_deactivate(is_dirty.then_some(epoch));
                } else {
                    word.finish_deactivate(is_dirty.then_some(epoch));
                    newly += 1;
                }
                if is_dirty && !counted.contains(page) {
                    self.count_dirty(page);
                }
            }
        }
        self.order().inactive_spans.add_pages(i64::from(newly));
        inactive.pages += newly;
        inactive
    }

    /// Drops inactive pages of a span that are clean, untouched, and do not survive the visit: `limit` and the rest of
    /// a unit at most. Returns how many. Neighbours go in one step, with the absent pages between them.
    pub(crate) fn drop_inactive(&self, pages: Range<u64>, limit: u32, visit: Visit, list: &mut UnmapList) -> u32 {
        let mut ours = PageSet::default();
        let mut left = limit;
        for page in pages.clone() {
            if left == 0 && self.table.unit.around(page).start == page {
                break;
            }
            if self.table.word(page).begin_drop(visit) {
                debug_assert_eq!(self.table.word(page).load().state(), State::Evicting);
                ours.insert(page);
                left = left.saturating_sub(1);
            }
        }
        // No core holds the translation of an inactive page: nothing to count.
        self.unmap_together(&ours, span_of(pages.start), list, |word| word.finish_deactivate(None)).pages
    }
}

fn bytes_of(pages: &Range<u64>) -> usize {
    (pages.end - pages.start) as usize * PAGE_BYTES
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::backing::MemoryBacking;
    use crate::cache::collect::Select;
    use crate::cache::region::REGIONS;
    use crate::cache::write_batch::WriteBatch;
    use crate::{Cache, FrameHint, Mapping, MappingOptions};

    /// Two pages whose stores the kernel notes; none where it cannot.
    fn two_pages() -> Option<(Mapping, &'static Region)> {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let backing = MemoryBacking::new(2 * PAGE_BYTES as u64).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new().frames(FrameHint::Mixed)).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        if region.deactivatable().is_none() {
            test_depth::skipped("this kernel does not note stores");
            return None;
        }
        for page in 0..2 {
            region.fault(page, false).unwrap();
            // SAFETY: the byte lies in the mapping.
            unsafe { AtomicU8::from_ptr(region.table.address(page) as *mut u8) }.store(1, Ordering::SeqCst);
        }
        Some((map, region))
    }

    fn deactivate(region: &Region) -> u32 {
        let frames = region.deactivatable().unwrap();
        region.deactivate(frames, 0..2, Visit::LAST, &mut StoredPages::new(), &region.table.span(0).lock()).pages
    }

    /// The note of a store is taken from the kernel with those of the neighbours, and there is no room to write the page.
    #[test]
    fn a_page_whose_note_was_taken_is_counted_when_it_becomes_dirty() {
        let Some((_map, region)) = two_pages() else { return };
        let mut batch = WriteBatch::new(1, &region.shared.write_back.merge_buffers).unwrap();
        assert_eq!(batch.collect(region, 0..2, Select::Available, &region.table.span(0).lock()).unwrap(), 1);
        batch.write(&region.shared);
        assert!(region.table.word(1).load().needs_write() && region.table.word(1).load().state() == State::Clean);
        assert_eq!((region.table.span(0).dirty(), region.shared.write_back.dirty_pages()), (0, 0));
        assert_eq!(deactivate(region), 2);
        assert_eq!([0, 1].map(|page| region.table.word(page).load().state()), [State::Clean, State::Dirty]);
        assert_eq!((region.table.span(0).dirty(), region.shared.write_back.dirty_pages()), (1, 1));
    }

    /// A thread that shortens a mapping first stores its new length, then waits for the locks of those that write.
    #[test]
    fn pages_that_are_being_cut_off_are_neither_deactivated_nor_written() {
        let Some((_map, region)) = two_pages() else { return };
        let mut batch = WriteBatch::new(2, &region.shared.write_back.merge_buffers).unwrap();
        region.store_len(PAGE_BYTES as u64);
        assert_eq!(deactivate(region), 1);
        assert!(region.table.word(0).load().is_inactive() && !region.table.word(1).load().is_inactive());
        assert_eq!(batch.collect(region, 0..2, Select::ToEvict(Visit::LAST), &region.table.span(0).lock()).unwrap(), 1);
        assert_eq!(batch.pages().iter().map(|page| page.page).collect::<Vec<_>>(), [0]);
        batch.write(&region.shared);
        batch.clear();
        region.store_len(2 * PAGE_BYTES as u64);
        assert_eq!(deactivate(region), 2);
        assert_eq!(batch.collect(region, 0..2, Select::ToEvict(Visit::LAST), &region.table.span(0).lock()).unwrap(), 1);
        batch.write(&region.shared);
    }
}
