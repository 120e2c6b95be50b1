//! Eviction policies: which resident pages to give up next.

mod eviction_order;
mod inactive_spans;
mod priority_fifo;
mod span_list;
mod span_ref;
mod spread_count;

pub(crate) use eviction_order::EvictionOrder;
pub(crate) use inactive_spans::InactiveSpans;
pub(crate) use span_ref::SpanRef;

use vmio_core::page::reuse::Reuse;
use vmio_core::page::span::Span;

/// Which pages the cache gives up first, within a priority.
///
/// # Default
///
/// [`EvictionPolicy::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// The best for most programs: S3-FIFO. Over frames that can be deactivated ([`crate::FrameHint::Mixed`]) all pages of a
    /// span become inactive together, and share a TLB shootdown.
    #[default]
    Auto,
    /// First in, first out, with further rounds for pages that were wanted again soon after their eviction. A page's word remembers
    /// when the page was evicted: a ghost list, as in S3-FIFO, but without memory of its own.
    KeepRefaulted,
    /// First in, first out, as in kmmap (Kreon §3.3.1): a page's past makes no difference. Over frames that can be
    /// deactivated, a touch of an inactive page gives the page a second chance, as in CLOCK.
    Fifo,
    /// S3-FIFO (Yang et al., SOSP 2023): new pages leave soon, from a small queue. Pages that come back before the
    /// cache has turned over, or are touched while they are inactive, stand in the main queue; the more often that was, the more
    /// visits of the evictor they survive. A scan passes through the small queue alone. Over frames that can be
    /// deactivated it misses less than `Auto`, at more TLB shootdowns: for slow devices.
    S3Fifo,
}

/// Orders spans for eviction. The evictor chooses pages within the span, and skips those that are pinned, in flight,
/// or have visits left to survive.
pub(crate) trait Policy: Send + Sync {
    /// Takes in a span that has a resident page and stands in no queue. Called in the trap path: no lock, no
    /// allocation.
    fn admit(&self, span: SpanRef);

    /// Takes the next span to evict from; `core` spreads callers.
    fn next(&self, core: usize) -> Option<SpanRef>;

    /// The priority of the span that is most likely the next; `None` if there is none.
    fn top(&self) -> Option<u8>;

    /// Puts a span back, behind all others of its priority.
    fn put_back(&self, span: SpanRef);

    /// Moves a span whose priority has changed, if it is queued.
    fn reprioritize(&self, span: SpanRef);

    /// Removes every queued span for which `of` holds.
    fn forget(&self, of: &dyn Fn(&Span) -> bool);

    /// The frequency of a page that comes in now. At frequency n a page survives 2ⁿ − 1 visits of the evictor; the page
    /// word has three bits for n. The page had `before` the last time, and left memory this many eighths of a cache
    /// turnover ago (`None`: never).
    fn frequency(&self, before: u8, evicted_ago: Option<u8>) -> u8;

    /// The frequency of a page that was touched while it was inactive.
    fn frequency_of_reactivated(&self, before: u8) -> u8;

    /// The frequency of a page that comes in where the program has advised of its reuse.
    fn frequency_by_advice(&self, reuse: Reuse) -> u8;

    /// With two queues, one page in this many stands in the small one.
    fn small_queue_share(&self) -> Option<u32>;

    /// One page in this many may be inactive before the first of them is dropped.
    fn inactive_share(&self) -> u32;

    /// Whether a visit deactivates only those pages of a span that it would evict, not all.
    fn deactivates_by_page(&self) -> bool;
}
