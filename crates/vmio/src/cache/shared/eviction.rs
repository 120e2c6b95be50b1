//! Eviction: the spans to evict from, the mappings that give pages up, and the clock that evictions turn.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::cache::evictor::Evictor;
use crate::cache::merge_buffers::MergeBuffers;
use crate::cache::tenant::Tenant;
use crate::policy::{EvictionOrder, EvictionPolicy};

/// Pages that a faulting thread evicts when it has to do it itself.
pub(crate) const DIRECT_PAGES: usize = 64;
/// Evictions between two ticks of the eviction clock: an eighth of the cache.
const CLOCK_TICKS_PER_TURNOVER: u64 = 8;

/// What evictors share.
pub(crate) struct Eviction {
    /// The spans of mappings without floor and ceiling.
    pub(crate) order: EvictionOrder,
    policy: EvictionPolicy,
    cores: usize,
    /// Counts selections of a mapping that gives pages up.
    selections: AtomicU64,
    /// Evictors for faulting threads. Boxed: whoever takes one may have a stack of 8 KiB.
    pub(crate) spare_evictors: ArrayQueue<Box<Evictor>>,
    /// Held for reading by whoever takes spans from an order, for writing while a region's spans are taken out. The mappings
    /// with a floor or a ceiling, each with an order of its own.
    pub(crate) gate: RwLock<Vec<Arc<Tenant>>>,
    evicted_pages: CachePadded<AtomicU64>,
}

/// Held by whoever takes spans from the policy: no region that has spans there goes away meanwhile.
pub(crate) type Gate<'a> = RwLockReadGuard<'a, Vec<Arc<Tenant>>>;

/// Spare evictors of a machine. One thread at a time evicts for itself on a small machine; the others wait for what it
/// frees.
pub(super) fn spare_evictors(cores: usize) -> usize {
    (cores / 8).max(1)
}

impl Eviction {
    /// With no spans, and with all spare evictors, whose buffers are among those given.
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

    /// The number of the next selection of a mapping that gives pages up.
    pub(crate) fn next_selection(&self) -> u64 {
        self.selections.fetch_add(1, Ordering::Relaxed)
    }

    // ---- the eviction clock

    /// Pages evicted so far.
    pub(crate) fn evicted_pages(&self) -> u64 {
        self.evicted_pages.load(Ordering::Relaxed)
    }

    /// Moves the clock on.
    pub(crate) fn note_evicted(&self, pages: u32) {
        self.evicted_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
    }

    /// The clock counts turnovers of the cache: with another capacity it goes on from where it is.
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
