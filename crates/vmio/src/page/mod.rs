//! The state of each page and of each span of 512 pages, and the set of spans that hold dirty pages.

pub(crate) mod dirty_spans;
#[cfg_attr(loom, allow(dead_code))]
mod freezing;
#[cfg_attr(loom, allow(dead_code))]
mod fresh;
#[cfg_attr(loom, allow(dead_code))]
mod inactive;
#[cfg(all(test, loom))]
mod loom_commit;
#[cfg(all(test, loom))]
mod loom_copy;
#[cfg(all(test, loom))]
mod loom_discard;
#[cfg(all(test, loom))]
mod loom_inactive;
#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, loom))]
mod loom_occupancy;
pub(crate) mod occupancy;
pub(crate) mod page_set;
#[cfg_attr(loom, allow(dead_code))]
pub(crate) mod reuse;
pub(crate) mod sequence;
pub(crate) mod span;
pub(crate) mod strides;
pub(crate) mod unit;
pub(crate) mod views;
#[cfg_attr(loom, allow(dead_code))]
pub(crate) mod visit;
pub(crate) mod word;

/// Bytes of a span: the unit by which neighbours stay together, as kmmap's shifted addresses keep them (Kreon §3.3.1).
pub(crate) const SPAN_BYTES: usize = crate::sys::HUGE_PAGE_BYTES;
/// Pages of a span.
pub(crate) const SPAN_PAGES: usize = SPAN_BYTES / crate::sys::PAGE_BYTES;

/// The span that a page belongs to.
pub(crate) fn span_of(page: u64) -> u64 {
    page / SPAN_PAGES as u64
}
