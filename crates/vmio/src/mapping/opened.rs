//! The life of an open region, from the first handle to the last.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::backing::{Access, Backing};
use crate::cache::address_table;
use crate::cache::counters::Counter;
use crate::cache::region::Region;
use crate::cache::{Cache, CacheCore};
use crate::error::{Error, Result};
use crate::mapping::mapped_file::OpenedFile;
use crate::mapping::open_files::{self, Entry, Opening};
use crate::mapping::options::MappingOptions;
use crate::page::span::Span;
use crate::sys::cpu;
use crate::sys::signal::SignalsBlocked;

/// A region in use. Dropping the last reference syncs and unmaps it.
pub(crate) struct OpenRegion {
    // Dropped in this order: the file is unlocked before its entry goes.
    pub(crate) region: Box<Region>,
    /// Keeps the workers alive that write the region's pages.
    pub(crate) cache: Arc<CacheCore>,
    closed: bool,
    _entry: Option<Entry>,
}

impl OpenRegion {
    /// The region of a backing: the one that is open already if the process maps the file, else a new one.
    pub(crate) fn open(
        cache: &Cache,
        core: &Arc<CacheCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
    ) -> Result<Arc<Self>> {
        open_files::open(cache, backing, options, |backing, options, entry| Self::start(core, backing, options, entry))
    }

    fn start(
        core: &Arc<CacheCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
        entry: Option<Entry>,
    ) -> Opening<Self> {
        let core = Arc::clone(core);
        if !core.shared.generation.is_current() {
            return Err((Error::Forked, entry));
        }
        if entry.is_some() {
            match backing.try_lock() {
                Ok(true) => {}
                Ok(false) => return Err((Error::InUse { backing: backing.describe() }, entry)),
                Err(source) => return Err((Error::System { operation: "locking the file", source }, entry)),
            }
        }
        let region = Region::new(Arc::clone(&core.shared), backing, options).map(Box::new);
        let region = region.and_then(|region| address_table::insert(region.range(), &region).map(|()| region));
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
        // First the faults: one that a reader thread still has in hand may yet queue a span.
        address_table::remove(region.range());
        region.detach();
        {
            // Nobody evicts meanwhile; afterwards nobody finds a span of ours.
            let _gate = region.shared.eviction_gate.write().unwrap_or_else(PoisonError::into_inner);
            let ours = |span: &Span| std::ptr::eq(span.owner().0, std::ptr::from_ref(region).cast());
            region.shared.policy.forget(&ours);
            region.shared.eviction_queue.forget(&ours);
            region.shared.streams.forget(region);
        }
        let (resident, dirty) = (0..region.spans())
            .map(|span| region.span(span))
            .fold((0, 0), |(resident, dirty), span| (resident + span.resident(), dirty + span.dirty()));
        region.shared.remove_dirty(dirty as usize);
        region.shared.eviction_queue.add_pages(-(region.hidden_pages() as i64));
        let table_pages = region.table_pages.load(Ordering::Relaxed);
        region.shared.table_pages.fetch_sub(u64::from(table_pages), Ordering::Relaxed);
        region.shared.release(resident + table_pages, false);
        region.shared.mappings.fetch_sub(1, Ordering::Relaxed);
        region.shared.mapped_bytes.fetch_sub(region.len(), Ordering::Relaxed);
        // A forked child keeps the file open, and with it the lock that was taken before the fork.
        if let Err(error) = region.backing.unlock() {
            tracing::warn!(backing = region.backing.describe(), %error, "unlocking failed");
        }
        synced
    }
}

impl OpenedFile for OpenRegion {
    fn belongs_to(&self, cache: &Cache) -> bool {
        cache.is_of_core(&self.cache)
    }

    fn access(&self) -> Access {
        self.region.access
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
