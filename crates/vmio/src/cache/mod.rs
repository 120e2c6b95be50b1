//! The DRAM cache: one budget for any number of mappings.

pub(crate) mod automatic;
mod builder;
mod commit;
mod copy_slots;
mod direct_reclaim;
mod ensure;
pub(crate) mod evictor;
pub(crate) mod fault;
pub(crate) mod fetch;
mod huge_pages;
mod inactive;
mod load;
pub(crate) mod merge_buffers;
pub(crate) mod overhead;
pub(crate) mod page_buffers;
mod pre_images;
pub(crate) mod read_failures;
pub(crate) mod refusal;
pub(crate) mod region;
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
mod whole_spans;
mod worker;
pub(crate) mod write_batch;

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use builder::{CacheBuilder, LockMemory};

use crate::cache::automatic::Follower;
use crate::cache::fetch::Fetchers;
use crate::cache::overhead::Overhead;
use crate::cache::shared::Shared;
use crate::error::{Error, Result};
use crate::kernel_engine::KernelCore;
use crate::managed::ManagedCore;
use crate::options::Engine;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::thread::OwnThread;
use crate::telemetry::counters::{PageCounts, Stats};

/// A budget of memory that any number of mappings share. A handle: a clone is the same cache.
///
/// The budget covers resident pages, the page tables and page words of the spans that they lie in, and the buffers of the
/// workers. It is used up only as pages are touched.
///
/// # Examples
///
/// ```
/// # fn main() -> vmio::Result<()> {
/// let cache = vmio::Cache::builder().capacity(64 << 20).build()?;
/// println!("{:?} of {} bytes: {:?}", cache.engine(), cache.capacity_bytes(), cache.stats());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    backend: FaultBackend,
}

/// What handles a cache's faults and keeps it within its budget. (Not to be confused with a [`Backing`](crate::backing::Backing),
/// which is what a mapping maps.)
#[derive(Clone)]
pub(crate) enum FaultBackend {
    /// Workers that evict what vmio's own faults have brought in.
    Workers(Arc<CacheCore>),
    /// A background reclaimer that watches what the kernel's faults have brought in.
    Reclaimer(Arc<ManagedCore>),
    /// The kernel module, whose memory it is.
    Module(Arc<KernelCore>),
}

