//! The life of an open region: one per file and process, from the first handle to the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::backing::{Access, Backing, Identity};
use crate::cache::address_table;
use crate::cache::counters::Counter;
use crate::cache::region::Region;
use crate::cache::{Cache, CacheCore};
use crate::error::{Error, Result};
use crate::mapping::options::MappingOptions;
use crate::sys::cpu;
use crate::sys::signal::SignalsBlocked;

static OPEN_FILES: Mutex<Option<HashMap<Identity, Weak<OpenRegion>>>> = Mutex::new(None);

/// A region in use. Dropping the last reference syncs and unmaps it.
pub(crate) struct OpenRegion {
    pub(crate) region: Box<Region>,
    /// Keeps the workers alive that write the region's pages.
    pub(crate) cache: Arc<CacheCore>,
    closed: bool,
}

impl OpenRegion {
    /// The region of a backing: the one that is open already if the process maps the file, else a new one.
    pub(crate) fn open(cache: &Cache, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Arc<Self>> {
        let Some(identity) = backing.identity() else {
            return Ok(Arc::new(Self::start(cache, backing, options)?));
        };
        let mut open_files = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let open_files = open_files.get_or_insert_with(HashMap::new);
        if let Some(opened) = open_files.get(&identity).and_then(Weak::upgrade)
            // An entry inherited by a forked child is the parent's.
            && opened.region.shared.generation.is_current()
        {
            let wanted = options.access.unwrap_or_else(|| backing.access());
            let how = if !Arc::ptr_eq(&opened.cache, cache.core()) {
                "through another cache"
            } else if wanted == Access::ReadWrite && opened.region.access == Access::ReadOnly {
                "read-only"
            } else {
                return Ok(opened);
            };
            return Err(Error::AlreadyMapped { backing: backing.describe(), how });
        }
        let locked = backing.try_lock().map_err(Error::system("locking the file"))?;
        if !locked {
            return Err(Error::InUse { backing: backing.describe() });
        }
        let opened = Arc::new(Self::start(cache, backing, options)?);
        open_files.retain(|_, opened| opened.strong_count() > 0);
        open_files.insert(identity, Arc::downgrade(&opened));
        Ok(opened)
    }

    fn start(cache: &Cache, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let core = Arc::clone(cache.core());
        if !core.shared.generation.is_current() {
            return Err(Error::Forked);
        }
        let region = Box::new(Region::new(Arc::clone(&core.shared), backing, options)?);
        address_table::insert(&region)?;
        Ok(OpenRegion { region, cache: core, closed: false })
    }

    /// Refuses to go on in a forked child.
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        if self.region.shared.generation.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Syncs, and gives everything back that the region holds of the cache.
    pub(crate) fn close(mut self) -> Result<()> {
        self.check_not_forked()?;
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<()> {
        self.closed = true;
        let region = &*self.region;
        let synced = if region.access == Access::ReadWrite { region.sync_pages(None) } else { Ok(()) };
        let _signals = SignalsBlocked::new();
        {
            // Nobody evicts meanwhile; afterwards nobody finds a span of ours.
            let _gate = region.shared.eviction_gate.write().unwrap_or_else(PoisonError::into_inner);
            region.shared.policy.forget(&|span| std::ptr::eq(span.owner().0, std::ptr::from_ref(region).cast()));
        }
        address_table::remove(region);
        let (resident, dirty) = (0..region.spans())
            .map(|span| region.span(span))
            .fold((0, 0), |(resident, dirty), span| (resident + span.resident(), dirty + span.dirty()));
        region.shared.remove_dirty(dirty as usize);
        region.shared.release(resident, false);
        synced
    }
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        if self.closed || !self.region.shared.generation.is_current() {
            return;
        }
        if let Err(error) = self.shut_down() {
            self.region.shared.count(cpu::current(), Counter::DropFailures, 1);
            tracing::error!(backing = self.region.backing.describe(), %error, "the last sync of a dropped mapping failed");
        }
    }
}
