//! Spans in FIFO queues by priority (kmmap's Primary Queue, Kreon §3.3.1), and how often a page comes round again. S3-FIFO, the
//! default, decides that, or `KeepRefaulted` (twice as many rounds for each return soon after an eviction), or `Fifo` (once).

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use vmio_core::page::reuse::Reuse;
use vmio_core::page::span::Span;

use crate::policy::span_list::SpanList;
use crate::policy::{EvictionPolicy, Policy, SpanRef};

const PRIORITIES: usize = 256;
const EMPTY: i32 = -1;
/// The highest frequency with `KeepRefaulted`: a page survives 7 visits at most, and leaves after them if nobody wants it.
const FREQUENCY_MAX: u8 = 3;
/// A page missed while half the cache turned over should have stayed twice as long; in eighths of a turnover.
const SOON: u8 = 4;
/// A page that is missed later than this loses a step of its frequency; in eighths of a turnover.
const LATE: u8 = 8;
/// One page in this many is inactive: long enough for a page in use to be touched, short enough that few touches are
/// of inactive pages.
const INACTIVE_SHARE: u32 = 4;
/// S3-FIFO's small queue holds one page in this many. docs/design/policies.md says how these numbers were found.
const S3_SMALL_SHARE: u32 = 20;
/// One page in this many is inactive with `EvictionPolicy::S3Fifo`: nearly all inactive pages are of the small queue.
const S3_INACTIVE_SHARE: u32 = 32;
/// A page that comes back no later than this is not new; in eighths of a turnover.
const S3_GHOST_AGE_MAX: u8 = 6;
/// Each such return adds this to the frequency.
const S3_FREQUENCY_A_RETURN: u8 = 2;
/// The highest frequency with S3-FIFO: a page survives 31 visits.
const S3_FREQUENCY_MAX: u8 = 5;
/// `Span::queue` of a span that an evictor holds or that nobody has queued.
const IN_NO_QUEUE: u16 = 0;

/// FIFO queues of spans by priority, sharded so that cores rarely meet.
pub(crate) struct PriorityFifo {
    shards: Box<[CachePadded<Shard>]>,
    next_shard: AtomicUsize,
    policy: EvictionPolicy,
}

struct Shard {
    /// A stack of spans that have just become resident, pushed by the trap path without a lock.
    incoming: AtomicPtr<Span>,
    /// The highest priority that is queued, or [`EMPTY`]: a hint for choosing the shard.
    top: AtomicI32,
    queues: Mutex<Queues>,
}

struct Queues {
    lists: Box<[SpanList; PRIORITIES]>,
}

impl Queues {
    fn top(&self) -> i32 {
        self.lists.iter().rposition(|list| !list.is_empty()).map_or(EMPTY, |priority| priority as i32)
    }

    fn push(&mut self, span: SpanRef, priority: u8) {
        debug_assert_eq!(span.get().queue.load(Ordering::Relaxed), IN_NO_QUEUE, "a span stands in one queue");
        span.get().queue.store(u16::from(priority) + 1, Ordering::Relaxed);
        self.lists[usize::from(priority)].push_back(span);
    }

    fn remove(&mut self, span: SpanRef) -> bool {
        let queue = span.get().queue.swap(IN_NO_QUEUE, Ordering::Relaxed);
        if queue == IN_NO_QUEUE {
            return false;
        }
        self.lists[queue as usize - 1].remove(span);
        true
    }
}

impl Shard {
    fn new() -> Self {
        Shard {
            incoming: AtomicPtr::new(ptr::null_mut()),
            top: AtomicI32::new(EMPTY),
            queues: Mutex::new(Queues { lists: Box::new([SpanList::default(); PRIORITIES]) }),
        }
    }

    /// Every thread holds the lock for a few pointer updates, with signals blocked: the trap path may wait for it.
    fn lock(&self) -> MutexGuard<'_, Queues> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // The stack has the youngest on top: reverse it, so that the first in is the first out.
        let mut reversed = ptr::null_mut();
        let mut next = SpanRef::from_raw(self.incoming.swap(ptr::null_mut(), Ordering::Acquire));
        while let Some(span) = next {
            next = SpanRef::from_raw(span.get().next.load(Ordering::Relaxed));
            span.get().next.store(reversed, Ordering::Relaxed);
            reversed = span.as_raw();
        }
        let mut next = SpanRef::from_raw(reversed);
        while let Some(span) = next {
            next = SpanRef::from_raw(span.get().next.load(Ordering::Relaxed));
            queues.push(span, span.get().priority());
        }
        queues
    }

    fn publish_top(&self, queues: &Queues) {
        self.top.store(queues.top(), Ordering::Relaxed);
    }
}

