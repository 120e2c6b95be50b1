//! The program's advice for a mapped file as a whole. A span may have other advice.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use vmio_core::page::reuse::Reuse;
use vmio_core::page::span::Span;

use crate::cache::page_buffers::WINDOW_PAGES_MAX;

/// Advice for the spans that have none of their own.
pub(crate) struct Advised {
    priority: AtomicU8,
    /// Pages to read at a miss; with 0 the cache finds out how many.
    window: AtomicU16,
    /// How often pages are wanted.
    reuse: AtomicU8,
}

impl Advised {
    /// With a priority and a window, and without advice of how often pages are wanted.
    pub(super) fn new(priority: u8, window: u16) -> Self {
        Advised { priority: AtomicU8::new(priority), window: AtomicU16::new(window), reuse: AtomicU8::new(0) }
    }

    pub(crate) fn priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    pub(crate) fn set_priority(&self, priority: u8) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    pub(crate) fn set_window(&self, pages: u16) {
        self.window.store(pages, Ordering::Relaxed);
    }

    pub(crate) fn set_reuse(&self, reuse: Reuse) {
        self.reuse.store(reuse.bits(), Ordering::Relaxed);
    }

    /// Pages to read at a miss in a span, if that was advised.
    pub(crate) fn window(&self, span: &Span) -> Option<u64> {
        let window = span.window().unwrap_or_else(|| self.window.load(Ordering::Relaxed));
        (window > 0).then(|| u64::from(window).min(WINDOW_PAGES_MAX as u64))
    }

    /// How often the pages of a span are wanted.
    pub(crate) fn reuse(&self, span: &Span) -> Reuse {
        span.reuse().unwrap_or_else(|| Reuse::from_bits(self.reuse.load(Ordering::Relaxed)))
    }
}
