//! Changing the capacity of a cache that is in use, of whichever engine.

use crate::cache::resize::Unmet;
use crate::error::{Error, Result};
use crate::open::{Cache, FaultBackend};
use crate::sys::PAGE_BYTES;

impl Cache {
    /// Changes the memory that the cache may use, in bytes, as [`crate::CacheBuilder::capacity`] counts them. No thread is
    /// stopped meanwhile, and there is never more in memory than the larger of the two capacities allows.
    ///
    /// A larger capacity may be used at once. A smaller one evicts, and writes what is dirty: the call returns when the new
    /// capacity is met (with [`crate::Engine::Managed`] as closely as that engine keeps it). Threads that miss wait longer for
    /// their pages meanwhile. One change is made at a time; others wait for it.
    ///
    /// A journal of atomic mappings keeps what it reserves for commits. In a larger cache more may be dirty than the journal has room
    /// for, and the commit fails ([`crate::journal::JournalOptions`]).
    ///
    /// # Errors
    ///
    /// After an error the capacity is what it was.
    ///
    /// - [`Error::BadOption`] for less than 6 MiB; a cache with many workers needs more, for their merge buffers.
    /// - [`Error::NotShrunk`] if pins hold more than three quarters of the new capacity, pages cannot be written, or the new capacity
    ///   has no room for the floors of the open mappings ([`crate::MappingOptions::floor`]).
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
        self.resize_or(capacity_bytes, Unmet::Restored)
    }

    pub(super) fn resize_or(&self, capacity_bytes: u64, unmet: Unmet) -> Result<()> {
        let pages = self.overhead().capacity_pages(capacity_bytes)?;
        if !self.generation().is_current() {
            return Err(Error::Forked);
        }
        let resized = match &self.backend {
            FaultBackend::Workers(core) => core.shared.resize(pages, unmet)?,
            FaultBackend::Reclaimer(core) => core.reclaimer.resize(pages)?,
            FaultBackend::Module(core) => core.module.resize(pages)?,
        };
        resized.map_err(|why| Error::NotShrunk { wanted_bytes: u64::from(pages) * PAGE_BYTES as u64, why })
    }
}
