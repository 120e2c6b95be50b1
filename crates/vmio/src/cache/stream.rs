//! Scans of read-only mappings: whole spans are read aside and moved in as huge pages, some of them ahead of the scan.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::cache::counters::Counter;
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::page::span_of;
use crate::page::word::Loaded;
use crate::page::{SPAN_BYTES, SPAN_PAGES};
use crate::sys::cpu;
use crate::sys::reservation::Reservation;

/// Spans that workers read ahead of a scan.
const AHEAD_SPANS: u64 = 8;
/// Requests that may wait; more are dropped, and their spans read when the scan gets there.
const REQUESTS_MAX: usize = 64;

/// What streams share: memory to read into, and what is to be read ahead.
pub(crate) struct Streams {
    /// Without memory between uses: that goes where the span goes.
    buffers: ArrayQueue<Reservation>,
    requests: ArrayQueue<Request>,
}

struct Request {
    region: *const Region,
    span: u64,
}

// SAFETY: the region is dereferenced under the eviction gate only, and requests are forgotten before it closes.
unsafe impl Send for Request {}

impl Streams {
    /// For so many threads that read at the same time.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let buffers = ArrayQueue::new(threads);
        while !buffers.is_full() {
            let mut buffer = Reservation::zeroed(SPAN_BYTES, SPAN_BYTES)?;
            buffer.leave_out_on_fork()?;
            buffer.prefer_huge_pages()?;
            let _ = buffers.push(buffer);
        }
        Ok(Streams { buffers, requests: ArrayQueue::new(REQUESTS_MAX) })
    }

    /// Whether something is to be read ahead.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Forgets what was requested for a region. The caller holds the eviction gate for writing.
    pub(crate) fn forget(&self, region: &Region) {
        for _ in 0..self.requests.len() {
            match self.requests.pop() {
                Some(request) if !std::ptr::eq(request.region, region) => drop(self.requests.push(request)),
                _ => {}
            }
        }
    }
}

impl Shared {
    /// Reads one requested span. The caller holds the eviction gate.
    pub(crate) fn read_ahead(&self) {
        let Some(request) = self.streams.requests.pop() else { return };
        // SAFETY: see `Request`.
        let region = unsafe { &*request.region };
        let page = request.span * SPAN_PAGES as u64;
        if region.span(request.span).resident() > 0 || region.begin_load(page).is_err() {
            return; // The scan has got there itself.
        }
        let take = |shared: &Shared, core, pages| shared.budget.take(core, pages).is_some();
        if page >= region.pages() || !region.load_span(cpu::current(), page, take) {
            region.forget_load(page);
        }
    }
}

impl Region {
    /// Asks for the spans after one that a scan has reached, but for those that were asked for already.
    pub(crate) fn request_read_ahead(&self, span: u64) {
        let asked = self.read_ahead_until();
        let from = if (span + 1..=span + AHEAD_SPANS).contains(&asked) { asked } else { span + 1 };
        let until = (span + 1 + AHEAD_SPANS).min(self.spans());
        self.set_read_ahead_until(until);
        for span in from..until {
            if self.span(span).resident() == 0 {
                let _ = self.shared.streams.requests.push(Request { region: self, span });
            }
        }
        if self.shared.streams.has_requests() {
            self.shared.wake_worker(true);
        }
    }

    /// Brings in the whole span of a page that the caller has made Loading. If that cannot be done, now or at all, the
    /// page is as it was, and so are the others. `take` gets so many pages of the budget, or none.
    pub(crate) fn load_span(&self, core: usize, page: u64, take: impl Fn(&Shared, usize, u32) -> bool) -> bool {
        let shared = &*self.shared;
        let pages = self.pages_of_span(span_of(page));
        if pages.end - pages.start < SPAN_PAGES as u64 {
            return false;
        }
        let Some(mut buffer) = shared.streams.buffers.pop() else { return false };
        let others = || pages.clone().filter(|other| *other != page);
        let claimed = others().take_while(|other| self.begin_load(*other).is_ok()).count();
        let price = SPAN_PAGES as u32 - 1 + self.price(page);
        let taken = claimed == SPAN_PAGES - 1 && take(shared, core, price);
        let loaded = taken && self.read_span(core, pages.start, &mut buffer);
        let _ = shared.streams.buffers.push(buffer);
        if !loaded {
            others().take(claimed).for_each(|other| self.forget_load(other));
            shared.release(if taken { price } else { 0 }, false);
            return false;
        }
        self.pay(page, price - (SPAN_PAGES as u32 - 1));
        pages.clone().for_each(|page| self.word(page).finish_load(Loaded::default()));
        shared.count(core, Counter::ReadAheadPages, SPAN_PAGES as u64 - 1);
        shared.count(core, Counter::MovedSpans, 1);
        true
    }

    fn read_span(&self, core: usize, first: u64, buffer: &mut Reservation) -> bool {
        // SAFETY: the buffer is ours as long as it is out of the pool, and nobody else knows of it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.base(), SPAN_BYTES) };
        let good = self.read(core, first, bytes).is_ok()
            && bytes.chunks(crate::sys::PAGE_BYTES).zip(first..).all(|(data, page)| self.verify(page, data).is_ok());
        // SAFETY: all pages of the span are ours, their words say Loading; the range is attached, and read-only to all.
        good && unsafe { self.frames().install_span(self.address(first), buffer) }.is_ok()
    }
}
