//! The DRAM budget: how many more pages may be resident. Counts only; whose frames they are is the engine's business.
//!
//! As FastMap's per-core free lists (§3.3): a core takes from its own share, refills it from the pool in batches, and
//! steals from the others when the pool is empty. Nothing is allocated or locked.
//!
//! The capacity may change. What a smaller one does not find free it owes, and whatever is given back repays that first.
//! At any time the pages that are free or taken are as many as the capacity and what is owed.

use std::ops::Deref;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU64, Ordering, between_seq_cst};

/// Free pages, spread over the cores, in words that others may look at.
pub(crate) struct Budget<W> {
    limit: CachePadded<AtomicU64>,
    pool: W,
    cores: Box<[W]>,
}

/// A page was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// From the core's own share.
    Local,
    /// From the pool, or from another core: time to look whether enough is left.
    Refilled,
}

/// How many pages there may be, and how many more there are. One word, since whoever reads both must not see a change
/// in one of them alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Pages that may be resident once nothing is owed.
    pub(crate) capacity: u32,
    /// Pages that are to go before any are given out again.
    pub(crate) owed: u32,
}

impl Limit {
    fn of(word: u64) -> Self {
        Limit { capacity: (word >> 32) as u32, owed: word as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.capacity) << 32 | u64::from(self.owed)
    }
}

impl<W: Deref<Target = AtomicU64>> Budget<W> {
    /// All `pages` free, in the pool. The words are zeros that nobody else changes, one for each core, 1 at least.
    pub(crate) fn new(pages: u32, pool: W, cores: Box<[W]>) -> Self {
        pool.store(u64::from(pages), Ordering::SeqCst);
        let limit = Limit { capacity: pages, owed: 0 };
        Budget { limit: CachePadded::new(AtomicU64::new(limit.word())), pool, cores }
    }

    /// Takes this many pages for the given core, all or none; `None` when not enough are free.
    pub(crate) fn take(&self, core: usize, pages: u32) -> Option<Taken> {
        let pages = u64::from(pages);
        let local = &self.cores[core % self.cores.len()];
        let mut held = take_up_to(local, pages);
        if held == pages {
            return Some(Taken::Local);
        }
        held += take_up_to(&self.pool, self.batch_pages().max(pages - held));
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
            self.repay_from_free();
        }
        Some(Taken::Refilled)
    }

    /// Gives pages back: to repay what is owed, then to the pool.
    pub(crate) fn release(&self, pages: u32) {
        let left = pages - self.repay(pages);
        if left > 0 {
            self.pool.fetch_add(u64::from(left), Ordering::SeqCst);
            self.repay_from_free();
        }
    }

    /// How many pages there may be, and what is owed.
    #[inline]
    pub(crate) fn limit(&self) -> Limit {
        Limit::of(self.limit.load(Ordering::SeqCst))
    }

    /// Changes the capacity. A larger one is free at once, as far as nothing was owed. Of a smaller one what is free now
    /// goes at once, and the rest is owed. One change at a time.
    pub(crate) fn resize(&self, capacity: u32) {
        let before = self.limit().capacity;
        if capacity < before {
            self.change_limit(|limit| Limit { capacity, owed: limit.owed + (before - capacity) });
            self.repay_from_free();
        } else {
            // In the limit first, so that never more are free than may be.
            let more = capacity - before;
            let limit = self.change_limit(|limit| Limit { capacity, owed: limit.owed.saturating_sub(more) });
            self.release(more.saturating_sub(limit.owed));
        }
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

    /// How many pages a core takes from the pool at a time.
    fn batch_pages(&self) -> u64 {
        (u64::from(self.limit().capacity) / (16 * self.cores.len() as u64)).clamp(1, 32)
    }

    /// Repays this many pages, or as many as are owed; returns how many.
    fn repay(&self, pages: u32) -> u32 {
        let before = self.change_limit(|limit| Limit { owed: limit.owed.saturating_sub(pages), ..limit });
        before.owed.min(pages)
    }

    /// Repays with free pages, until nothing is owed or nothing is free. A thread that frees some looks here afterwards, and
    /// whoever owes some looks for free ones: one of them sees the other.
    fn repay_from_free(&self) {
        loop {
            between_seq_cst();
            let owed = u64::from(self.limit().owed);
            if owed == 0 {
                return;
            }
            let words = [&self.pool].into_iter().chain(&self.cores);
            let taken = words.fold(0, |taken, word| taken + take_up_to(word, owed - taken)) as u32;
            if taken == 0 {
                return;
            }
            // Others may have repaid meanwhile.
            let left = taken - self.repay(taken);
            self.pool.fetch_add(u64::from(left), Ordering::SeqCst);
        }
    }

    /// Changes the limit, if that changes anything, and returns what it was.
    fn change_limit(&self, change: impl Fn(Limit) -> Limit) -> Limit {
        let mut before = self.limit();
        loop {
            let after = change(before);
            if after == before {
                return before;
            }
            match self.limit.compare_exchange_weak(before.word(), after.word(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return before,
                Err(seen) => before = Limit::of(seen),
            }
        }
    }
}

fn take_up_to(count: &AtomicU64, wanted: u64) -> u64 {
    let mut available = count.load(Ordering::SeqCst);
    while available > 0 && wanted > 0 {
        let taken = available.min(wanted);
        match count.compare_exchange_weak(available, available - taken, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return taken,
            Err(seen) => available = seen,
        }
    }
    0
}

#[cfg(test)]
fn budget_of_its_own(pages: u32, cores: usize) -> Budget<CachePadded<AtomicU64>> {
    let zero = || CachePadded::new(AtomicU64::new(0));
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

    #[test]
    fn what_a_smaller_budget_owes_is_repaid_before_anything_is_given_out() {
        let budget = budget_of_its_own(100, 2);
        assert!(budget.take(0, 1).is_some() && budget.take(1, 69).is_some());
        budget.resize(50);
        assert_eq!((budget.limit(), budget.free()), (Limit { capacity: 50, owed: 20 }, 0));
        budget.release(15);
        assert_eq!((budget.limit().owed, budget.free()), (5, 0));
        assert_eq!(budget.take(0, 1), None);
        budget.release(15);
        assert_eq!((budget.limit().owed, budget.free()), (0, 10));
        budget.resize(20);
        budget.resize(35);
        assert_eq!((budget.limit(), budget.free()), (Limit { capacity: 35, owed: 5 }, 0));
        budget.resize(45);
        assert_eq!((budget.limit(), budget.free()), (Limit { capacity: 45, owed: 0 }, 5));
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

    /// A thread makes the budget smaller and larger while another takes and gives back: what is free and taken is what
    /// the limit says, and nothing is free while something is owed.
    #[test]
    fn loom_budget_is_conserved_while_it_is_resized() {
        // The last thread to give back shows what is left free, and the last to take what is given out.
        for (capacities, takes_again) in [([0, 2], true), ([3, 0], false)] {
            loom::model(move || {
                let budget = Arc::new(budget_of_its_own(2, 1));
                let user = Arc::clone(&budget);
                let user = thread::spawn(move || {
                    if user.take(0, 1).is_none() {
                        return 0;
                    }
                    user.release(1);
                    u32::from(takes_again && user.take(0, 1).is_some())
                });
                capacities.into_iter().for_each(|capacity| budget.resize(capacity));
                let held = user.join().unwrap();
                let limit = budget.limit();
                assert_eq!(limit.capacity, capacities[1]);
                assert_eq!(budget.free() + held, limit.capacity + limit.owed);
                assert!(limit.owed == 0 || budget.free() == 0, "{} free: {limit:?}", budget.free());
            });
        }
    }
}
