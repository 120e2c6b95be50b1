//! Changes the capacity of a cache in use, with any engine.

use crate::cache::resize::OnUnreachable;
use crate::error::{Error, Result};
use crate::open::{Cache, FaultBackend};
use crate::sys::PAGE_BYTES;

impl Cache {
    /// Changes the memory that the cache may use, in bytes, as [`crate::CacheBuilder::capacity`] counts them.
    ///
    /// No thread stops for it, and the cache never exceeds the larger of the two capacities.
    ///
    /// A larger capacity is available at once. For a smaller one the call writes and evicts pages, and returns when the cache fits
    /// the new capacity (with [`crate::Engine::Managed`] as closely as that engine keeps it). Meanwhile threads that miss wait
    /// longer for their pages. Only one change runs at a time; others wait.
    ///
    /// A journal of atomic mappings keeps its reserve for commits. In a larger cache more pages may be dirty than the journal has
    /// space for: the commit then fails ([`crate::journal::JournalOptions`]).
    ///
    /// # Errors
    ///
    /// After an error the capacity is unchanged.
    ///
    /// - [`Error::BadOption`] for less than 6 MiB. A cache with many workers needs more, for their merge buffers.
    /// - [`Error::NotShrunk`] if pins hold more than three quarters of the new capacity (half with [`crate::Engine::Kernel`]),
    ///   pages cannot be written, or the floors of the open mappings need more ([`crate::MappingOptions::floor`]).
    /// - [`Error::Forked`] in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// let cache = vmio::Cache::builder().capacity(64 << 20).build()?;
    /// cache.resize(32 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resize(&self, capacity_bytes: u64) -> Result<()> {
        self.resize_or(capacity_bytes, OnUnreachable::Restore)
    }

    pub(super) fn resize_or(&self, capacity_bytes: u64, on_unreachable: OnUnreachable) -> Result<()> {
        let pages = self.overhead().capacity_pages(capacity_bytes)?;
        if !self.generation().is_current() {
            return Err(Error::Forked);
        }
        let resized = match &self.backend {
            FaultBackend::Cached(core) => core.shared.resize(pages, on_unreachable)?,
            FaultBackend::Managed(core) => core.reclaimer.resize(pages)?,
            FaultBackend::Kernel(core) => core.module.resize(pages)?,
        };
        resized.map_err(|why| Error::NotShrunk { wanted_bytes: u64::from(pages) * PAGE_BYTES as u64, why })
    }
}
