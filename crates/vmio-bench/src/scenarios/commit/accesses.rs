//! What threads wait for that touch the pages of a commit while it is made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use vmio_measure::worker::new_histogram;

use super::CommitSpec;
use super::commits::Committer;
use super::records::Share;
use super::stores::{Session, Store};

/// The time from one access of a thread to its next. One that takes longer stands for those, too, that would have begun
/// meanwhile, and had to wait for the rest of it.
const INTERVAL: Duration = Duration::from_micros(100);

/// What was found while one thread committed the same pages again and again.
#[derive(Debug, Serialize, Deserialize)]
pub struct AccessesResult {
    pub(super) commits: u64,
    pub(super) commit_p50_us: f64,
    pub(super) loads: Waits,
    /// Nothing where a store is a transaction of its own.
    pub(super) stores: Option<Waits>,
    /// By vmio's own count, the longest that a commit has kept all stores waiting.
    pub(super) stores_held_us_max: Option<f64>,
}

/// How long accesses took.
#[derive(Debug, Serialize, Deserialize)]
pub struct Waits {
    pub(super) accesses: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
}

impl Waits {
    fn of(latencies: &Histogram<u64>) -> Self {
        let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            accesses: latencies.len(),
            p50_us: microseconds(0.5),
            p99_us: microseconds(0.99),
            p999_us: microseconds(0.999),
            max_us: latencies.max() as f64 / 1e3,
        }
    }
}

/// Commits changes of the same pages in a loop, while a thread loads from them and another one stores to them.
pub(super) fn measure<S: Store>(store: &S, spec: &CommitSpec, share: &mut Share) -> anyhow::Result<AccessesResult> {
    let pages = share.draw_pages(spec.pages as usize);
    let numbers: &[_] = &pages.iter().map(|page| share.page_number(*page)).collect::<Vec<_>>();
    let mut committer = Committer { session: store.session()?, share, latencies: new_histogram()? };
    committer.commit_for(spec.warm_up_secs, &pages)?;
    committer.latencies.reset();
    let loading = store.session()?;
    let storing = spec.store.has_plain_stores().then(|| store.session()).transpose()?;
    let over = &AtomicBool::new(false);
    let (loads, stores) = thread::scope(|scope| {
        let loads = scope.spawn(move || touch(loading, numbers, Access::Load, over));
        let stores = storing.map(|session| scope.spawn(move || touch(session, numbers, Access::Store, over)));
        let committed = committer.commit_for(spec.secs, &pages);
        over.store(true, Ordering::Relaxed);
        let waits = |thread: ScopedJoinHandle<'_, _>| thread.join().map_err(|_| anyhow!("a thread panicked"))?;
        let found = (waits(loads)?, stores.map(waits).transpose()?);
        committed.map(|()| found)
    })?;
    Ok(AccessesResult {
        commits: committer.latencies.len(),
        commit_p50_us: committer.latencies.value_at_quantile(0.5) as f64 / 1e3,
        loads,
        stores,
        stores_held_us_max: store.stores_held_us_max(),
    })
}

impl<T: Session> Committer<'_, T> {
    /// Commits changes of these pages of the share for that long, and once at least.
    fn commit_for(&mut self, secs: f64, pages: &[usize]) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(secs);
        loop {
            self.commit(pages)?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Access {
    Load,
    Store,
}

/// Touches one of the pages every [`INTERVAL`] until it is over, and once at least.
fn touch<T: Session>(mut session: T, pages: &[u64], access: Access, over: &AtomicBool) -> anyhow::Result<Waits> {
    let mut latencies = new_histogram()?;
    let mut random = SmallRng::seed_from_u64(access as u64);
    let mut due = Instant::now();
    loop {
        let page = pages[random.random_range(0..pages.len())];
        let start = Instant::now();
        match access {
            Access::Load => session.load(page)?,
            Access::Store => session.store(page)?,
        }
        let latency_ns = (start.elapsed().as_nanos() as u64).clamp(1, latencies.high());
        latencies.record_correct(latency_ns, INTERVAL.as_nanos() as u64)?;
        if over.load(Ordering::Relaxed) {
            return Ok(Waits::of(&latencies));
        }
        due = (due + INTERVAL).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
