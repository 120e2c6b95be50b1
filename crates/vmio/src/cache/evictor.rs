//! Evictors: what a thread needs to evict, allocated beforehand. `evict` has what they do.

use std::io;
use std::sync::Arc;

use vmio_core::page::SPAN_PAGES;
use vmio_core::page::new_pages::NewPages;

use crate::cache::empty_spans::EmptySpans;
use crate::cache::merge_buffers::{BATCH_PAGES, MergeBuffers};
use crate::cache::pass::PASS_PAGES;
use crate::cache::write_batch::WriteBatch;
use crate::policy::SpanRef;
use crate::sys::pagemap::StoredPages;
use crate::sys::unmap::UnmapList;

const VICTIMS_MAX: usize = PASS_PAGES + SPAN_PAGES + BATCH_PAGES;
/// The most spans that a pass visits; a sparse mapping may hold one page in each.
pub(super) const SPANS_MAX: usize = 1024;

/// Everything an evictor needs, allocated beforehand.
pub(crate) struct Evictor {
    pub(super) batch: WriteBatch,
    pub(super) victims: Vec<(SpanRef, u64)>,
    pub(super) unmap: UnmapList,
    /// Visited spans, each with where a new page may have stayed active.
    pub(super) held: Vec<(SpanRef, NewPages)>,
    /// Spans that were taken from the inactive queue.
    pub(super) dropping: Vec<SpanRef>,
    pub(super) empty: EmptySpans,
    pub(super) stored: StoredPages,
}

impl Evictor {
    /// An evictor that writes up to this many pages at a time, [`BATCH_PAGES`] at most.
    pub(crate) fn new(batch_pages: usize, buffers: &Arc<MergeBuffers>) -> io::Result<Self> {
        Ok(Evictor {
            batch: WriteBatch::new(batch_pages.min(BATCH_PAGES), buffers)?,
            victims: Vec::with_capacity(VICTIMS_MAX),
            unmap: UnmapList::with_capacity(VICTIMS_MAX),
            held: Vec::with_capacity(SPANS_MAX),
            dropping: Vec::with_capacity(SPANS_MAX),
            empty: EmptySpans::with_capacity(2 * SPANS_MAX),
            stored: StoredPages::new(),
        })
    }

    /// Whether the evictor holds no span and no page, as between two passes.
    pub(super) fn is_empty(&self) -> bool {
        let has_spans = !self.held.is_empty() || !self.dropping.is_empty() || self.empty.len() > 0;
        !has_spans && self.victims.is_empty() && self.batch.pages().is_empty()
    }
}
