//! Commits the stores to atomic mappings.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::journal::JournaledBacking;
use crate::mapped_file::MappedFile;
use crate::mapped_file::SyncHandle;
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;

impl Mapping {
    /// Commits the stores to all mappings of the journal ([`crate::MappingOptions::atomic`]), and returns the commit's number when
    /// it is durable.
    ///
    /// A commit is a point in time between the call and the return. It holds every store from before that point, in any of the
    /// mappings, and none from after it. Threads that commit meanwhile share the next commit.
    ///
    /// Stores wait while the commit protects dirty pages, but not while it writes them.
    /// [`crate::journal::JournalUse::stores_held_ns_max`] is the longest wait so far.
    ///
    /// # Errors
    ///
    /// Those of [`crate::journal::Journal::commit`]; [`Error::NotAtomic`] without a journal. An error loses nothing: the stores
    /// become part of the next commit.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// use vmio::backing::MemoryBacking;
    /// use vmio::journal::{Journal, JournalOptions};
    /// use vmio::{Cache, Mapping, MappingOptions};
    ///
    /// let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// let journal = Journal::create(MemoryBacking::new(64 << 20)?, JournalOptions::new())?;
    /// let open = |bytes| Mapping::open(&cache, MemoryBacking::new(bytes)?, MappingOptions::new().atomic(&journal));
    /// let (from, to) = (open(1 << 20)?, open(2 << 20)?);
    /// from.write_at(0, &90_u64.to_le_bytes())?;
    /// to.write_at(0, &10_u64.to_le_bytes())?;
    /// from.commit()?; // both, or neither
    /// # Ok(())
    /// # }
    /// ```
    pub fn commit(&self) -> Result<u64> {
        self.journaled()?.commit()
    }

    /// Starts a [`Self::commit`] in the background, with its point in time between this call and the end of the commit.
    ///
    /// # Errors
    ///
    /// [`Error::NotAtomic`] without a journal, or [`Error::System`] if no thread can be started.
    pub fn commit_begin(&self) -> Result<SyncHandle> {
        self.journaled()?;
        self.file().sync_begin()
    }

    fn journaled(&self) -> Result<&Arc<JournaledBacking>> {
        self.file().check_not_forked()?;
        self.file().journaled().ok_or_else(|| Error::NotAtomic { backing: self.describe() })
    }
}

impl CachedFile {
    pub(super) fn commit_in_background(&self) -> Result<SyncHandle> {
        // Keeps the file open: closed files take no part in a commit.
        let file = self.clone();
        SyncHandle::spawn(move || file.sync(None))
    }
}
