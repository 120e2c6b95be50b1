//! Counts of what the reclaimer has done.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that only grow.
#[derive(Default)]
pub(crate) struct Counts {
    /// Pages dropped that needed no write.
    pub(super) evicted_clean: Count,
    /// Pages dropped after a write.
    pub(super) evicted_dirty: Count,
    /// Dirty pages whose write the reclaimer began.
    pub(super) written_pages: Count,
    /// How often the reclaimer began to write.
    pub(super) writes: Count,
    /// Ranges taken out of the page table.
    pub(super) shootdowns: Count,
    /// Failed writes and flushes.
    pub(super) write_errors: Count,
    /// Mappings whose last sync failed while they were dropped.
    pub(super) drop_failures: Count,
}

/// A counter.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
