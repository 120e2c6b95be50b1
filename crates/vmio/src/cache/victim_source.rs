//! A source of victims: the spans of one order, and how many of their pages may go.

use std::ops::Range;

use vmio_core::page::new_pages::NewPages;
use vmio_core::page::visit::FifoQueue;

use crate::cache::shared::Shared;
use crate::cache::tenant::Tenant;
use crate::policy::EvictionOrder;

/// Where a pass takes pages from.
pub(super) struct Source<'a> {
    pub(super) order: &'a EvictionOrder,
    /// Which of its queues gives pages up, if it has two.
    pub(super) queue: Option<FifoQueue>,
    /// The number of inactive pages above which they are dropped.
    pub(super) inactive_pages_max: u32,
    /// The number of pages that may go.
    pub(super) allowed: usize,
    /// Where to begin in a span of which not all pages may go, so that its first pages are not always the ones.
    pub(super) hand: u64,
}

impl<'a> Source<'a> {
    /// The mappings without floor and ceiling, which hold this many pages.
    pub(super) fn unbounded(shared: &'a Shared, pages: u32) -> Self {
        Self::of(shared, &shared.eviction.order, pages, usize::MAX, 0)
    }

    /// A tenant, of which this many pages may go.
    pub(super) fn tenant(shared: &Shared, tenant: &'a Tenant, allowed: usize) -> Self {
        Self::of(shared, &tenant.order, tenant.pages(), allowed, shared.eviction.evicted_pages())
    }

    /// An order in which this many pages stand; at most as many as the cache has.
    fn of(shared: &Shared, order: &'a EvictionOrder, pages: u32, allowed: usize, hand: u64) -> Self {
        let pages = pages.min(shared.memory.capacity_pages());
        let inactive_pages_max = pages / order.policy.inactive_share();
        Source { order, queue: order.victim_queue(pages), inactive_pages_max, allowed, hand }
    }

    /// The pages of a span in some groups, in the order in which the evictor asks them to go.
    pub(super) fn victim_order(&self, pages: Range<u64>, groups: NewPages) -> impl Iterator<Item = Range<u64>> + use<> {
        let first = pages.start + self.hand % (pages.end - pages.start).max(1);
        groups.among(first..pages.end).chain(groups.among(pages.start..first))
    }
}
