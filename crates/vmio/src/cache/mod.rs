//! The DRAM cache: one budget for any number of mappings.
//!
//! A handle and a mapping hold a [`CacheCore`]. `shared` has the state that all mappings share, `region` one mapped
//! file, and `fault` the miss path.

pub(crate) mod call_holds;
pub(crate) mod collect;
mod commit;
mod contents;
mod copy_slots;
mod destination;
mod direct_reclaim;
mod empty_spans;
mod ensure;
mod evict;
pub(crate) mod evictor;
pub(crate) mod fault;
pub(crate) mod fault_error;
pub(crate) mod fetch;
mod floors;
mod fruitless_rounds;
pub(crate) mod held_for_calls;
mod huge_frame;
mod huge_pages;
mod inactive;
mod load;
pub(crate) mod merge_buffers;
pub(crate) mod open_requests;
pub(crate) mod overhead;
pub(crate) mod page_buffers;
mod pass;
pub(crate) mod pins;
mod pre_images;
pub(crate) mod read_failures;
pub(crate) mod refusal;
pub(crate) mod region;
pub(crate) mod region_ref;
mod residents;
pub(crate) mod resize;
mod saved_pages;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod strided;
mod sync;
pub(crate) mod tables;
pub(crate) mod tenant;
mod victim_selection;
mod victim_source;
mod view_tables;
mod whole_spans;
mod worker;
pub(crate) mod write_batch;
mod write_run;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::cache::fetch::Fetchers;
use crate::cache::shared::Shared;
use crate::elastic::Follower;
use crate::sys::polled_rings::PolledRings;
use crate::sys::thread::OwnThread;
use crate::telemetry::counters::{PageCounts, Stats};

/// The shared state of a cache and its workers. Both end with the last handle and the last mapping.
pub(crate) struct CacheCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fetchers: Fetchers,
    workers: Mutex<Vec<OwnThread>>,
    /// The thread that changes the capacity, if the program leaves that to vmio.
    pub(crate) follower: OnceLock<Follower>,
    /// For reads and writes of files without system calls.
    pub(crate) polled: Option<Arc<PolledRings>>,
}

impl CacheCore {
    pub(crate) fn start(shared: Shared, polled: Option<Arc<PolledRings>>) -> std::io::Result<Self> {
        let shared = Arc::new(shared);
        let core = CacheCore {
            fetchers: Fetchers::default(),
            workers: Mutex::new(Vec::new()),
            follower: OnceLock::new(),
            polled,
            shared,
        };
        for number in 0..core.shared.workers.count {
            let worker = worker::spawn(Arc::clone(&core.shared), number)?;
            core.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        Ok(core)
    }

    /// The state and the counters of the cache. In a forked child of the process that built it, all but the capacity
    /// are zero.
    pub(crate) fn stats(&self) -> Stats {
        let shared = &*self.shared;
        let limit = shared.memory.budget.limit();
        let capacity_pages = u64::from(limit.capacity);
        if !shared.generation.is_current() {
            // The counters are the parent's, and not part of the child's memory.
            return Stats { capacity_pages, ..Stats::default() };
        }
        let pages = PageCounts {
            capacity: capacity_pages,
            owed: u64::from(limit.owed),
            free: u64::from(shared.memory.budget.free()),
            dirty: u64::from(shared.write_back.dirty_pages()),
            pinned: shared.memory.pinned_pages.load(Ordering::Relaxed),
            tables: shared.memory.table_pages.load(Ordering::Relaxed),
            by_priority: shared.telemetry.counters.resident_by_priority(),
        };
        Stats::gather(pages, |counter| shared.telemetry.counters.total(counter))
    }
}

impl Drop for CacheCore {
    fn drop(&mut self) {
        self.fetchers.stop(self.shared.generation.is_current());
        if !self.shared.generation.is_current() {
            return; // The threads are the parent's.
        }
        self.shared.workers.stop();
        let workers = self.workers.get_mut().unwrap_or_else(PoisonError::into_inner);
        workers.drain(..).for_each(|worker| worker.end("a worker of the cache"));
    }
}
