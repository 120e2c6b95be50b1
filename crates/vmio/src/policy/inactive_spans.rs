//! kmmap's second queue (Kreon §3.3.1): spans whose pages are inactive. A touch reactivates a page; the
//! others are dropped, oldest first.

use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio_core::page::span::Span;

use crate::policy::SpanRef;

/// A queue of spans that hold inactive pages, and the number of those pages.
#[derive(Default)]
pub(crate) struct InactiveSpans {
    spans: Mutex<Spans>,
    pages: AtomicI64,
}

#[derive(Default)]
struct Spans {
    head: Option<SpanRef>,
    tail: Option<SpanRef>,
}

impl Spans {
    fn push(&mut self, span: SpanRef) {
        debug_assert_eq!(self.head.is_none(), self.tail.is_none());
        span.get().next_inactive.store(ptr::null_mut(), Ordering::Relaxed);
        match self.tail.replace(span) {
            Some(tail) => tail.get().next_inactive.store(span.as_raw(), Ordering::Relaxed),
            None => self.head = Some(span),
        }
        debug_assert!(self.head.is_some() && self.tail.is_some());
    }

    fn pop(&mut self) -> Option<SpanRef> {
        let span = self.head?;
        self.head = SpanRef::from_raw(span.get().next_inactive.load(Ordering::Relaxed));
        if self.head.is_none() {
            self.tail = None;
        }
        debug_assert_eq!(self.head.is_none(), self.tail.is_none());
        Some(span)
    }
}

impl InactiveSpans {
    /// Every thread holds the lock for a few pointer updates, with signals blocked: the trap path may wait for it.
    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span with inactive pages, unless it is queued already.
    pub(crate) fn push(&self, span: SpanRef) {
        if span.get().claim_inactive_queued() {
            self.lock().push(span);
        }
    }

    /// Takes the span that came in first.
    pub(crate) fn pop(&self) -> Option<SpanRef> {
        let span = self.lock().pop()?;
        span.get().clear_inactive_queued();
        Some(span)
    }

    /// Removes every span for which `of` holds.
    pub(crate) fn forget(&self, of: &dyn Fn(&Span) -> bool) {
        let mut spans = self.lock();
        let mut kept = Spans::default();
        while let Some(span) = spans.pop() {
            if of(span.get()) {
                span.get().clear_inactive_queued();
            } else {
                kept.push(span);
            }
        }
        *spans = kept;
    }

    /// Adds to the number of inactive pages; a negative number subtracts.
    pub(crate) fn add_pages(&self, pages: i64) {
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages that are inactive.
    pub(crate) fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed).clamp(0, i64::from(u32::MAX)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_once_each_and_forgotten_when_told() {
        let queue = InactiveSpans::default();
        let spans: Vec<Span> = (0..6).map(|_| Span::default()).collect();
        for (number, span) in spans.iter().enumerate() {
            let _ = span.set_region(ptr::null(), number as u64, 100);
            queue.push(SpanRef::new(span));
            queue.push(SpanRef::new(span));
        }
        let number = |span: SpanRef| span.get().region_and_number().1;
        assert_eq!(queue.pop().map(number), Some(0));
        queue.forget(&|span| span.region_and_number().1 % 2 == 1);
        queue.push(SpanRef::new(&spans[0]));
        queue.push(SpanRef::new(&spans[5]));
        let left: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(number).collect();
        assert_eq!(left, [2, 4, 0, 5]);
    }
}