impl PriorityFifo {
    /// Queues in as many shards as there are cores.
    pub(crate) fn new(cores: usize, policy: EvictionPolicy) -> Self {
        let shards = cores.next_power_of_two().min(64);
        PriorityFifo {
            shards: (0..shards).map(|_| CachePadded::new(Shard::new())).collect(),
            next_shard: AtomicUsize::new(0),
            policy,
        }
    }

    fn is_s3_fifo(&self) -> bool {
        matches!(self.policy, EvictionPolicy::Auto | EvictionPolicy::S3Fifo)
    }

    /// Sorts spans that have come in since the last look: one of them may have the highest priority of all.
    fn sort_incoming(&self) {
        for shard in &self.shards {
            if !shard.incoming.load(Ordering::Relaxed).is_null() {
                let queues = shard.lock();
                shard.publish_top(&queues);
            }
        }
    }

    fn shard(&self, span: SpanRef) -> &Shard {
        let (region, number) = span.get().region_and_number();
        let hash = (number as usize).wrapping_add(region as usize >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15_usize);
        &self.shards[(hash >> 32) & (self.shards.len() - 1)]
    }
}

impl Policy for PriorityFifo {
    fn admit(&self, span: SpanRef) {
        let shard = self.shard(span);
        let mut head = shard.incoming.load(Ordering::Relaxed);
        loop {
            span.get().next.store(head, Ordering::Relaxed);
            match shard.incoming.compare_exchange_weak(head, span.as_raw(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    fn next(&self, core: usize) -> Option<SpanRef> {
        self.sort_incoming();
        for _ in 0..2 * self.shards.len() {
            // Among shards with equal priority, the next one each time.
            let start = core.wrapping_add(self.next_shard.fetch_add(1, Ordering::Relaxed));
            let shards = self.shards.len();
            let best = (0..shards).map(|step| &self.shards[(start + step) % shards]).reduce(|best, shard| {
                if shard.top.load(Ordering::Relaxed) > best.top.load(Ordering::Relaxed) { shard } else { best }
            })?;
            let mut queues = best.lock();
            let top = queues.top();
            if top == EMPTY {
                best.publish_top(&queues);
                if self.shards.iter().all(|shard| shard.top.load(Ordering::Relaxed) == EMPTY) {
                    return None;
                }
                continue;
            }
            let span = queues.lists[top as usize].pop_front();
            if let Some(span) = span {
                span.get().queue.store(IN_NO_QUEUE, Ordering::Relaxed);
            }
            best.publish_top(&queues);
            return span;
        }
        None
    }

    fn top(&self) -> Option<u8> {
        self.sort_incoming();
        let top = self.shards.iter().map(|shard| shard.top.load(Ordering::Relaxed)).max()?;
        u8::try_from(top).ok()
    }

    fn put_back(&self, span: SpanRef) {
        let shard = self.shard(span);
        let mut queues = shard.lock();
        queues.push(span, span.get().priority());
        shard.publish_top(&queues);
    }

    fn reprioritize(&self, span: SpanRef) {
        let shard = self.shard(span);
        let mut queues = shard.lock();
        if queues.remove(span) {
            queues.push(span, span.get().priority());
        }
        shard.publish_top(&queues);
    }

    fn forget(&self, of: &dyn Fn(&Span) -> bool) {
        for shard in &self.shards {
            let mut queues = shard.lock();
            for priority in 0..PRIORITIES {
                let list = queues.lists[priority];
                let mut next = list.iter().next();
                while let Some(span) = next {
                    next = SpanRef::from_raw(span.get().next.load(Ordering::Relaxed));
                    if of(span.get()) {
                        queues.remove(span);
                    }
                }
            }
            shard.publish_top(&queues);
        }
    }

    fn frequency(&self, before: u8, evicted_ago: Option<u8>) -> u8 {
        match (self.policy, evicted_ago) {
            (EvictionPolicy::Fifo, _) => 0,
            (EvictionPolicy::Auto | EvictionPolicy::S3Fifo, Some(0..=S3_GHOST_AGE_MAX)) => {
                (before + S3_FREQUENCY_A_RETURN).min(S3_FREQUENCY_MAX)
            }
            (EvictionPolicy::Auto | EvictionPolicy::S3Fifo, _) => 0,
            (EvictionPolicy::KeepRefaulted, Some(0..=SOON)) => (before + 1).min(FREQUENCY_MAX),
            (EvictionPolicy::KeepRefaulted, Some(..=LATE)) => before,
            (EvictionPolicy::KeepRefaulted, _) => before.saturating_sub(1),
        }
    }

    fn frequency_of_reactivated(&self, before: u8) -> u8 {
        if self.is_s3_fifo() { (before + 1).min(S3_FREQUENCY_MAX) } else { before }
    }

    fn frequency_by_advice(&self, reuse: Reuse) -> u8 {
        match (self.policy, reuse) {
            (EvictionPolicy::Fifo, _) => 0,
            (EvictionPolicy::Auto | EvictionPolicy::S3Fifo, Reuse::Often) => S3_FREQUENCY_MAX,
            (EvictionPolicy::KeepRefaulted, Reuse::Often) => FREQUENCY_MAX,
            // Not known, or once.
            _ => 0,
        }
    }

    fn small_queue_share(&self) -> Option<u32> {
        self.is_s3_fifo().then_some(S3_SMALL_SHARE)
    }

    fn inactive_share(&self) -> u32 {
        if self.deactivates_by_page() { S3_INACTIVE_SHARE } else { INACTIVE_SHARE }
    }

    fn deactivates_by_page(&self) -> bool {
        self.policy == EvictionPolicy::S3Fifo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(count: u64) -> Vec<Span> {
        let spans: Vec<Span> = (0..count).map(|_| Span::default()).collect();
        for (number, span) in spans.iter().enumerate() {
            let _ = span.set_region(ptr::null(), number as u64, 100);
        }
        spans
    }

    fn drain(policy: &PriorityFifo) -> Vec<u64> {
        std::iter::from_fn(|| policy.next(0)).map(|span| span.get().region_and_number().1).collect()
    }

    #[test]
    fn first_in_first_out_within_a_priority() {
        let policy = PriorityFifo::new(1, EvictionPolicy::KeepRefaulted);
        let spans = spans(5);
        let _ = spans[1].set_priority(255);
        let _ = spans[3].set_priority(0);
        assert_eq!(policy.top(), None);
        for span in &spans {
            policy.admit(SpanRef::new(span));
        }
        assert_eq!(policy.top(), Some(255));
        assert_eq!(drain(&policy), [1, 0, 2, 4, 3]);
        assert!(policy.next(0).is_none() && policy.top().is_none());
    }

    #[test]
    fn the_highest_priority_of_all_shards_goes_first() {
        let policy = PriorityFifo::new(8, EvictionPolicy::KeepRefaulted);
        let spans = spans(64);
        for (number, span) in spans.iter().enumerate() {
            let _ = span.set_priority((number * 3) as u8);
            policy.admit(SpanRef::new(span));
        }
        let mut expected: Vec<u64> = (0..64).collect();
        expected.reverse();
        assert_eq!(drain(&policy), expected);
    }

    #[test]
    fn a_changed_priority_moves_a_queued_span() {
        let policy = PriorityFifo::new(2, EvictionPolicy::KeepRefaulted);
        let spans = spans(4);
        for span in &spans {
            policy.put_back(SpanRef::new(span));
        }
        let _ = spans[2].set_priority(200);
        policy.reprioritize(SpanRef::new(&spans[2]));
        let _ = spans[0].set_priority(1);
        policy.reprioritize(SpanRef::new(&spans[0]));
        let order = drain(&policy);
        assert_eq!((order[0], order[3]), (2, 0));
    }

    #[test]
    fn only_one_of_the_policies_keeps_what_comes_back_soon() {
        let frequency = |policy| PriorityFifo::new(1, policy).frequency(1, Some(2));
        assert_eq!((frequency(EvictionPolicy::KeepRefaulted), frequency(EvictionPolicy::Fifo)), (2, 0));
    }

    #[test]
    fn what_comes_back_late_is_new_to_s3_fifo() {
        for policy in [EvictionPolicy::Auto, EvictionPolicy::S3Fifo].map(|policy| PriorityFifo::new(1, policy)) {
            assert_eq!((policy.frequency(0, Some(6)), policy.frequency(4, Some(6))), (2, 5));
            assert_eq!((policy.frequency(4, Some(7)), policy.frequency(0, None)), (0, 0));
            assert_eq!((policy.frequency_of_reactivated(0), policy.frequency_of_reactivated(5)), (1, 5));
        }
    }

    #[test]
    fn forgotten_spans_do_not_come_back() {
        let policy = PriorityFifo::new(2, EvictionPolicy::KeepRefaulted);
        let spans = spans(10);
        for span in &spans {
            policy.admit(SpanRef::new(span));
        }
        policy.forget(&|span| span.region_and_number().1 % 2 == 0);
        let mut left = drain(&policy);
        left.sort_unstable();
        assert_eq!(left, [1, 3, 5, 7, 9]);
    }
}
