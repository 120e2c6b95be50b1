//! Eviction of whole spans, for kernels that can unmap only ranges (before Linux 6.13). There each run of neighbouring
//! pages costs a TLB shootdown. So the evictor also claims the absent pages between its victims for a moment, and
//! unmaps them all in one step.

use std::ops::Range;

use vmio_core::page::page_set::PageSet;
use vmio_core::page::snapshot::State;
use vmio_core::page::visit::Visit;
use vmio_core::page::word::PageWord;

use crate::cache::region::Region;
use crate::sys::unmap::UnmapList;

/// The result of unmapping pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unmapped {
    /// Pages given up.
    pub(crate) pages: u32,
    /// Pages that the kernel would not unmap.
    pub(crate) failed: u32,
    /// TLB shootdowns that it took.
    pub(crate) shootdowns: u64,
}

impl Region {
    /// Gives up some of the given pages of a span, `limit` at most: those that are clean and that nobody holds. Their
    /// visits do not count, since a page that stayed would split the run.
    pub(crate) fn evict_together(
        &self,
        span: u64,
        pages: impl Iterator<Item = u64>,
        limit: usize,
        list: &mut UnmapList,
    ) -> Unmapped {
        let mut ours = PageSet::default();
        pages
            .filter(|page| self.table.word(*page).begin_evict(Visit::LAST))
            .take(limit)
            .for_each(|page| ours.insert(page));
        self.unmap_together(&ours, span, list, |word| word.fail_evict(State::Clean))
    }

    /// Unmaps pages of a span whose words say Evicting, by us: neighbours in one step, with the absent pages between
    /// them. Calls `undo` for pages that the kernel would not unmap.
    pub(super) fn unmap_together(
        &self,
        ours: &PageSet,
        span: u64,
        list: &mut UnmapList,
        undo: impl Fn(&PageWord),
    ) -> Unmapped {
        let mut unmapped = Unmapped::default();
        let Some((first, last)) = ours.bounds(span) else { return unmapped };
        let gaps = self.table.claim_gaps(ours, first..last);
        list.clear();
        runs(first..last + 1, |page| ours.contains(page) || gaps.contains(page))
            .filter(|run| run.clone().any(|page| ours.contains(page)))
            .flatten()
            .for_each(|page| list.push_page(self.table.address(page)));
        // SAFETY: every listed page belongs to us, its word says Evicting.
        unmapped.shootdowns = unsafe { self.frames().unmap(list) };
        let now = self.shared.eviction_time();
        self.table.release_gaps(&gaps, first..last);
        for page in first..=last {
            if ours.contains(page) && list.has_failed(self.table.address(page)) {
                undo(self.table.word(page));
                unmapped.failed += 1;
            } else if ours.contains(page) {
                self.finish_evict(page, now);
                unmapped.pages += 1;
            }
        }
        unmapped
    }
}

/// The longest runs of pages in a range for which `belongs` holds.
pub(super) fn runs(pages: Range<u64>, belongs: impl Fn(u64) -> bool) -> impl Iterator<Item = Range<u64>> {
    let mut from = pages.start;
    std::iter::from_fn(move || {
        let start = (from..pages.end).find(|page| belongs(*page))?;
        let end = (start..pages.end).find(|page| !belongs(*page)).unwrap_or(pages.end);
        from = end;
        Some(start..end)
    })
}
