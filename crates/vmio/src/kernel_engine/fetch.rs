//! Bringing pages in by threads of the cache, in the background.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::fetch::{Failure, Outcome, THREADS, Urgency, start_pool};
use crate::error::Result;
use crate::kernel_engine::open_kernel::OpenKernel;

/// Pages that are brought in by one call: what is free is looked at in between.
const STEP_PAGES: u64 = 32;

impl OpenKernel {
    /// Has pages brought in by threads of the cache, for each of which the module reads a part.
    pub(super) fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        let core = &self.core;
        let pool = start_pool(&core.pool, &core.starting, core.module.generation())?;
        let parts = ranges.len().min(THREADS);
        let outcome = Arc::new(Outcome::of_parts(parts as u32));
        for part in 0..parts {
            let ranges: Vec<_> = ranges.iter().skip(part).step_by(parts).cloned().collect();
            // Not the open file, which must not be closed by one of these threads.
            let (region, module, outcome) = (Arc::clone(&self.region), Arc::clone(&core.module), Arc::clone(&outcome));
            region.fetches.begin();
            pool.run(move || {
                let has_room = || urgency == Urgency::Wanted || module.room_pages() > STEP_PAGES;
                let goes_on = |_: &Range<u64>| region.fetches.goes_on() && has_room();
                let steps = ranges.into_iter().flat_map(steps).take_while(goes_on);
                let failed = steps.filter_map(|step| region.populate(&step).err()).reduce(|first, _| first);
                region.fetches.end();
                drop(region);
                outcome.finish_part(failed.map(Failure::Error));
            });
        }
        Ok(outcome)
    }
}

fn steps(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = pages.end;
    pages.step_by(STEP_PAGES as usize).map(move |first| first..end.min(first + STEP_PAGES))
}
