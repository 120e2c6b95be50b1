//! A mapping whose faults vmio handles: the handle to a region of the cache.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::backing::{Access, Backing};
use crate::cache::CacheCore;
use crate::cache::fetch::{Failure, Outcome, Urgency};
use crate::cache::region::Region;
use crate::error::{Error, Result};
use crate::journal::JournaledBacking;
use crate::mapped_file::open_files;
use crate::mapped_file::opened::Opened;
use crate::mapped_file::{Advice, CacheIdentity, SyncHandle, Usage};
use crate::mapped_file::{GUESSED_SHARE, HeldPages, MappedFile, OpenedFile, ViewAddresses, touched_pages};
use crate::mapping::cached_region::CachedRegion;
use crate::mapping::view::CachedView;
use crate::options::MappingOptions;
use crate::sys::PAGE_BYTES;

/// A handle to a region of the cache. Its methods stand beside the public ones of the same kind, in the files of this folder.
#[derive(Clone)]
pub(crate) struct CachedFile {
    pub(super) opened: Arc<Opened<CachedRegion>>,
}

impl CachedFile {
    pub(crate) fn open(core: &Arc<CacheCore>, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let identity = CacheIdentity::of(core, core.shared.generation);
        let start = |backing, options| CachedRegion::start(core, backing, options);
        Ok(CachedFile { opened: open_files::open(Some(identity), backing, options, start)? })
    }

    #[inline]
    pub(super) fn region(&self) -> &Region {
        &self.opened.region
    }

    /// Syncs and, if this is the last handle, unmaps.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()
    }

    /// Calls `each` for every page of a range, with its number, the address of the range's part in it, and the place of that part
    /// in the caller's buffer.
    fn in_pages(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, &Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let in_page = PAGE_BYTES - at as usize % PAGE_BYTES;
            let part = done..len.min(done + in_page);
            each(at / PAGE_BYTES as u64, self.base() as usize + at as usize, &part)?;
            done = part.end;
        }
        Ok(())
    }
}

impl MappedFile for CachedFile {
    fn base(&self) -> *mut u8 {
        self.region().table.base()
    }

    fn len(&self) -> u64 {
        self.region().table.len()
    }

    fn opened(&self) -> &dyn OpenedFile {
        &*self.opened
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.in_pages(offset, buffer.len(), |page, source, at| {
            let pin = self.pin_page(page, Access::ReadOnly)?;
            for (byte, at) in buffer[at.clone()].iter_mut().zip(source..) {
                // SAFETY: the byte lies in a pinned page of the mapping; all safe accesses to it are atomic.
                *byte = unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::Relaxed);
            }
            drop(pin);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.in_pages(offset, data.len(), |page, target, at| {
            let pin = self.pin_page_for_store(page)?;
            for (byte, at) in data[at.clone()].iter().zip(target..) {
                // SAFETY: the byte lies in a pinned page of the mapping; all safe accesses to it are atomic. Should the page be
                // protected again by now, the store traps like any other.
                unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(*byte, Ordering::Relaxed);
            }
            drop(pin);
            Ok(())
        })
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        self.take_advice(range, advice)
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        Ok(Box::new(self.pin_for_user(pages, access, 0)?))
    }

    fn open_view(&self) -> Result<Arc<dyn ViewAddresses>> {
        Ok(Arc::new(CachedView::open(self)?))
    }

    fn ensure(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        region.ensure(pages).map_err(|(page, failure)| failure.into_error(region, page))
    }

    fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.opened.cache;
        let region = self.region();
        let whole_units = |pages: Range<u64>| match pages.is_empty() {
            true => pages,
            false => {
                let end = region.table.unit.around(pages.end - 1).end;
                region.table.unit.around(pages.start).start..end.min(region.table.pages()).max(pages.end)
            }
        };
        let ranges = ranges.into_iter().map(whole_units).collect();
        core.fetchers.fetch(&core.shared, self.region(), ranges, urgency)
    }

    fn fetch_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Page(page, why) => why.into_error(self.region(), page),
            Failure::Error(error) => error,
        }
    }

    fn guesses_max(&self) -> u64 {
        u64::from(self.region().shared.memory.capacity_pages()) / GUESSED_SHARE
    }

    fn for_each_resident(&self, pages: Range<u64>, each: &mut dyn FnMut(u64)) {
        pages.filter(|page| self.region().table.has_page(*page)).for_each(each);
    }

    fn usage(&self) -> Usage {
        let region = self.region();
        let table_pages = region.table_pages.load(Ordering::Relaxed).into();
        let resident_pages = match &region.tenant {
            Some(tenant) => u64::from(tenant.pages()).saturating_sub(table_pages),
            None => (0..region.table.spans()).map(|span| u64::from(region.table.span(span).resident())).sum(),
        };
        Usage { resident_pages, table_pages }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.resize(len)
    }

    fn sync(&self, part: Option<Range<u64>>) -> Result<()> {
        match self.journaled() {
            Some(backing) => backing.commit().map(drop),
            None => self.region().sync_pages(part.map(|bytes| touched_pages(&bytes))),
        }
    }

    fn sync_begin(&self) -> Result<SyncHandle> {
        match self.journaled() {
            Some(_) => self.commit_in_background(),
            None => self.sync_in_background(),
        }
    }

    fn journaled(&self) -> Option<&Arc<JournaledBacking>> {
        self.region().journaled.as_ref()
    }

    fn take_read_error(&self) -> Option<Error> {
        let failure = self.region().read_failures.take_first();
        failure.map(|(page, failure)| self.region().read_error(page, failure))
    }
}
