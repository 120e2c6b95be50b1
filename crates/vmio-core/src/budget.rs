//! The DRAM budget: how many more pages may be resident. The budget only counts pages; the engine owns their frames.
//!
//! Like FastMap's per-core free lists (§3.3): a core takes pages from its own share, refills the share from the pool in
//! batches, and steals from other cores when the pool is empty. No operation allocates or locks.
//!
//! The capacity may change. A smaller capacity takes free pages away at once, and the rest is owed. Pages that come
//! back repay what is owed first. At any time the free and the taken pages add up to the capacity plus what is owed.

use std::ops::Deref;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU64, Ordering, seq_cst_fence_for_loom};

/// Free pages, spread over the cores. The words may lie in a stat page, which other processes read.
pub struct Budget<W> {
    limit: CachePadded<AtomicU64>,
    pool: W,
    cores: Box<[W]>,
}

/// Where taken pages came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// From the core's own share.
    Local,
    /// From the pool, or from another core. The caller then checks whether enough pages are left.
    Refilled,
}

/// The capacity, and the pages owed beyond it. One word holds both, so that a reader never sees a change of only one of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Pages that may be resident once nothing is owed.
    pub capacity: u32,
    /// Pages that must come back before any page is given out again.
    pub owed: u32,
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
    /// A budget with all `pages` free, in the pool. There is one word for each core, at least one. All words are zero,
    /// and nobody else changes them.
    #[inline]
    pub fn new(pages: u32, pool: W, cores: Box<[W]>) -> Self {
        pool.store(u64::from(pages), Ordering::SeqCst);
        let limit = Limit { capacity: pages, owed: 0 };
        Budget { limit: CachePadded::new(AtomicU64::new(limit.word())), pool, cores }
    }

    /// Takes this many pages for the given core, all or none. Returns `None` if not enough are free.
    #[inline]
    pub fn take(&self, core: usize, pages: u32) -> Option<Taken> {
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
            // In the pool, every core finds them.
            self.release(held as u32);
            return None;
        }
        if held > pages {
            local.fetch_add(held - pages, Ordering::SeqCst);
            self.repay_from_free();
        }
        Some(Taken::Refilled)
    }

    /// Gives pages back: first to repay owed pages, then to the pool.
    #[inline]
    pub fn release(&self, pages: u32) {
        let left = pages - self.repay(pages);
        if left > 0 {
            self.pool.fetch_add(u64::from(left), Ordering::SeqCst);
            self.repay_from_free();
        }
    }

    /// The capacity, and the owed pages.
    #[inline]
    pub fn limit(&self) -> Limit {
        Limit::of(self.limit.load(Ordering::SeqCst))
    }

    /// Changes the capacity. Growth first cancels owed pages; the rest is free at once. Shrinking removes free pages at
    /// once and owes the rest. One change at a time.
    #[inline]
    pub fn resize(&self, capacity: u32) {
        let before = self.limit().capacity;
        if capacity < before {
            self.change_limit(|limit| Limit { capacity, owed: limit.owed + (before - capacity) });
            self.repay_from_free();
        } else {
            // The limit grows first, so that there are never more free pages than the limit allows.
            let more = capacity - before;
            let limit = self.change_limit(|limit| Limit { capacity, owed: limit.owed.saturating_sub(more) });
            self.release(more.saturating_sub(limit.owed));
        }
    }

    /// Pages that are free now.
    #[inline]
    pub fn free(&self) -> u32 {
        let of_cores: u64 = self.cores.iter().map(|core| core.load(Ordering::SeqCst)).sum();
        (of_cores + self.pool.load(Ordering::SeqCst)) as u32
    }

    /// Pages free in the pool alone: one load, never more than [`Self::free`].
    #[inline]
    pub fn pooled(&self) -> u32 {
        self.pool.load(Ordering::Relaxed) as u32
    }

    /// How many pages a core takes from the pool at a time.
    fn batch_pages(&self) -> u64 {
        (u64::from(self.limit().capacity) / (16 * self.cores.len() as u64)).clamp(1, 32)
    }

    /// Repays up to this many owed pages; returns how many.
    fn repay(&self, pages: u32) -> u32 {
        let before = self.change_limit(|limit| Limit { owed: limit.owed.saturating_sub(pages), ..limit });
        before.owed.min(pages)
    }

    /// Repays owed pages with free pages, until none is owed or none is free. A thread that frees pages then looks for
    /// owed ones, and a thread that owes pages then looks for free ones: one of the two sees the other.
    fn repay_from_free(&self) {
        loop {
            seq_cst_fence_for_loom();
            let owed = u64::from(self.limit().owed);
            if owed == 0 {
                return;
            }
            let words = [&self.pool].into_iter().chain(&self.cores);
            let taken = words.fold(0, |taken, word| taken + take_up_to(word, owed - taken)) as u32;
            if taken == 0 {
                return;
            }
            // Other threads may have repaid meanwhile.
            let left = taken - self.repay(taken);
            self.pool.fetch_add(u64::from(left), Ordering::SeqCst);
        }
    }

    /// Changes the limit, if that changes anything, and returns the limit before.
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

    /// The sum of free and taken pages is constant in every interleaving: no page is taken twice, and none is lost.
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

    /// One thread resizes the budget while another takes and gives back. The free and the taken pages add up to the
    /// limit, and no page is free while pages are owed.
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
