//! Bringing pages in: by the kernel, now or in the background.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::cache::fetch::{Failure, Outcome, Urgency, start_pool, steps};
use crate::error::{Error, Result};
use crate::managed::open_managed::OpenManaged;
use crate::managed::region::ManagedRegion;
use crate::mapped_file::bytes_of;
use crate::sys::{PAGE_BYTES, page_cache};

/// Pages that are brought in by one call in the background: the budget is looked at in between.
const STEP_PAGES: u64 = 32;

impl ManagedRegion {
    /// Makes pages resident and mapped, so that they count and are given up like any others.
    pub(super) fn fetch(&self, pages: Range<u64>) -> Result<()> {
        let bytes = bytes_of(&pages);
        if bytes.is_empty() {
            return Ok(());
        }
        // One by one, faults would read a page at a time. It is a hint: the faults read what it has not.
        if pages.end - pages.start > 1
            && let Err(error) = page_cache::read_ahead(self.file(), &bytes)
        {
            tracing::debug!(%error, "no read-ahead");
        }
        self.map.populate(&bytes).map_err(|error| self.read_error(&bytes, error))
    }

    /// The kernel says only that some page is not available: a read tells which one, and why.
    fn read_error(&self, bytes: &Range<u64>, error: io::Error) -> Error {
        let mut page = [0; PAGE_BYTES];
        let mut fails = |offset: &u64| match self.file.read_at(&mut page, *offset) {
            Ok(_) => None,
            Err(source) => Some((*offset, source)),
        };
        let starts = bytes.clone().step_by(PAGE_BYTES);
        let (offset, source) = starts.into_iter().find_map(|offset| fails(&offset)).unwrap_or((bytes.start, error));
        Error::Read { backing: self.backing.describe(), offset, source }
    }
}

impl OpenManaged {
    /// Has pages brought in by threads of the cache, for each of which the kernel reads a part.
    pub(super) fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.core;
        let pool = start_pool(&core.pool, &core.starting, core.reclaimer.generation())?;
        Ok(pool.fetch_in_parts(&ranges, || {
            // Not the open file, which must not be closed by one of these threads.
            let (region, reclaimer) = (Arc::clone(&self.region), Arc::clone(&core.reclaimer));
            move |ranges| {
                let has_room = |_: &Range<u64>| urgency == Urgency::Wanted || reclaimer.room_pages() > STEP_PAGES;
                let fetch = |step| {
                    reclaimer.make_room().map_err(Error::system("giving up pages"))?;
                    region.fetch(step)
                };
                let steps = steps(ranges, STEP_PAGES).take_while(has_room);
                steps.filter_map(|step| fetch(step).err()).reduce(|first, _| first).map(Failure::Error)
            }
        }))
    }
}
