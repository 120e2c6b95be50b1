//! The order of eviction: spans in the policy's order, and spans with inactive pages.

use vmio_core::page::snapshot::Snapshot;
use vmio_core::page::span::Span;
use vmio_core::page::visit::FifoQueue;

use crate::policy::priority_fifo::PriorityFifo;
use crate::policy::spread_count::SpreadCount;
use crate::policy::{EvictionPolicy, InactiveSpans, Policy};

/// Fewer pages than this do not make a small queue: twice what is read ahead at a time.
const SMALL_QUEUE_MIN: u32 = 64;

/// The spans of one mapping, or of many, in the order in which evictors take them.
pub(crate) struct EvictionOrder {
    pub(crate) policy: Box<dyn Policy>,
    /// Spans with inactive pages.
    pub(crate) inactive_spans: InactiveSpans,
    /// Pages in the small queue.
    small: SpreadCount,
}

impl EvictionOrder {
    /// Without spans, for this many cores.
    pub(crate) fn new(cores: usize, policy: EvictionPolicy) -> Self {
        EvictionOrder {
            policy: Box::new(PriorityFifo::new(cores, policy)),
            inactive_spans: InactiveSpans::default(),
            small: SpreadCount::new(cores),
        }
    }

    /// Removes every queued span for which `of` holds.
    pub(crate) fn forget(&self, of: &dyn Fn(&Span) -> bool) {
        self.policy.forget(of);
        self.inactive_spans.forget(of);
    }

    /// Which of the policy's two queues gives pages up next, if this many pages stand in both; `None` if there is one
    /// queue.
    pub(crate) fn victim_queue(&self, pages: u32) -> Option<FifoQueue> {
        let share = self.policy.small_queue_share()?;
        let small_max = (pages / share).max(SMALL_QUEUE_MIN.min(pages / 2));
        Some(if self.small.sum() > small_max { FifoQueue::Small } else { FifoQueue::Main })
    }

    /// Counts one more page of this frequency in memory (1), or one fewer (-1). Returns the queue of the page.
    #[inline]
    pub(crate) fn count_page(&self, core: usize, frequency: u8, change: i64) -> FifoQueue {
        let queue = FifoQueue::of(frequency);
        if queue == FifoQueue::Small {
            self.small.add(core, change);
        }
        queue
    }

    /// Counts an inactive page that was touched: it is active again, and of another frequency.
    pub(crate) fn move_reactivated(&self, core: usize, before: u8, after: u8) {
        self.inactive_spans.add_pages(-1);
        self.count_page(core, before, -1);
        self.count_page(core, after, 1);
    }

    /// Takes pages out of the counts that have gone with their mapping.
    pub(crate) fn remove_pages(&self, words: impl Iterator<Item = Snapshot>) {
        let (inactive, small) = words.fold((0, 0), |(inactive, small), word| {
            let is_small = FifoQueue::of(word.frequency()) == FifoQueue::Small;
            (inactive + i64::from(word.is_inactive()), small + i64::from(is_small))
        });
        self.inactive_spans.add_pages(-inactive);
        self.small.add(0, -small);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_queue_gives_pages_up_while_it_is_larger_than_its_share() {
        let order = EvictionOrder::new(1, EvictionPolicy::S3Fifo);
        assert_eq!(order.victim_queue(10_000), Some(FifoQueue::Main));
        (0..501).for_each(|_| assert_eq!(order.count_page(0, 0, 1), FifoQueue::Small));
        (0..5000).for_each(|_| assert_eq!(order.count_page(0, 1, 1), FifoQueue::Main));
        assert_eq!(order.victim_queue(10_000), Some(FifoQueue::Small));
        order.move_reactivated(0, 0, 1);
        assert_eq!(order.victim_queue(10_000), Some(FifoQueue::Main));
        assert_eq!(EvictionOrder::new(1, EvictionPolicy::Fifo).victim_queue(10_000), None);
    }
}
