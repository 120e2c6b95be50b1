//! Read-ahead: how the misses of a mapped file read ahead, beside the sequences that its spans remember.

use std::sync::atomic::{AtomicU64, Ordering};

use vmio_core::page::SPAN_PAGES;
use vmio_core::page::strides::Strides;

/// One huge page may take one page in this many of a cache, or of a ceiling, at most.
const HUGE_PAGE_SHARE: u32 = 8;

/// How far misses of a mapped file read ahead, and in which steps.
pub(crate) struct ReadAhead {
    pub(crate) huge_pages: HugePages,
    pub(crate) strides: Strides,
    spans_until: AtomicU64,
}

impl ReadAhead {
    /// For a file whose misses bring in such huge pages.
    pub(super) fn new(huge_pages: HugePages) -> Self {
        ReadAhead { huge_pages, strides: Strides::default(), spans_until: AtomicU64::new(0) }
    }

    /// The span up to which a scan has asked for read-ahead.
    pub(crate) fn spans_until(&self) -> u64 {
        self.spans_until.load(Ordering::Relaxed)
    }

    pub(crate) fn set_spans_until(&self, span: u64) {
        self.spans_until.store(span, Ordering::Relaxed);
    }
}

/// Which misses of a mapping bring in whole spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePages {
    /// No miss.
    Never,
    /// Every miss that can.
    Always,
    /// Misses that continue a long sequence, or lie where one was advised.
    OfSequences,
}

impl HugePages {
    /// Whether a huge page takes a small enough part of a cache, or of a ceiling, of this many pages.
    pub(crate) fn fit(pages: u32) -> bool {
        pages / HUGE_PAGE_SHARE >= SPAN_PAGES as u32
    }
}
