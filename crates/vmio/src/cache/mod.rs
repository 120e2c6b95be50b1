//! The DRAM cache: one budget for any number of mappings.

pub(crate) mod address_table;
mod builder;
pub(crate) mod counters;
pub(crate) mod fault;
mod hiding;
pub(crate) mod page_buffers;
pub(crate) mod reclaim;
pub(crate) mod region;
pub(crate) mod shared;
mod sync;
mod worker;
pub(crate) mod write_batch;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub use builder::{CacheBuilder, LockMemory};
pub use counters::{MissTime, Stats};

use crate::cache::counters::Counter;
use crate::cache::shared::Shared;
use crate::sys::PAGE_BYTES;

/// A fixed budget of memory that any number of mappings share. A handle: cloning it gives another one.
///
/// The budget covers resident pages and the buffers of the workers. It is used up only as pages are touched.
#[derive(Clone)]
pub struct Cache {
    core: Arc<CacheCore>,
}

impl Cache {
    /// Options for a new cache.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::new()
    }

    pub(crate) fn core(&self) -> &Arc<CacheCore> {
        &self.core
    }

    /// Bytes that its pages may take.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.core.shared.capacity_pages) * PAGE_BYTES as u64
    }

    /// What it holds and what it has done so far.
    pub fn stats(&self) -> Stats {
        let shared = &*self.core.shared;
        let total = |counter| shared.counters.total(counter);
        let free_pages = u64::from(shared.budget.free());
        let capacity_pages = u64::from(shared.capacity_pages);
        let (evict, write_back, store) =
            (total(Counter::ShootdownsEvict), total(Counter::ShootdownsWriteBack), total(Counter::ShootdownsStore));
        Stats {
            capacity_pages,
            resident_pages: capacity_pages.saturating_sub(free_pages),
            dirty_pages: u64::from(shared.dirty_pages()),
            free_pages,
            pinned_pages: u64::from(shared.pinned_pages.load(std::sync::atomic::Ordering::Relaxed)),
            load_misses: total(Counter::LoadMisses),
            store_misses: total(Counter::StoreMisses),
            write_protect_faults: total(Counter::WriteProtectFaults),
            soft_misses: total(Counter::SoftMisses),
            fresh_fills: total(Counter::FreshFills),
            read_ahead_pages: total(Counter::ReadAheadPages),
            fault_waits: total(Counter::FaultWaits),
            read_bytes: total(Counter::ReadBytes),
            reads: total(Counter::Reads),
            written_bytes: total(Counter::WrittenBytes),
            writes: total(Counter::Writes),
            helped_writes: total(Counter::HelpedWrites),
            evicted_clean: total(Counter::EvictedClean),
            evicted_dirty: total(Counter::EvictedDirty),
            direct_reclaims: total(Counter::DirectReclaims),
            shootdowns: evict + write_back + store,
            shootdowns_evict: evict,
            shootdowns_write_back: write_back,
            shootdowns_store: store,
            read_errors: total(Counter::ReadErrors),
            write_errors: total(Counter::WriteErrors),
            drop_failures: total(Counter::DropFailures),
            miss_time: MissTime {
                misses: total(Counter::TimedMisses),
                handler_ns: total(Counter::HandlerNs),
                budget_ns: total(Counter::BudgetNs),
                read_ns: total(Counter::ReadNs),
                install_ns: total(Counter::InstallNs),
            },
        }
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Cache of {} bytes", self.capacity_bytes())
    }
}

/// The shared state and the workers that tend it; ends them when the last handle and the last mapping are gone.
pub(crate) struct CacheCore {
    pub(crate) shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl CacheCore {
    fn start(shared: Shared) -> std::io::Result<Self> {
        let shared = Arc::new(shared);
        let core = CacheCore { workers: Mutex::new(Vec::new()), shared };
        for number in 0..core.shared.workers {
            let worker = worker::spawn(Arc::clone(&core.shared), number)?;
            core.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        Ok(core)
    }
}

impl Drop for CacheCore {
    fn drop(&mut self) {
        if !self.shared.generation.is_current() {
            // The threads are the parent's. Even to detach them is wrong: a thread of the child may have the same id.
            std::mem::forget(std::mem::take(self.workers.get_mut().unwrap_or_else(PoisonError::into_inner)));
            return;
        }
        self.shared.stop();
        for worker in self.workers.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker of the cache has panicked");
            }
        }
    }
}
