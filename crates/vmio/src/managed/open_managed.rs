//! A managed region while it is mapped.

use std::ops::Range;
use std::sync::Arc;

use crate::backing::{Access, Backing, FileUser};
use crate::error::{Error, Result};
use crate::managed::ManagedCore;
use crate::managed::region::ManagedRegion;
use crate::mapped_file::CacheIdentity;
use crate::mapped_file::opened::OpenRegion;
use crate::options::MappingOptions;
use crate::sys::file_map::FileMap;
use crate::sys::fork::Generation;
use crate::sys::page_cache;

/// A region that the reclaimer keeps within the budget.
pub(super) struct OpenManaged {
    pub(super) region: Arc<ManagedRegion>,
    /// Keeps the region's reclaimer alive.
    pub(super) core: Arc<ManagedCore>,
}

impl OpenManaged {
    pub(super) fn start(
        core: &Arc<ManagedCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
        present: Option<FileMap>,
    ) -> Result<OpenManaged> {
        let region = Arc::new(ManagedRegion::new(backing, &options, core.reclaimer.stretch_pages(), present)?);
        core.reclaimer.insert(Arc::clone(&region)).map_err(Error::system("counting mapped pages"))?;
        region.map.take_over();
        Ok(OpenManaged { region, core: Arc::clone(core) })
    }

    /// Makes the stores to a range of bytes durable. Of an empty range it only tells whether a write has failed.
    pub(super) fn flush(&self, bytes: &Range<u64>) -> Result<()> {
        let region = &self.region;
        if region.access == Access::ReadOnly {
            return Ok(());
        }
        region.check_not_failed()?;
        if bytes.is_empty() {
            return Ok(());
        }
        region.map.sync(bytes).map_err(|error| self.core.reclaimer.note_failure(region, error))?;
        region.check_not_shortened()
    }
}

impl OpenRegion for OpenManaged {
    fn file_user(access: Access) -> FileUser {
        FileUser::managed(access)
    }

    fn backing(&self) -> &dyn Backing {
        &*self.region.backing
    }

    fn access(&self) -> Access {
        self.region.access
    }

    fn generation(&self) -> Generation {
        self.core.reclaimer.generation()
    }

    fn belongs_to(&self, cache: CacheIdentity) -> bool {
        cache.is_of(&self.core)
    }

    fn sync(&self) -> Result<()> {
        let region = &self.region;
        if region.access == Access::ReadOnly {
            return Ok(());
        }
        region.check_not_failed()?;
        region.file.sync_data().map_err(|error| self.core.reclaimer.note_failure(region, error))?;
        region.check_not_shortened()
    }

    fn shut_down(&self) -> Result<()> {
        let synced = self.sync();
        let region = &self.region;
        self.core.reclaimer.remove(region);
        let reach = region.reach();
        // Pages that no other process has mapped leave memory. After a failure they stay: they may be the only copy of
        // some stores.
        let given_up = match region.has_failed() {
            true => Ok(()),
            false => region.map.unmap(&reach).and_then(|()| page_cache::drop_clean(region.file(), &reach)),
        };
        if let Err(error) = given_up {
            tracing::debug!(backing = region.backing.describe(), %error, "the file's pages stay in memory");
        }
        synced
    }

    fn count_drop_failure(&self) {
        self.core.reclaimer.counts.drop_failures.add(1);
    }
}
