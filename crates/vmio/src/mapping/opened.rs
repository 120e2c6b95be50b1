//! The life of an open region: one per file and process, from the first handle to the last.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use crate::backing::{Access, Backing, Identity};
use crate::cache::address_table;
use crate::cache::counters::Counter;
use crate::cache::region::Region;
use crate::cache::{Cache, CacheCore};
use crate::error::{Error, Result};
use crate::mapping::options::MappingOptions;
use crate::page::span::Span;
use crate::sys::cpu;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;

static OPEN_FILES: Mutex<BTreeMap<Identity, OpenFile>> = Mutex::new(BTreeMap::new());
static FILE_CLOSED: Condvar = Condvar::new();

/// A file that some mapping of the process has open, or is about to close.
struct OpenFile {
    opened: Weak<OpenRegion>,
    generation: Generation,
}

/// A region in use. Dropping the last reference syncs and unmaps it.
pub(crate) struct OpenRegion {
    // Dropped in this order: the file is unlocked before its entry goes.
    pub(crate) region: Box<Region>,
    /// Keeps the workers alive that write the region's pages.
    pub(crate) cache: Arc<CacheCore>,
    closed: bool,
    _entry: Option<Entry>,
}

/// The file's place among those that are open; given up when dropped.
struct Entry {
    identity: Identity,
    generation: Generation,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held the lock when it was copied.
        if self.generation.is_current() {
            OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
            FILE_CLOSED.notify_all();
        }
    }
}

impl OpenRegion {
    /// The region of a backing: the one that is open already if the process maps the file, else a new one.
    pub(crate) fn open(cache: &Cache, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Arc<Self>> {
        let Some(identity) = backing.identity() else {
            return Ok(Arc::new(Self::start(cache, backing, options, None).map_err(|(error, _)| error)?));
        };
        let generation = cache.core().shared.generation;
        let mut open_files = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(present) = open_files.get(&identity) {
            if !present.generation.is_current() {
                break; // Inherited by a forked child: the parent's.
            }
            if let Some(opened) = present.opened.upgrade() {
                let wanted = options.access.unwrap_or_else(|| backing.access());
                let how = if !Arc::ptr_eq(&opened.cache, cache.core()) {
                    "through another cache"
                } else if wanted == Access::ReadWrite && opened.region.access == Access::ReadOnly {
                    "read-only"
                } else {
                    return Ok(opened);
                };
                // Dropping what may be the last handle takes this lock.
                drop(open_files);
                return Err(Error::AlreadyMapped { backing: backing.describe(), how });
            }
            // Its last handle is going: it syncs and unlocks the file.
            open_files = FILE_CLOSED.wait(open_files).unwrap_or_else(PoisonError::into_inner);
        }
        if !backing.try_lock().map_err(Error::system("locking the file"))? {
            return Err(Error::InUse { backing: backing.describe() });
        }
        let entry = Entry { identity, generation };
        let opened = Self::start(cache, backing, options, Some(entry));
        let opened = match opened {
            Ok(opened) => Arc::new(opened),
            Err((error, entry)) => {
                drop(open_files);
                drop(entry);
                return Err(error);
            }
        };
        open_files.insert(identity, OpenFile { opened: Arc::downgrade(&opened), generation });
        Ok(opened)
    }

    fn start(
        cache: &Cache,
        backing: Box<dyn Backing>,
        options: MappingOptions,
        entry: Option<Entry>,
    ) -> Result<Self, (Error, Option<Entry>)> {
        let core = Arc::clone(cache.core());
        if !core.shared.generation.is_current() {
            return Err((Error::Forked, entry));
        }
        let region = Region::new(Arc::clone(&core.shared), backing, options).map(Box::new);
        let region = region.and_then(|region| address_table::insert(&region).map(|()| region));
        match region {
            Ok(region) => {
                core.shared.mappings.fetch_add(1, Ordering::Relaxed);
                core.shared.mapped_bytes.fetch_add(region.len(), Ordering::Relaxed);
                Ok(OpenRegion { region, cache: core, closed: false, _entry: entry })
            }
            Err(error) => Err((error, entry)),
        }
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
        // All that is dirty, of whatever epoch: there is no sync after this one.
        let synced =
            if region.access == Access::ReadWrite { region.sync_pages(Some(0..region.pages())) } else { Ok(()) };
        let _signals = SignalsBlocked::new();
        {
            // Nobody evicts meanwhile; afterwards nobody finds a span of ours.
            let _gate = region.shared.eviction_gate.write().unwrap_or_else(PoisonError::into_inner);
            let ours = |span: &Span| std::ptr::eq(span.owner().0, std::ptr::from_ref(region).cast());
            region.shared.policy.forget(&ours);
            region.shared.eviction_queue.forget(&ours);
            region.shared.streams.forget(region);
        }
        address_table::remove(region);
        let (resident, dirty) = (0..region.spans())
            .map(|span| region.span(span))
            .fold((0, 0), |(resident, dirty), span| (resident + span.resident(), dirty + span.dirty()));
        region.shared.remove_dirty(dirty as usize);
        region.shared.eviction_queue.add_pages(-(region.hidden_pages() as i64));
        region.shared.release(resident, false);
        region.shared.mappings.fetch_sub(1, Ordering::Relaxed);
        region.shared.mapped_bytes.fetch_sub(region.len(), Ordering::Relaxed);
        // A forked child keeps the file open, and with it the lock that was taken before the fork.
        if let Err(error) = region.backing.unlock() {
            tracing::warn!(backing = region.backing.describe(), %error, "unlocking failed");
        }
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
