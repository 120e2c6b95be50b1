//! Bringing pages in through the kernel, now or in the background.

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

/// Pages that one call brings in in the background. The budget is checked between calls.
const STEP_PAGES: u64 = 32;

impl ManagedRegion {
    /// Makes pages resident and mapped, so that they count and are evicted like any others.
    pub(super) fn fetch(&self, pages: Range<u64>) -> Result<()> {
        let bytes = bytes_of(&pages);
        if bytes.is_empty() {
            return Ok(());
        }
        // Single faults would read a page at a time. Read-ahead is a hint: the faults read what it has not read.
        if pages.end - pages.start > 1
            && let Err(error) = page_cache::read_ahead(self.file(), &bytes)
        {
            tracing::debug!(%error, "no read-ahead");
        }
        self.map.populate(&bytes).map_err(|error| self.read_error(&bytes, error))
    }

    /// Finds the page that cannot be read, and why, by reading: the kernel says only that some page is not available.
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
    /// Has threads of the cache bring pages in; each has the kernel read a part.
    pub(super) fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.core;
        let pool = start_pool(&core.pool, &core.starting, core.reclaimer.generation())?;
        Ok(pool.fetch_in_parts(&ranges, || {
            // The tasks do not own the open file: none of these threads may be the one that closes it.
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
