//! What the program has advised of a region's pages, for those who bring them in.

use std::sync::atomic::Ordering;

use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::region::Region;
use crate::page::reuse::Reuse;

impl Region {
    pub(crate) fn set_window(&self, pages: u16) {
        self.window.store(pages, Ordering::Relaxed);
    }

    /// Pages to read at a miss in a span, if that was advised.
    pub(crate) fn window(&self, span: u64) -> Option<u64> {
        let window = self.span(span).window().unwrap_or_else(|| self.window.load(Ordering::Relaxed));
        (window > 0).then(|| u64::from(window).min(WINDOW_PAGES_MAX as u64))
    }

    pub(crate) fn set_reuse(&self, reuse: Reuse) {
        self.reuse.store(reuse.bits(), Ordering::Relaxed);
    }

    /// How often the pages of a span are wanted.
    pub(crate) fn reuse(&self, span: u64) -> Reuse {
        self.span(span).reuse().unwrap_or_else(|| Reuse::from_bits(self.reuse.load(Ordering::Relaxed)))
    }
}
