//! The places of a span that may hold new pages, so that a visit of new pages passes over all others.

use std::ops::Range;

use crate::page::SPAN_PAGES;

/// Neighbouring pages that share a mark. A larger unit is never in two groups.
const GROUP_PAGES: u64 = SPAN_PAGES as u64 / u32::BITS as u64;

/// Groups of neighbouring pages of a span, each of which may hold a new page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewPages(pub(super) u32);

impl NewPages {
    /// All of a span's pages.
    pub const ALL: NewPages = NewPages(u32::MAX);
    /// No page.
    pub const NONE: NewPages = NewPages(0);

    /// The group of a page.
    #[inline]
    pub fn of(page: u64) -> Self {
        NewPages(1 << (page % SPAN_PAGES as u64 / GROUP_PAGES))
    }

    /// The groups that are in either.
    #[inline]
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        NewPages(self.0 | other.0)
    }

    /// The groups that are in both.
    #[inline]
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        NewPages(self.0 & other.0)
    }

    /// Those of the span's pages in `pages` that are in the groups, in order, group by group.
    #[inline]
    pub fn among(self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = pages.start / GROUP_PAGES;
        let groups = (first..pages.end.div_ceil(GROUP_PAGES))
            .filter(move |group| self.0 >> (group % u64::from(u32::BITS)) & 1 == 1);
        groups.map(move |group| {
            let start = group * GROUP_PAGES;
            start.max(pages.start)..(start + GROUP_PAGES).min(pages.end)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_in_its_span_alone_and_in_order() {
        let pages = 512..1024;
        let two = NewPages::of(513).union(NewPages::of(1023));
        assert_eq!(two.among(pages.clone()).collect::<Vec<_>>(), [512..528, 1008..1024]);
        assert_eq!(NewPages::ALL.among(pages.clone()).flatten().collect::<Vec<_>>(), pages.collect::<Vec<_>>());
        assert_eq!(two.among(520..1010).collect::<Vec<_>>(), [520..528, 1008..1010]);
        assert_eq!(NewPages::NONE.among(0..512).count(), 0);
    }
}
