//! Eviction of whole spans, for kernels that unmap nothing but ranges (before Linux 6.13): there each run of
//! neighbouring pages costs a TLB shootdown, so the absent pages between the victims are claimed as well for the moment,
//! and all go in one step.

use std::ops::Range;

use crate::cache::region::Region;
use crate::page::page_set::PageSet;
use crate::page::visit::Visit;
use crate::page::word::{PageWord, State};
use crate::sys::unmap::UnmapList;

/// What became of the pages that were to go.
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
    /// Gives up clean pages among some of a span that nobody holds, whatever visits they have left, since a page that stayed
    /// would split the run; `limit` of them at most.
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

    /// Unmaps pages of a span whose words say Evicting, by us, neighbours in one step with the absent pages between
    /// them; `undo` is called for those that the kernel would not unmap.
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

/// The longest runs of pages of a range that belong to it.
pub(super) fn runs(pages: Range<u64>, belongs: impl Fn(u64) -> bool) -> impl Iterator<Item = Range<u64>> {
    let mut from = pages.start;
    std::iter::from_fn(move || {
        let start = (from..pages.end).find(|page| belongs(*page))?;
        let end = (start..pages.end).find(|page| !belongs(*page)).unwrap_or(pages.end);
        from = end;
        Some(start..end)
    })
}
