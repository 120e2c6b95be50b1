//! The cache as a program holds it: the handle, its backend, and the construction of both. Only this module and that of the
//! mappings know all engines.

mod automatic;
mod backing;
mod builder;
mod resize;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use builder::{CacheBuilder, LockMemory};

use crate::cache::CacheCore;
use crate::cache::overhead::{Overhead, PAGES_MIN};
use crate::error::{Error, Result};
use crate::kernel_engine::KernelCore;
use crate::managed::ManagedCore;
use crate::options::Engine;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::telemetry::counters::Stats;

/// A budget of memory that any number of mappings share. This is a handle: a clone is the same cache.
///
/// The budget covers resident pages, the page tables and page words of their spans, and the buffers of the workers. The cache takes
/// memory only as the program touches pages.
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

/// Handles a cache's faults and keeps the cache within its budget. (A [`Backing`](crate::backing::Backing) is something else: the
/// file or device behind a mapping.)
#[derive(Clone)]
pub(crate) enum FaultBackend {
    /// Workers that evict the pages of vmio's own faults.
    Cached(Arc<CacheCore>),
    /// A background reclaimer that watches the pages of the kernel's faults.
    Managed(Arc<ManagedCore>),
    /// The kernel module, which owns the memory.
    Kernel(Arc<KernelCore>),
}

impl Cache {
    /// Returns the default options of a new cache.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::new()
    }

    pub(crate) fn backend(&self) -> &FaultBackend {
        &self.backend
    }

    /// The process that built it.
    pub(crate) fn generation(&self) -> Generation {
        match &self.backend {
            FaultBackend::Cached(core) => core.shared.generation,
            FaultBackend::Managed(core) => core.reclaimer.generation(),
            FaultBackend::Kernel(core) => core.module.generation(),
        }
    }

    /// Makes a cache for a forked child of the process that built this one.
    ///
    /// Parent and children share one budget. Any of them may use the part that the others leave; if all want more, each gets an
    /// equal share. When one of them ends, the others evict the pages that it leaves in memory, as far as they map the same files.
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
        let FaultBackend::Managed(parent) = &self.backend else {
            let expected = "Managed: with the others a child has none of its parent's pages";
            return Err(Error::BadOption { option: "engine", value: format!("{:?}", self.engine()), expected });
        };
        let generation = Generation::of_this_process().map_err(Error::system("marking the process"))?;
        let core = ManagedCore::start_in_child(parent, generation);
        let core = core.map_err(Error::system("starting the reclaimer of the cache"))?;
        Ok(Cache { backend: FaultBackend::Managed(Arc::new(core)) })
    }

    /// Returns the engine of the cache. For [`Engine::Auto`] that is the engine chosen on this machine.
    pub fn engine(&self) -> Engine {
        match &self.backend {
            FaultBackend::Cached(core) => core.shared.paging.engine.engine(),
            FaultBackend::Managed(_) => Engine::Managed,
            FaultBackend::Kernel(_) => Engine::Kernel,
        }
    }

    /// Returns the file descriptors that the cache needs. A program that closes all descriptors it finds must spare these.
    ///
    /// With [`Engine::Kernel`] it is the kernel module's, with [`Engine::Managed`] they are those for the process's memory, and
    /// with the other engines those that map and unmap pages, and those of [`CacheBuilder::poll_submissions`]. Mappings of the first two
    /// engines have one more each ([`crate::Mapping::descriptor`]). The descriptors of memory files are not among them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.backend {
            FaultBackend::Kernel(core) => vec![core.module.descriptor()],
            FaultBackend::Managed(core) => core.reclaimer.descriptors().into(),
            FaultBackend::Cached(core) => {
                let paging = &core.shared.paging;
                let polled = core.polled.iter().flat_map(|polled| polled.descriptors());
                paging.frames.descriptors().into_iter().chain(paging.unmapper.descriptor()).chain(polled).collect()
            }
        }
    }

    /// Returns the capacity for pages, in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        let pages = match &self.backend {
            FaultBackend::Cached(core) => core.shared.memory.capacity_pages(),
            FaultBackend::Managed(core) => core.reclaimer.capacity_pages(),
            FaultBackend::Kernel(core) => core.module.capacity_pages(),
        };
        u64::from(pages) * PAGE_BYTES as u64
    }

    /// The memory that the cache takes beside its pages.
    fn overhead(&self) -> Overhead {
        match &self.backend {
            FaultBackend::Cached(core) => core.shared.memory.overhead,
            FaultBackend::Managed(_) | FaultBackend::Kernel(_) => Overhead::LEAST,
        }
    }

    /// The smallest capacity that leaves enough beside the floors of the mappings.
    fn least_capacity_pages(&self) -> u64 {
        match &self.backend {
            FaultBackend::Cached(core) => core.shared.eviction.least_capacity_pages(),
            FaultBackend::Managed(_) | FaultBackend::Kernel(_) => PAGES_MIN,
        }
    }

    /// Returns the cache's contents and work so far in numbers; zeros in a forked child of the process that built it.
    pub fn stats(&self) -> Stats {
        match &self.backend {
            FaultBackend::Cached(core) => core.stats(),
            FaultBackend::Managed(core) => core.reclaimer.stats(),
            FaultBackend::Kernel(core) => core.module.stats(),
        }
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Cache of {} bytes", self.capacity_bytes())
    }
}
