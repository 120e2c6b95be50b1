//! The state of each page and of each span of 512 pages: its views, and the sequences and strides of its misses.

mod freezing;
mod fresh;
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
pub mod new_pages;
pub mod occupancy;
pub mod page_set;
pub mod reuse;
pub mod sequence;
pub mod snapshot;
pub mod span;
pub mod strides;
pub mod unit;
pub mod views;
pub mod visit;
pub mod word;

/// Bytes of a span: the unit by which neighbours stay together, as kmmap's shifted addresses keep them (Kreon §3.3.1).
pub const SPAN_BYTES: usize = crate::HUGE_PAGE_BYTES;
/// Pages of a span.
pub const SPAN_PAGES: usize = SPAN_BYTES / crate::PAGE_BYTES;

/// The span that a page belongs to.
pub fn span_of(page: u64) -> u64 {
    page / SPAN_PAGES as u64
}
