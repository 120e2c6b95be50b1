//! The life of a managed file, from the first handle to the last.

use std::ops::Range;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use crate::backing::{Access, Backing};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::managed::ManagedCore;
use crate::managed::region::ManagedRegion;
use crate::mapping::mapped_file::OpenedFile;
use crate::mapping::open_files::{Entry, Opening};
use crate::mapping::options::MappingOptions;
use crate::sys::page_cache;

/// A region in use. Dropping the last reference syncs and unmaps it.
pub(super) struct OpenManaged {
    // Dropped in this order: the file is unlocked before its entry goes.
    pub(super) region: Arc<ManagedRegion>,
    /// Keeps the steward alive that looks after the region.
    pub(super) core: Arc<ManagedCore>,
    closed: bool,
    _entry: Option<Entry>,
}

impl OpenManaged {
    pub(super) fn start(
        core: &Arc<ManagedCore>,
        backing: Box<dyn Backing>,
        options: &MappingOptions,
        entry: Option<Entry>,
    ) -> Opening<Self> {
        match Self::build(core, backing, options) {
            Ok(region) => Ok(OpenManaged { region, core: Arc::clone(core), closed: false, _entry: entry }),
            Err(error) => Err((error, entry)),
        }
    }

    fn build(
        core: &Arc<ManagedCore>,
        backing: Box<dyn Backing>,
        options: &MappingOptions,
    ) -> Result<Arc<ManagedRegion>> {
        if !core.steward.generation().is_current() {
            return Err(Error::Forked);
        }
        if let Some(file) = backing.file() {
            // Shared with others of this kind, whose pages are the same; not with a process that has pages of its own.
            match flock(file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::InUse { backing: backing.describe() }),
                Err(error) => return Err(Error::System { operation: "locking the file", source: error.into() }),
            }
        }
        let region = Arc::new(ManagedRegion::new(backing, options, core.steward.stretch_pages())?);
        core.steward.insert(Arc::clone(&region)).map_err(Error::system("counting mapped pages"))?;
        Ok(region)
    }

    pub(super) fn check_not_forked(&self) -> Result<()> {
        if self.core.steward.generation().is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Makes what was stored durable.
    pub(super) fn sync(&self) -> Result<()> {
        let region = &self.region;
        if region.access == Access::ReadOnly {
            return Ok(());
        }
        region.check_not_failed()?;
        region.file.sync_data().map_err(|error| self.core.steward.note_failure(region, error))?;
        region.check_not_shortened()
    }

    /// The same of some pages.
    pub(super) fn flush(&self, bytes: &Range<u64>) -> Result<()> {
        let region = &self.region;
        if region.access == Access::ReadOnly || bytes.is_empty() {
            return Ok(());
        }
        region.check_not_failed()?;
        region.map.sync(bytes).map_err(|error| self.core.steward.note_failure(region, error))?;
        region.check_not_shortened()
    }

    /// Syncs, and gives the memory back.
    pub(super) fn close(mut self) -> Result<()> {
        self.check_not_forked()?;
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<()> {
        self.closed = true;
        let synced = self.sync();
        let region = &self.region;
        self.core.steward.remove(region);
        let extent = region.extent();
        // What nobody else has mapped leaves the memory; after a failure it is all that is left of some stores.
        let given_up = match region.has_failed() {
            true => Ok(()),
            false => region.map.unmap(&extent).and_then(|()| page_cache::drop_clean(region.file(), &extent)),
        };
        if let Err(error) = given_up {
            tracing::debug!(backing = region.backing.describe(), %error, "the file's pages stay in memory");
        }
        // A forked child keeps the file open, and with it the lock that was taken before the fork.
        if let Err(error) = region.backing.unlock() {
            tracing::warn!(backing = region.backing.describe(), %error, "unlocking failed");
        }
        synced
    }
}

impl OpenedFile for OpenManaged {
    fn belongs_to(&self, cache: &Cache) -> bool {
        cache.is_of_steward(&self.core)
    }

    fn access(&self) -> Access {
        self.region.access
    }
}

impl Drop for OpenManaged {
    fn drop(&mut self) {
        if self.closed || !self.core.steward.generation().is_current() {
            return;
        }
        if let Err(error) = self.shut_down() {
            self.core.steward.counts.drop_failures.add(1);
            tracing::error!(backing = self.region.backing.describe(), %error, "the last sync of a dropped mapping failed");
        }
    }
}
