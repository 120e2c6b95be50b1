//! The engine of the kernel module: vmio.ko takes the faults, and has the memory, the evictions and the write-back.
//!
//! [`KernelFile`] is what a mapping of it holds; `region` is one mapped file, `view` more
//! addresses for it, `verify_before_map` how its pages are verified, `module` the
//! memory that the module keeps for a cache. docs/kernel.md says how the module does it.

mod fetch;
mod file;
mod module;
mod open_kernel;
mod pinned;
mod region;
mod verify_before_map;
mod view;

use std::sync::{Arc, Mutex, OnceLock};

pub(crate) use file::KernelFile;
pub(crate) use module::Module;

use crate::cache::fetch::Pool;
use crate::elastic::Follower;
use crate::error::Result;
use crate::sys::fork::Generation;

/// The module's memory, and the threads that fetch pages into it; they end when the last handle and the last mapping are gone.
pub(crate) struct KernelCore {
    pub(crate) module: Arc<Module>,
    /// Threads that fetch pages, once somebody does.
    pub(crate) pool: OnceLock<Pool>,
    pub(crate) starting: Mutex<()>,
    /// What changes the capacity, if that is left to vmio.
    pub(crate) follower: OnceLock<Follower>,
}

impl KernelCore {
    /// Has the module reserve memory for this many pages.
    pub(crate) fn start(generation: Generation, capacity_pages: u32) -> Result<Self> {
        let module = Arc::new(Module::reserve(generation, capacity_pages)?);
        Ok(KernelCore { module, pool: OnceLock::new(), starting: Mutex::new(()), follower: OnceLock::new() })
    }
}
