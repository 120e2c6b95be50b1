//! Identifies the cache of a file to code that does not know caches.

use std::sync::Arc;

use crate::sys::fork::Generation;

/// A cache, by the address of its core. Every comparison happens while its caller holds the core.
#[derive(Clone, Copy)]
pub(crate) struct CacheIdentity {
    core: usize,
    /// The process that built it.
    pub(crate) generation: Generation,
}

impl CacheIdentity {
    /// The cache with that core, built by that process.
    pub(crate) fn of<Core>(core: &Arc<Core>, generation: Generation) -> Self {
        CacheIdentity { core: Arc::as_ptr(core).addr(), generation }
    }

    /// Whether this is the cache of that core.
    pub(crate) fn is_of<Core>(self, core: &Arc<Core>) -> bool {
        self.core == Arc::as_ptr(core).addr()
    }
}
