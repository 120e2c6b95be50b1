//! A region of the kernel module while it is mapped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backing::{Access, Backing, FileUser};
use crate::error::{Error, Result};
use crate::kernel_engine::KernelCore;
use crate::kernel_engine::region::{EVERYTHING, KernelRegion};
use crate::mapped_file::CacheIdentity;
use crate::mapped_file::opened::OpenRegion;
use crate::options::MappingOptions;
use crate::sys::fork::Generation;

/// A region with pages of the module.
pub(super) struct OpenKernel {
    pub(super) region: Arc<KernelRegion>,
    /// Keeps the memory and the fetching threads.
    pub(super) core: Arc<KernelCore>,
}

impl OpenKernel {
    pub(super) fn start(
        core: &Arc<KernelCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
    ) -> Result<OpenKernel> {
        let region = Arc::new(KernelRegion::new(&core.module, backing, &options)?);
        region.expect_faults()?;
        Ok(OpenKernel { region, core: Arc::clone(core) })
    }
}

impl OpenRegion for OpenKernel {
    /// Processes with other engines do not share the module's pages. Processes with this engine would, but are locked out all the
    /// same.
    fn file_user(access: Access) -> FileUser {
        FileUser::cached(access)
    }

    fn backing(&self) -> &dyn Backing {
        &*self.region.backing
    }

    fn access(&self) -> Access {
        self.region.access
    }

    fn generation(&self) -> Generation {
        self.core.module.generation()
    }

    fn belongs_to(&self, cache: CacheIdentity) -> bool {
        cache.is_of(&self.core)
    }

    fn sync(&self) -> Result<()> {
        self.region.sync(None)
    }

    fn shut_down(&self) -> Result<()> {
        self.region.fetches.close();
        let synced = self.sync().map_err(Error::at_the_end);
        // A forked child has the descriptor too, and keeps the attachment, but no page that could become stale. Lost pages must not
        // overwrite what the file's next user writes.
        let given_up = match &synced {
            Ok(()) => self.region.attachment.evict(&EVERYTHING),
            Err(_) => self.region.attachment.discard(&EVERYTHING),
        };
        match given_up {
            Ok(0) => {}
            Ok(held) => {
                tracing::debug!(backing = self.region.backing.describe(), held, "pages stay that somebody holds")
            }
            Err(error) => {
                tracing::debug!(backing = self.region.backing.describe(), %error, "the file's pages stay in memory");
            }
        }
        synced
    }

    fn count_drop_failure(&self) {
        self.core.module.drop_failures.fetch_add(1, Ordering::Relaxed);
    }
}
