//! What evictors take pages from: spans whose turn comes in the policy's order, and those that wait out of sight.

use crate::page::span::Span;
use crate::policy::{EvictionPolicy, EvictionQueue, Policy, PriorityFifo};

/// The spans of one mapping, or of many, in the order in which they are given up.
pub(crate) struct EvictionOrder {
    pub(crate) policy: Box<dyn Policy>,
    /// Spans with hidden pages.
    pub(crate) eviction_queue: EvictionQueue,
}

impl EvictionOrder {
    /// Without spans, for so many cores.
    pub(crate) fn new(cores: usize, policy: EvictionPolicy) -> Self {
        EvictionOrder { policy: Box::new(PriorityFifo::new(cores, policy)), eviction_queue: EvictionQueue::default() }
    }

    /// Removes every queued span for which `of` holds.
    pub(crate) fn forget(&self, of: &dyn Fn(&Span) -> bool) {
        self.policy.forget(of);
        self.eviction_queue.forget(of);
    }
}
