//! Eviction: the spans to evict from, the mappings that give up pages, and the clock that evictions advance.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::cache::evictor::Evictor;
use crate::cache::merge_buffers::{DIRECT_PAGES, MergeBuffers};
use crate::cache::tenant::Tenant;
use crate::policy::{EvictionOrder, EvictionPolicy};

/// Ticks of the eviction clock in one turnover of the cache: the clock ticks once an eighth of the cache is evicted.
const CLOCK_TICKS_PER_TURNOVER: u64 = 8;

/// The state that evictors share.
pub(crate) struct Eviction {
    /// The spans of mappings without floor and ceiling.
    pub(crate) order: EvictionOrder,
    policy: EvictionPolicy,
    cores: usize,
    /// The number of victim selections so far.
    selections: AtomicU64,
    /// Evictors for faulting threads. Boxed, since the thread that takes one may have a stack of 8 KiB.
    pub(crate) spare_evictors: ArrayQueue<Box<Evictor>>,
    /// The eviction gate, with the mappings that have a floor or a ceiling, each with an order of its own. A thread
    /// holds the gate for reading while it takes spans from an order, and for writing while it takes a region's spans
    /// out.
    pub(crate) gate: RwLock<Vec<Arc<Tenant>>>,
    evicted_pages: CachePadded<AtomicU64>,
}

/// The eviction gate, held for reading. While a thread holds it, no region with queued spans goes away.
pub(crate) type Gate<'a> = RwLockReadGuard<'a, Vec<Arc<Tenant>>>;

/// The number of spare evictors. On a small machine one faulting thread at a time evicts; the others wait for the pages
/// that it frees.
pub(super) fn spare_evictors(cores: usize) -> usize {
    (cores / 8).max(1)
}

impl Eviction {
    /// Without spans, and with all spare evictors, whose merge buffers come from `buffers`.
    pub(super) fn new(policy: EvictionPolicy, cores: usize, buffers: &Arc<MergeBuffers>) -> io::Result<Self> {
        let spare = ArrayQueue::new(spare_evictors(cores));
        while !spare.is_full() {
            let _ = spare.push(Box::new(Evictor::new(DIRECT_PAGES, buffers)?));
        }
        Ok(Eviction {
            order: EvictionOrder::new(cores, policy),
            policy,
            cores,
            selections: AtomicU64::new(0),
            spare_evictors: spare,
            gate: RwLock::new(Vec::new()),
            evicted_pages: CachePadded::new(AtomicU64::new(0)),
        })
    }

    /// An order for the spans of one mapping.
    pub(crate) fn new_order(&self) -> EvictionOrder {
        EvictionOrder::new(self.cores, self.policy)
    }

    /// Returns the number of the next victim selection.
    pub(crate) fn next_selection(&self) -> u64 {
        self.selections.fetch_add(1, Ordering::Relaxed)
    }

    // ---- the eviction clock

    /// Pages evicted so far.
    pub(crate) fn evicted_pages(&self) -> u64 {
        self.evicted_pages.load(Ordering::Relaxed)
    }

    /// Advances the clock by this many evicted pages.
    pub(crate) fn note_evicted(&self, pages: u32) {
        self.evicted_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
    }

    /// Adapts the clock to another capacity. The clock counts turnovers of the cache, and goes on from its present
    /// time.
    pub(super) fn set_capacity(&self, before: u32, pages: u32) {
        let _ = self.evicted_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |evicted| {
            Some((u128::from(evicted) * u128::from(pages) / u128::from(before)) as u64)
        });
    }

    /// The present time of the clock, 1 to 255.
    pub(super) fn time(&self, capacity_pages: u32) -> u8 {
        let ticks = self.evicted_pages.load(Ordering::Relaxed) * CLOCK_TICKS_PER_TURNOVER / u64::from(capacity_pages);
        (ticks % 255) as u8 + 1
    }
}
