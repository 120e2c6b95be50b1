//! Which misses bring in a whole span as a huge page, and how far workers read ahead of them.

use vmio_core::page::sequence::Sequence;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::region::Region;
use crate::cache::region::read_ahead::HugePages;

/// Spans that workers read ahead of a scan, at most.
pub(super) const AHEAD_SPANS_MAX: u64 = 8;
/// A sequence that has got no further than this into a span takes the span whole. At most as many pages are read a
/// second time.
const HEAD_PAGES: u64 = WINDOW_PAGES_MAX as u64;
/// A span with more pages in memory than this is not read as a whole.
pub(super) const PRESENT_PAGES_MAX: u32 = SPAN_PAGES as u32 / 2;

impl Region {
    /// Brings in the whole span of a page that the caller has made Loading, if the mapping's misses do that; else
    /// leaves the page as it was. From this page on, `wanted` pages are wanted.
    #[inline(never)]
    pub(super) fn load_huge_page(&self, core: usize, page: u64, wanted: u64) -> bool {
        let number = span_of(page);
        let span = self.table.span(number);
        let loaded = match self.read_ahead.huge_pages {
            HugePages::Never => return false,
            HugePages::Always => {
                self.request_read_ahead(number, Sequence::LONGEST);
                span.resident() == 1 && self.load_missed_span(core, page)
            }
            HugePages::OfSequences => match self.scan_at(page, wanted) {
                Some(scan) => {
                    self.request_read_ahead(number, scan);
                    let loaded = self.load_missed_span(core, page);
                    if loaded {
                        span.set_sequence(scan.ending_at(SPAN_PAGES as u64));
                    }
                    loaded
                }
                None => false,
            },
        };
        if !loaded {
            span.set_huge(false);
        }
        loaded
    }

    /// Asks for more read-ahead when a thread waits for a page on its way in: perhaps a scan, which has caught up with
    /// the workers.
    pub(super) fn await_huge_page(&self, page: u64) {
        let number = span_of(page);
        match self.read_ahead.huge_pages {
            HugePages::Never => {}
            HugePages::Always => self.request_read_ahead(number, Sequence::LONGEST),
            HugePages::OfSequences => {
                let scan = self.table.span(number).sequence();
                if scan.ends_at(SPAN_PAGES as u64) {
                    self.request_read_ahead(number, scan);
                }
            }
        }
    }

    /// Whether a worker may read a requested span as a whole.
    pub(super) fn is_to_be_read_whole(&self, number: u64) -> bool {
        let resident = self.table.span(number).resident();
        match self.read_ahead.huge_pages {
            HugePages::OfSequences => {
                self.has_room_for_spans() && self.may_be_scanned(number) && resident <= PRESENT_PAGES_MAX
            }
            _ => resident == 0,
        }
    }

    /// The scan that a miss belongs to, with this span counted; `None` if the span is not to come in whole.
    fn scan_at(&self, page: u64, wanted: u64) -> Option<Sequence> {
        if !self.has_room_for_spans() {
            return None;
        }
        let (number, place) = (span_of(page), page % SPAN_PAGES as u64);
        let present = self.table.span(number).resident();
        let scan = match self.advised.window(self.table.span(number)) {
            Some(_) if self.may_be_scanned(number) => Some(Sequence::LONGEST),
            None if wanted == 1 => {
                Some(self.table.sequence_at(page)).filter(|sequence| sequence.is_long() && !sequence.goes_down())
            }
            _ => None,
        };
        let near_start = place <= HEAD_PAGES && present <= PRESENT_PAGES_MAX;
        scan.filter(|_| near_start || present == 1).map(Sequence::with_span)
    }

    /// Whether the cache is large enough for huge pages at present: it may have shrunk since the mapping was opened.
    fn has_room_for_spans(&self) -> bool {
        HugePages::fit(self.shared.memory.capacity_pages())
    }

    /// Whether no advice is against whole spans. A read-ahead window below the largest is such advice.
    fn may_be_scanned(&self, number: u64) -> bool {
        self.advised.window(self.table.span(number)).is_none_or(|window| window == WINDOW_PAGES_MAX as u64)
    }
}
