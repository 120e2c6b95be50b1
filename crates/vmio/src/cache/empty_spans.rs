//! Spans without pages, whose page tables and page words are about to go back. `tables` gives them back.

use vmio_core::page::SPAN_PAGES;
use vmio_core::page::views::VIEWS_MAX;
use vmio_core::page::word::PageWord;

use crate::policy::SpanRef;
use crate::sys::PAGE_BYTES;
use crate::sys::unmap::UnmapList;

/// The pages of a block: their words fill one page of memory, and lose it together.
pub(super) const BLOCK_PAGES: u64 = (PAGE_BYTES / size_of::<PageWord>()) as u64;
pub(super) const BLOCK_SPANS: u64 = BLOCK_PAGES / SPAN_PAGES as u64;
const _: () = assert!(BLOCK_SPANS == 2);
/// Spans whose tables go back in one step: a thread that touches one of the spans meanwhile waits for all of them.
pub(super) const STEP_SPANS: usize = 64;
/// The ranges of a block: its page tables at each view, and its words.
const RANGES_OF_BLOCK: usize = VIEWS_MAX + 1;

/// The holder of a span, which puts it back into the policy's queues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// We have taken it out.
    ByUs,
    /// It stands in a queue, or another thread has taken it out.
    ByOthers,
}

/// Spans without pages, whose tables go back together. Allocated beforehand.
pub(crate) struct EmptySpans {
    pub(super) spans: Vec<EmptySpan>,
    pub(super) list: UnmapList,
}

/// A span in the list.
pub(super) struct EmptySpan {
    pub(super) span: SpanRef,
    pub(super) held: Held,
    pub(super) block: Block,
}

/// The state of a span's block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// It is open, since it is in use.
    Open,
    /// It is closed on the span's account.
    Closed,
    /// It is closed on its neighbour's account.
    ClosedForNeighbour,
}

impl EmptySpan {
    /// Whether both share a block.
    pub(super) fn is_neighbour(&self, other: &Self) -> bool {
        let ((region, number), (other, neighbour)) =
            (self.span.get().region_and_number(), other.span.get().region_and_number());
        region == other && number / BLOCK_SPANS == neighbour / BLOCK_SPANS
    }
}

impl EmptySpans {
    /// An empty list, with room for this many spans.
    pub(crate) fn with_capacity(spans: usize) -> Self {
        EmptySpans { spans: Vec::with_capacity(spans), list: UnmapList::with_capacity(RANGES_OF_BLOCK * STEP_SPANS) }
    }

    /// The number of spans.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Adds a span that was queued once, and whose region exists until `give_back` returns. There must be room for
    /// the span.
    pub(crate) fn push(&mut self, span: SpanRef, held: Held) {
        assert!(self.spans.len() < self.spans.capacity(), "a list of spans grew in the trap path");
        self.spans.push(EmptySpan { span, held, block: Block::Open });
    }
}
