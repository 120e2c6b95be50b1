//! Asynchronous misses: pages fetched by threads of the cache, through io_uring where it is available.
//!
//! A [`request::Request`] is some pages of a region. A request for one page goes to [`caller_reads`], if the caller can begin the
//! read itself. Other requests go to a [`RingFetcher`], which has many reads under way at a time. If the region cannot be read
//! through a ring, they go to a [`Pool`], whose threads do what a fault would. An [`Outcome`] tells the future that waits.
//!
//! docs/design/asynchronous-misses.md says why it is so.

mod caller_reads;
mod claim;
mod door;
mod outcome;
mod pool;
mod read_buffers;
mod request;
mod ring_fetcher;

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub(crate) use outcome::{Failure, Outcome};
pub(crate) use pool::Pool;
use pool::THREADS;
pub(crate) use request::{FetchedRegion, Urgency};

use crate::cache::fault_error::FaultError;
use crate::cache::fetch::request::Request;
use crate::cache::fetch::ring_fetcher::RingFetcher;
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::error::{Error, Result};
use crate::sys::cpu;
use crate::sys::mpsc_queue::{LocalQueue, MpscQueue};

/// At most this many rings, however many cores there are.
const RINGS_MAX: usize = 16;

/// The threads that fetch pages of a cache. None runs before the first fetch.
#[derive(Default)]
pub(crate) struct Fetchers {
    /// A ring for each core; none if there can be no io_uring.
    rings: OnceLock<Box<[RingFetcher]>>,
    pool: OnceLock<Pool>,
    starting: Mutex<()>,
    /// Finished requests. Threads that make new ones free them, since the fetchers must not.
    spent: Arc<MpscQueue<Request>>,
}

impl Fetchers {
    /// Fetches whole ranges of pages of a region to which the caller has a handle.
    pub(crate) fn fetch(
        &self,
        shared: &Arc<Shared>,
        region: &Region,
        ranges: Vec<Range<u64>>,
        urgency: Urgency,
    ) -> Result<Arc<Outcome>> {
        drop(self.take_spent());
        let takes_rings = region.backing.direct_reads().is_some() && !region.views.shares_addresses;
        let rings = if takes_rings { self.rings(shared) } else { &[] };
        if !rings.is_empty() {
            let outcome = Arc::new(Outcome::of_parts(1));
            let told = (urgency == Urgency::Wanted).then(|| Arc::clone(&outcome));
            let request = Request::new(FetchedRegion::new(region), ranges, urgency, told);
            rings[cpu::current() % rings.len()].submit(region, request);
            return Ok(outcome);
        }
        Ok(self.pool(shared)?.fetch_in_parts(&ranges, || {
            let region = FetchedRegion::new(region);
            move |ranges| ensure_ranges(&region, ranges, urgency)
        }))
    }

    fn take_spent(&self) -> LocalQueue<Request> {
        let mut spent = LocalQueue::default();
        self.spent.take_all(&mut spent);
        spent
    }

    fn rings(&self, shared: &Arc<Shared>) -> &[RingFetcher] {
        if let Some(rings) = self.rings.get() {
            return rings;
        }
        let _one_at_a_time = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.get_or_init(|| {
            let cores = if shared.reads.use_io_uring { cpu::count().min(RINGS_MAX) } else { 0 };
            let mut rings = Vec::new();
            let start = |_| RingFetcher::start(shared, shared.pages_in_flight(), &self.spent);
            match (0..cores).map(start).try_for_each(|ring| ring.map(|ring| rings.push(ring))) {
                Ok(()) => rings.into(),
                Err(error) => {
                    rings.into_iter().for_each(RingFetcher::stop);
                    tracing::warn!(%error, "no io_uring: pages are fetched by {THREADS} threads, a read each at a time");
                    Box::default()
                }
            }
        })
    }

    fn pool(&self, shared: &Shared) -> Result<&Pool> {
        start_pool(&self.pool, &self.starting, shared.generation)
    }

    /// Ends all threads; in a forked child, forgets them. No request is left.
    pub(crate) fn stop(&mut self, is_parent: bool) {
        // Dropping the pool ends its threads.
        self.pool.take();
        let rings = self.rings.take().into_iter().flatten();
        // In a forked child there are no such threads.
        rings.filter(|_| is_parent).for_each(RingFetcher::stop);
    }
}

/// The pool, started if it does not run yet.
pub(crate) fn start_pool<'a>(
    pool: &'a OnceLock<Pool>,
    starting: &Mutex<()>,
    generation: crate::sys::fork::Generation,
) -> Result<&'a Pool> {
    if let Some(pool) = pool.get() {
        return Ok(pool);
    }
    let _one_at_a_time = starting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pool.get() {
        return Ok(pool);
    }
    let started = Pool::start(generation).map_err(Error::system("starting threads that fetch pages"))?;
    Ok(pool.get_or_init(|| started))
}

/// Splits ranges into steps of at most `step_pages` pages. Between steps, the fetching thread looks whether to go on.
pub(crate) fn steps(ranges: Vec<Range<u64>>, step_pages: u64) -> impl Iterator<Item = Range<u64>> {
    ranges.into_iter().flat_map(move |pages| {
        let end = pages.end;
        pages.step_by(step_pages as usize).map(move |first| first..end.min(first + step_pages))
    })
}

/// The work of a pool's thread, which brings pages in as faults would.
fn ensure_ranges(region: &FetchedRegion, ranges: Vec<Range<u64>>, urgency: Urgency) -> Option<Failure> {
    let shared = &region.shared;
    let has_free =
        || shared.memory.budget.free() > shared.memory.watermarks().low / 2 && region.at_ceiling(1).is_none();
    let has_room = || urgency == Urgency::Wanted || has_free();
    let goes_on = || !region.is_closing() && has_room();
    let mut failed = None;
    for mut range in ranges {
        while let Err((page, why)) = region.ensure_while(range.clone(), goes_on) {
            failed = failed.or(Some((page, why)));
            // Pages behind an unreadable one may be readable. After another failure there will be no more room for them.
            range.start = if matches!(why, FaultError::Unreadable(_)) { page + 1 } else { range.end };
        }
    }
    failed.map(|(page, why)| Failure::Page(page, why))
}
