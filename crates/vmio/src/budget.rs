//! The DRAM budget: how many more pages may be resident. Counts only; whose frames they are is the engine's business.
//!
//! As FastMap's per-core free lists (§3.3): a core takes from its own share, refills it from the pool in batches, and
//! steals from the others when the pool is empty. Nothing is allocated or locked.

use std::ops::Deref;

use crate::atomic::{AtomicU64, Ordering};

/// Free pages, spread over the cores, in words that others may look at.
pub(crate) struct Budget<W> {
    pool: W,
    cores: Box<[W]>,
    batch_pages: u64,
}

/// A page was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// From the core's own share.
    Local,
    /// From the pool, or from another core: time to look whether enough is left.
    Refilled,
}

impl<W: Deref<Target = AtomicU64>> Budget<W> {
    /// All `pages` free, in the pool. The words are zeros that nobody else changes, one for each core, 1 at least.
    pub(crate) fn new(pages: u32, pool: W, cores: Box<[W]>) -> Self {
        let batch_pages = (u64::from(pages) / (16 * cores.len() as u64)).clamp(1, 32);
        pool.store(u64::from(pages), Ordering::SeqCst);
        Budget { pool, cores, batch_pages }
    }

    /// Takes so many pages for the given core, all or none; `None` when not enough are free.
    pub(crate) fn take(&self, core: usize, pages: u32) -> Option<Taken> {
        let pages = u64::from(pages);
        let local = &self.cores[core % self.cores.len()];
        let mut held = take_up_to(local, pages);
        if held == pages {
            return Some(Taken::Local);
        }
        held += take_up_to(&self.pool, self.batch_pages.max(pages - held));
        let others = self.cores.len();
        let mut step = 1;
        while held < pages && step < others {
            held += take_up_to(&self.cores[(core + step) % others], pages - held);
            step += 1;
        }
        if held < pages {
            // To where everybody finds them.
            self.release(held as u32);
            return None;
        }
        if held > pages {
            local.fetch_add(held - pages, Ordering::SeqCst);
        }
        Some(Taken::Refilled)
    }

    /// Gives pages back.
    pub(crate) fn release(&self, pages: u32) {
        self.pool.fetch_add(u64::from(pages), Ordering::SeqCst);
    }

    /// Pages that are free now.
    pub(crate) fn free(&self) -> u32 {
        let of_cores: u64 = self.cores.iter().map(|core| core.load(Ordering::SeqCst)).sum();
        (of_cores + self.pool.load(Ordering::SeqCst)) as u32
    }

    /// Pages free in the pool alone: one load, never more than [`Self::free`].
    pub(crate) fn pooled(&self) -> u32 {
        self.pool.load(Ordering::Relaxed) as u32
    }
}

fn take_up_to(count: &AtomicU64, wanted: u64) -> u64 {
    let mut available = count.load(Ordering::SeqCst);
    while available > 0 {
        let taken = available.min(wanted);
        match count.compare_exchange_weak(available, available - taken, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return taken,
            Err(seen) => available = seen,
        }
    }
    0
}

#[cfg(test)]
fn budget_of_its_own(pages: u32, cores: usize) -> Budget<crossbeam_utils::CachePadded<AtomicU64>> {
    let zero = || crossbeam_utils::CachePadded::new(AtomicU64::new(0));
    Budget::new(pages, zero(), (0..cores).map(|_| zero()).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_taken_once_from_any_core() {
        let budget = budget_of_its_own(100, 3);
        let taken = (0..).take_while(|core| budget.take(*core, 1).is_some()).count();
        assert_eq!(taken, 100);
        assert_eq!(budget.free(), 0);
        budget.release(2);
        assert_eq!(budget.take(7, 3), None);
        assert_eq!(budget.free(), 2);
        assert_eq!(budget.take(7, 2), Some(Taken::Refilled));
        assert_eq!(budget.free(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Never more taken than there are, none lost: the sum of free and taken is constant in every interleaving.
    #[test]
    fn loom_budget_is_conserved() {
        loom::model(|| {
            let budget = Arc::new(budget_of_its_own(2, 2));
            let threads: Vec<_> = (0..2)
                .map(|core| {
                    let budget = Arc::clone(&budget);
                    thread::spawn(move || {
                        let mut held = 0;
                        if budget.take(core, 1).is_some() {
                            held += 1;
                        }
                        if core == 0 && held == 1 {
                            budget.release(1);
                            held -= 1;
                        }
                        if budget.take(core, 1).is_some() {
                            held += 1;
                        }
                        held
                    })
                })
                .collect();
            let held: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(budget.free() + held, 2);
        });
    }
}
