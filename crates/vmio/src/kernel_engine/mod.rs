//! The engine of the kernel module: vmio.ko takes the faults, owns the memory, evicts and writes back.
//!
//! A mapping holds a [`KernelFile`]. `region` is one mapped file, and `view` has further addresses for it. `verify_before_map`
//! verifies its pages. `module` is the memory that the module keeps for a cache. docs/kernel.md describes the module.

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

/// The module's memory, and the threads that fetch pages into it. Both end with the last handle and the last mapping.
pub(crate) struct KernelCore {
    pub(crate) module: Arc<Module>,
    /// Threads that fetch pages, started for the first fetch.
    pub(crate) pool: OnceLock<Pool>,
    pub(crate) starting: Mutex<()>,
    /// Changes the capacity, if the program leaves that to vmio.
    pub(crate) follower: OnceLock<Follower>,
}

impl KernelCore {
    /// Has the module reserve memory for this many pages.
    pub(crate) fn start(generation: Generation, capacity_pages: u32) -> Result<Self> {
        let module = Arc::new(Module::reserve(generation, capacity_pages)?);
        Ok(KernelCore { module, pool: OnceLock::new(), starting: Mutex::new(()), follower: OnceLock::new() })
    }
}
