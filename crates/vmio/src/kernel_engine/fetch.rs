//! Brings in pages by threads of the cache, in the background.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::fetch::{Failure, Outcome, Urgency, start_pool, steps};
use crate::error::Result;
use crate::kernel_engine::open_kernel::OpenKernel;
use crate::kernel_engine::region::Fetching;

/// Pages that one call brings in. Between calls the thread looks at the free memory.
const STEP_PAGES: u64 = 32;

impl OpenKernel {
    /// Has threads of the cache bring in pages; the module reads a part for each thread.
    pub(super) fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.core;
        let pool = start_pool(&core.pool, &core.starting, core.module.generation())?;
        Ok(pool.fetch_in_parts(&ranges, || {
            // Holds the region, not the open file: none of these threads may close the file.
            let (fetching, module) = (Fetching::begin(&self.region), Arc::clone(&core.module));
            move |ranges| {
                let has_room = || urgency == Urgency::Wanted || module.room_pages() > STEP_PAGES;
                let goes_on = |_: &Range<u64>| fetching.goes_on() && has_room();
                let steps = steps(ranges, STEP_PAGES).take_while(goes_on);
                let fetch = |step| fetching.region().populate(&step).err();
                steps.filter_map(fetch).reduce(|first, _| first).map(Failure::Error)
            }
        }))
    }
}
