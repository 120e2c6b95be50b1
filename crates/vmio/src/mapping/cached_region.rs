//! A region of the cache while it is mapped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use vmio_core::page::span::Span;

use crate::backing::{Access, Backing, FileUser};
use crate::cache::CacheCore;
use crate::cache::call_holds::CallHolds;
use crate::cache::region::REGIONS;
use crate::cache::region::Region;
use crate::error::{Error, Result};
use crate::journal::JournaledBacking;
use crate::mapped_file::CacheIdentity;
use crate::mapped_file::opened::OpenRegion;
use crate::mapping::pinned_ranges::PinnedRanges;
use crate::options::MappingOptions;
use crate::sys::cpu;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;
use crate::telemetry::counters::Counter;

/// A region that its faults find in the table of mappings.
pub(crate) struct CachedRegion {
    pub(crate) region: Arc<Region>,
    /// Keeps the workers alive that write the region's pages.
    pub(crate) cache: Arc<CacheCore>,
    /// The ranges that the program has pinned. A copy of bytes in or out pins its page as well, for an instant, but is not noted
    /// here.
    pub(super) pinned: PinnedRanges,
}

impl CachedRegion {
    pub(super) fn start(
        cache: &Arc<CacheCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
    ) -> Result<CachedRegion> {
        let shared = &cache.shared;
        let region = Arc::new(Region::new(Arc::clone(shared), backing, options)?);
        let announce = || {
            if let Some(tenant) = &region.tenant {
                shared.add_tenant(tenant)?;
            }
            REGIONS
                .insert(region.table.range().addresses(), &region)
                .inspect_err(|_| region.tenant.iter().for_each(|tenant| shared.eviction.dismiss(tenant)))
                .map_err(Error::system("reserving the table of mappings"))
        };
        announce().inspect_err(|_| region.detach())?;
        if let Some(backing) = &region.journaled {
            if backing.commit_reserve_pages() < u64::from(shared.memory.capacity_pages()) {
                tracing::warn!(
                    backing = backing.describe(),
                    "the journal reserves less than the cache for commits: they fail if more is dirty than it has room for"
                );
            }
            backing.add_participant(Arc::clone(&region) as _);
        }
        region
            .backing
            .prefer_buffers(&[shared.reads.page_buffers.preferred(), shared.write_back.merge_buffers.addresses()]);
        shared.telemetry.mappings.fetch_add(1, Ordering::Relaxed);
        shared.telemetry.mapped_bytes.fetch_add(region.table.len(), Ordering::Relaxed);
        Ok(CachedRegion { pinned: PinnedRanges::none(shared.generation), region, cache: Arc::clone(cache) })
    }
}

impl Drop for CachedRegion {
    fn drop(&mut self) {
        // A forked child cannot shut the region down, but must take it out of its own table of mappings.
        if !self.generation().is_current() {
            self.region.forget_addresses();
        }
    }
}

impl OpenRegion for CachedRegion {
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
        self.region.shared.generation
    }

    fn belongs_to(&self, cache: CacheIdentity) -> bool {
        cache.is_of(&self.cache)
    }

    fn journaled(&self) -> Option<&JournaledBacking> {
        self.region.journaled.as_deref()
    }

    fn sync(&self) -> Result<()> {
        if self.region.journaled.is_some() { Ok(()) } else { self.region.sync_pages(None) }
    }

    fn shut_down(&self) -> Result<()> {
        let region = &*self.region;
        // Nobody waits for the requests that are left: a waiting thread would hold a handle.
        region.requests.end(&region.shared.reads.ended_requests);
        // The last sync has the stores of calls so far. Later ones find no page any more.
        let holds = region.call_holds();
        if let Some(holds) = holds {
            let _signals = SignalsBlocked::new();
            holds.leave(region);
        }
        // All dirty pages, of any epoch: this is the last sync.
        let synced = match &region.journaled {
            Some(backing) => {
                backing.withdraw();
                Ok(())
            }
            None if region.access == Access::ReadWrite => region.sync_pages(Some(0..region.table.pages())),
            None => Ok(()),
        };
        let _signals = SignalsBlocked::new();
        // Faults end first: one that a reader thread still handles may queue a span.
        REGIONS.remove(region.table.range().addresses(), region);
        holds.into_iter().for_each(CallHolds::pass);
        region.detach();
        // The backing may outlive the cache.
        region.backing.prefer_buffers(&[]);
        {
            // Nobody evicts meanwhile. Afterwards no evictor finds a span of this region.
            let mut tenants = region.shared.eviction.gate.write().unwrap_or_else(PoisonError::into_inner);
            let ours = |span: &Span| std::ptr::eq(span.region_and_number().0, std::ptr::from_ref(region).cast());
            region.order().forget(&ours);
            tenants.retain(|tenant| region.tenant.as_ref().is_none_or(|ours| !Arc::ptr_eq(ours, tenant)));
            region.shared.reads.streams.forget(region.reference());
        }
        let (resident, dirty) = (0..region.table.spans())
            .map(|span| region.table.span(span))
            .fold((0, 0), |(resident, dirty), span| (resident + span.resident(), dirty + span.dirty()));
        region.shared.write_back.remove_dirty(dirty as usize);
        region.leave_order();
        region.forget_residents();
        let table_pages = region.table_pages.load(Ordering::Relaxed);
        region.shared.memory.table_pages.fetch_sub(u64::from(table_pages), Ordering::Relaxed);
        region.shared.memory.release(resident + table_pages);
        region.shared.telemetry.mappings.fetch_sub(1, Ordering::Relaxed);
        region.shared.telemetry.mapped_bytes.fetch_sub(region.table.len(), Ordering::Relaxed);
        synced.map_err(Error::at_the_end)
    }

    fn count_drop_failure(&self) {
        self.region.shared.telemetry.count(cpu::current(), Counter::DropFailures, 1);
    }
}
