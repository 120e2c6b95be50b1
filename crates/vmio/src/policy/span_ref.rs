//! References to spans that stand in queues.

use std::ptr::NonNull;

use vmio_core::page::span::Span;

/// A span that has resident pages. The cache keeps the region of every queued span alive, so it can be dereferenced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanRef(NonNull<Span>);

// SAFETY: a Span is shared between threads through atomics only.
unsafe impl Send for SpanRef {}
// SAFETY: a Span is shared between threads through atomics only.
unsafe impl Sync for SpanRef {}

impl SpanRef {
    /// A reference that the policy may hold until the span is forgotten or found empty.
    pub(crate) fn new(span: &Span) -> Self {
        SpanRef(NonNull::from(span))
    }

    /// The reference of a link, if the link leads to a span.
    pub(super) fn from_raw(span: *mut Span) -> Option<Self> {
        NonNull::new(span).map(SpanRef)
    }

    /// The link to the span.
    pub(super) fn as_raw(self) -> *mut Span {
        self.0.as_ptr()
    }

    /// The span.
    pub(crate) fn get(&self) -> &Span {
        // SAFETY: a region takes its spans out of the policy (Policy::forget) and waits for the evictors that hold one
        // before it unmaps them.
        unsafe { self.0.as_ref() }
    }
}
