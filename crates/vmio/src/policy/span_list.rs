//! Doubly linked lists of spans through the links in the spans themselves: no allocation, removal in one step.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::policy::SpanRef;

/// A queue of spans. All methods are called under the lock of the shard that owns the list.
#[derive(Clone, Copy, Default)]
pub(super) struct SpanList {
    head: Option<SpanRef>,
    tail: Option<SpanRef>,
}

impl SpanList {
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    pub(super) fn push_back(&mut self, span: SpanRef) {
        debug_assert_eq!(self.head.is_none(), self.tail.is_none());
        let previous = self.tail.map_or(ptr::null_mut(), SpanRef::as_raw);
        span.get().previous.store(previous, Relaxed);
        span.get().next.store(ptr::null_mut(), Relaxed);
        match self.tail {
            Some(tail) => tail.get().next.store(span.as_raw(), Relaxed),
            None => self.head = Some(span),
        }
        self.tail = Some(span);
        debug_assert!(self.head.is_some());
    }

    pub(super) fn pop_front(&mut self) -> Option<SpanRef> {
        let span = self.head?;
        self.remove(span);
        Some(span)
    }

    pub(super) fn remove(&mut self, span: SpanRef) {
        debug_assert!(self.head.is_some() && self.tail.is_some());
        let previous = SpanRef::from_raw(span.get().previous.load(Relaxed));
        let next = SpanRef::from_raw(span.get().next.load(Relaxed));
        match previous {
            Some(previous) => previous.get().next.store(next.map_or(ptr::null_mut(), SpanRef::as_raw), Relaxed),
            None => self.head = next,
        }
        match next {
            Some(next) => next.get().previous.store(previous.map_or(ptr::null_mut(), SpanRef::as_raw), Relaxed),
            None => self.tail = previous,
        }
        debug_assert_eq!(self.head.is_none(), self.tail.is_none());
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpanRef> {
        std::iter::successors(self.head, |span| SpanRef::from_raw(span.get().next.load(Relaxed)))
    }
}
