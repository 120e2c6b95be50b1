//! Bringing pages in by threads of the cache, in the background.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::fetch::{Failure, Outcome, Urgency, start_pool, steps};
use crate::error::Result;
use crate::kernel_engine::open_kernel::OpenKernel;
use crate::kernel_engine::region::Fetching;

/// Pages that are brought in by one call: what is free is looked at in between.
const STEP_PAGES: u64 = 32;

impl OpenKernel {
    /// Has pages brought in by threads of the cache, for each of which the module reads a part.
    pub(super) fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.core;
        let pool = start_pool(&core.pool, &core.starting, core.module.generation())?;
        Ok(pool.fetch_in_parts(&ranges, || {
            // Not the open file, which must not be closed by one of these threads.
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
