//! What a program holds of a cache: the handle, the backend behind it, and how both come to be. The only module that knows all
//! engines, beside that of the mappings.

mod automatic;
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
            FaultBackend::Workers(core) => core.shared.paging.engine.engine(),
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
            FaultBackend::Reclaimer(_) | FaultBackend::Module(_) => PAGES_MIN,
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

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Cache of {} bytes", self.capacity_bytes())
    }
}