impl Cache {
    /// Returns the options of a new cache, with their defaults.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::new()
    }

    pub(crate) fn backend(&self) -> &FaultBackend {
        &self.backend
    }

    /// The process that built it.
    pub(crate) fn generation(&self) -> Generation {
        match &self.backend {
            FaultBackend::Workers(core) => core.shared.generation,
            FaultBackend::Reclaimer(core) => core.reclaimer.generation(),
            FaultBackend::Module(core) => core.module.generation(),
        }
    }

    /// Whether this is a handle to the cache of those workers.
    pub(crate) fn is_of_core(&self, other: &Arc<CacheCore>) -> bool {
        matches!(&self.backend, FaultBackend::Workers(core) if Arc::ptr_eq(core, other))
    }

    /// Whether this is a handle to the cache of this reclaimer.
    pub(crate) fn is_of_reclaimer(&self, other: &Arc<ManagedCore>) -> bool {
        matches!(&self.backend, FaultBackend::Reclaimer(core) if Arc::ptr_eq(core, other))
    }

    /// Whether this is a handle to the cache of that memory.
    pub(crate) fn is_of_kernel(&self, other: &Arc<KernelCore>) -> bool {
        matches!(&self.backend, FaultBackend::Module(core) if Arc::ptr_eq(core, other))
    }

    /// Makes a cache for a forked child of the process that built this one. The two keep one budget together, and so do further
    /// children. What one of them does not use the others may; if all want more, each has an equal share. What a process leaves in
    /// memory when it ends is given up by the others as far as they have the same files mapped.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// let cache = vmio::Cache::builder().engine(vmio::Engine::Managed).capacity(64 << 20).build()?;
    /// // In a child, after a fork:
    /// let own = cache.in_child()?;
    /// assert_eq!(own.capacity_bytes(), cache.capacity_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] with another engine than [`Engine::Managed`]; [`Error::System`] if its thread cannot be started.
    pub fn in_child(&self) -> Result<Cache> {
        let FaultBackend::Reclaimer(parent) = &self.backend else {
            let expected = "Managed: with the others a child has none of its parent's pages";
            return Err(Error::BadOption { option: "engine", value: format!("{:?}", self.engine()), expected });
        };
        let generation = Generation::of_this_process().map_err(Error::system("marking the process"))?;
        let core = ManagedCore::start_in_child(parent, generation);
        let core = core.map_err(Error::system("starting the reclaimer of the cache"))?;
        Ok(Cache { backend: FaultBackend::Reclaimer(Arc::new(core)) })
    }

    /// Returns the engine of the cache; never [`Engine::Auto`], but the one that stands for it here.
    pub fn engine(&self) -> Engine {
        match &self.backend {
            FaultBackend::Workers(core) if !core.shared.paging.engine.handles_faults_in_their_threads() => {
                Engine::ReaderThread
            }
            FaultBackend::Workers(_) => Engine::Sigbus,
            FaultBackend::Reclaimer(_) => Engine::Managed,
            FaultBackend::Module(_) => Engine::Kernel,
        }
    }

    /// Returns the descriptors that the cache needs, for programs that close whatever they find open, and must not close these: of the
    /// kernel module ([`Engine::Kernel`]), of the process's memory ([`Engine::Managed`]), or those by which pages are mapped and
    /// unmapped. Each mapping has another one ([`crate::Mapping::descriptor`]). The descriptors of memory files are not among them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.backend {
            FaultBackend::Module(core) => vec![core.module.descriptor()],
            FaultBackend::Reclaimer(core) => core.reclaimer.descriptors().into(),
            FaultBackend::Workers(core) => {
                let shared = &core.shared;
                shared.paging.frames.descriptors().into_iter().chain(shared.paging.unmapper.descriptor()).collect()
            }
        }
    }

    /// Returns the bytes that the pages of the cache may take.
    pub fn capacity_bytes(&self) -> u64 {
        let pages = match &self.backend {
            FaultBackend::Workers(core) => core.shared.memory.capacity_pages(),
            FaultBackend::Reclaimer(core) => core.reclaimer.capacity_pages(),
            FaultBackend::Module(core) => core.module.capacity_pages(),
        };
        u64::from(pages) * PAGE_BYTES as u64
    }

    /// What it keeps for itself beside its pages.
    fn overhead(&self) -> Overhead {
        match &self.backend {
            FaultBackend::Workers(core) => core.shared.memory.overhead,
            FaultBackend::Reclaimer(_) | FaultBackend::Module(_) => Overhead::LEAST,
        }
    }

    /// The smallest capacity that leaves what a cache needs beside the floors of its mappings.
    fn least_capacity_pages(&self) -> u64 {
        match &self.backend {
            FaultBackend::Workers(core) => core.shared.eviction.least_capacity_pages(),
            FaultBackend::Reclaimer(_) | FaultBackend::Module(_) => overhead::PAGES_MIN,
        }
    }

    /// Returns what the cache holds and what it has done so far; zeros in a forked child of the process that built it.
    pub fn stats(&self) -> Stats {
        match &self.backend {
            FaultBackend::Workers(core) => core.stats(),
            FaultBackend::Reclaimer(core) => core.reclaimer.stats(),
            FaultBackend::Module(core) => core.module.stats(),
        }
    }
}

impl CacheCore {
    fn stats(&self) -> Stats {
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

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Cache of {} bytes", self.capacity_bytes())
    }
}

/// The shared state and its workers, which end with the last handle and the last mapping.
pub(crate) struct CacheCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fetchers: Fetchers,
    workers: Mutex<Vec<OwnThread>>,
    /// What changes the capacity, if that is left to vmio.
    follower: OnceLock<Follower>,
}

impl CacheCore {
    fn start(shared: Shared) -> std::io::Result<Self> {
        let shared = Arc::new(shared);
        let core = CacheCore {
            fetchers: Fetchers::default(),
            workers: Mutex::new(Vec::new()),
            follower: OnceLock::new(),
            shared,
        };
        for number in 0..core.shared.workers.count {
            let worker = worker::spawn(Arc::clone(&core.shared), number)?;
            core.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        Ok(core)
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
