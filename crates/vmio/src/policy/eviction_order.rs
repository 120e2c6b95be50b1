//! The order of eviction: spans in the policy's order, and spans with inactive pages.

use crate::page::span::Span;
use crate::page::visit::Queue;
use crate::page::word::Snapshot;
use crate::policy::spread_count::SpreadCount;
use crate::policy::{EvictionPolicy, EvictionQueue, Policy, PriorityFifo};

/// Fewer pages than this do not make a small queue: twice what is read ahead at a time.
const SMALL_QUEUE_MIN: u32 = 64;

/// The spans of one mapping, or of many, in the order in which evictors take them.
pub(crate) struct EvictionOrder {
    pub(crate) policy: Box<dyn Policy>,
    /// Spans with inactive pages.
    pub(crate) eviction_queue: EvictionQueue,
    /// Pages in the small queue.
    small: SpreadCount,
}

impl EvictionOrder {
    /// Without spans, for this many cores.
    pub(crate) fn new(cores: usize, policy: EvictionPolicy) -> Self {
        EvictionOrder {
            policy: Box::new(PriorityFifo::new(cores, policy)),
            eviction_queue: EvictionQueue::default(),
            small: SpreadCount::new(cores),
        }
    }

    /// Removes every queued span for which `of` holds.
    pub(crate) fn forget(&self, of: &dyn Fn(&Span) -> bool) {
        self.policy.forget(of);
        self.eviction_queue.forget(of);
    }

    /// Which of the policy's two queues gives pages up next, if this many pages stand in both; `None` if there is one
    /// queue.
    pub(crate) fn victim_queue(&self, pages: u32) -> Option<Queue> {
        let share = self.policy.small_queue_share()?;
        let small_max = (pages / share).max(SMALL_QUEUE_MIN.min(pages / 2));
        Some(if self.small.sum() > small_max { Queue::Small } else { Queue::Main })
    }

    /// Counts one more page of this frequency in memory (1), or one fewer (-1). Returns the queue of the page.
    #[inline]
    pub(crate) fn note_queue(&self, core: usize, frequency: u8, change: i64) -> Queue {
        let queue = Queue::of(frequency);
        if queue == Queue::Small {
            self.small.add(core, change);
        }
        queue
    }

    /// Counts an inactive page that was touched: it is active again, and of another frequency.
    pub(crate) fn move_reactivated(&self, core: usize, before: u8, after: u8) {
        self.eviction_queue.add_pages(-1);
        self.note_queue(core, before, -1);
        self.note_queue(core, after, 1);
    }

    /// Takes pages out of the counts that have gone with their mapping.
    pub(crate) fn remove_pages(&self, words: impl Iterator<Item = Snapshot>) {
        let (inactive, small) = words.fold((0, 0), |(inactive, small), word| {
            let is_small = Queue::of(word.frequency()) == Queue::Small;
            (inactive + i64::from(word.is_inactive()), small + i64::from(is_small))
        });
        self.eviction_queue.add_pages(-inactive);
        self.small.add(0, -small);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_small_queue_gives_pages_up_while_it_is_larger_than_its_share() {
        let order = EvictionOrder::new(1, EvictionPolicy::S3Fifo);
        assert_eq!(order.victim_queue(10_000), Some(Queue::Main));
        (0..501).for_each(|_| assert_eq!(order.note_queue(0, 0, 1), Queue::Small));
        (0..5000).for_each(|_| assert_eq!(order.note_queue(0, 1, 1), Queue::Main));
        assert_eq!(order.victim_queue(10_000), Some(Queue::Small));
        order.move_reactivated(0, 0, 1);
        assert_eq!(order.victim_queue(10_000), Some(Queue::Main));
        assert_eq!(EvictionOrder::new(1, EvictionPolicy::Fifo).victim_queue(10_000), None);
    }
}
