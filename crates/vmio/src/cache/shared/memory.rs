//! The memory of a cache: its capacity, the pages that are free, and the threads that wait for one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vmio_core::budget::Budget;
use vmio_core::futex;

use crate::cache::overhead::Overhead;
use crate::telemetry::layout::Gauge;
use crate::telemetry::page::{PublishedWord, StatPage};

/// A span that has just lost its last page keeps its page tables and words for a round: most likely a page comes back
/// before then. It does so while all tables take no more than one page in this many of the cache.
pub(crate) const KEPT_SHARE: u32 = 16;

/// The pages that a cache may have in memory, and their uses beside the contents of files.
pub(crate) struct Memory {
    pub(crate) budget: Budget<PublishedWord>,
    /// The capacity, as other processes see it.
    published_capacity: PublishedWord,
    /// The memory that the cache uses for itself, beside these pages.
    pub(crate) overhead: Overhead,
    /// Held by a thread while it changes the capacity, or promises some of it to a floor.
    pub(crate) resizing: Mutex<()>,
    /// Pages of the budget that page tables and page words take.
    pub(crate) table_pages: PublishedWord,
    pub(crate) pinned_pages: PublishedWord,
    freed: AtomicU32,
    freed_waiters: AtomicU32,
}

/// The numbers of free pages at which the reserve is refilled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    /// With fewer free pages, the workers start to evict.
    pub(crate) low: u32,
    /// With this many free pages, the workers stop.
    pub(crate) high: u32,
    /// With fewer free pages in the pool, a faulting thread writes one run itself, which slows all threads evenly.
    pub(crate) help: u32,
}

impl Watermarks {
    /// The reserve lasts until a worker gets a core, which takes a few ms. Refills are long, and so few that they do
    /// not show in the latency of 999 of 1000 accesses.
    #[inline]
    fn of(capacity_pages: u32) -> Self {
        let low = (capacity_pages / 64).clamp(16, 16 * 1024);
        Watermarks { low, high: 2 * low, help: low / 4 }
    }
}

/// A part of the cache, in pages.
#[inline]
pub(crate) fn share(capacity_pages: u32, ratio: f64) -> u32 {
    (f64::from(capacity_pages) * ratio) as u32
}

/// The most pages of a cache that pins may hold; the rest is for pages that the program touches.
pub(crate) fn pinned_pages_max(capacity_pages: u32) -> u64 {
    u64::from(capacity_pages / 4 * 3)
}

/// The smallest capacity at which pins may hold this many pages.
pub(crate) fn capacity_for_pins(pinned_pages: u64) -> u64 {
    pinned_pages.div_ceil(3) * 4
}

/// A reason to pin pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Any,
    /// A system call that may wait for ever. Such calls leave pins to others, however many of them there are.
    WaitingCall,
}

impl Purpose {
    /// Of calls that wait, each leaves as many pages as it takes, and all of them this part of the limit.
    const SPARE_PART: u64 = 16;

    /// How many pages are pinned with these; `None` if that is too many.
    pub(crate) fn taken(self, before: u64, pages: u64, limit: u64) -> Option<u64> {
        let spare = match self {
            Purpose::Any => 0,
            Purpose::WaitingCall => pages.max(limit / Self::SPARE_PART),
        };
        let after = before.checked_add(pages)?;
        (after.checked_add(spare)? <= limit).then_some(after)
    }
}

impl Memory {
    /// All pages free, counted in the stat page.
    pub(super) fn new(page: &Arc<StatPage>, capacity_pages: u32, overhead: Overhead) -> Self {
        let free_pages = (0..page.cores()).map(|core| page.free_pages(core)).collect();
        Memory {
            budget: Budget::new(capacity_pages, page.gauge(Gauge::PooledPages), free_pages),
            published_capacity: page.capacity_pages(),
            overhead,
            resizing: Mutex::new(()),
            table_pages: page.gauge(Gauge::TablePages),
            pinned_pages: page.gauge(Gauge::PinnedPages),
            freed: AtomicU32::new(0),
            freed_waiters: AtomicU32::new(0),
        }
    }

    // ---- the capacity, and what follows from it

    /// Pages that may be resident.
    #[inline]
    pub(crate) fn capacity_pages(&self) -> u32 {
        self.budget.limit().capacity
    }

    /// When the workers act, at the present capacity.
    #[inline]
    pub(crate) fn watermarks(&self) -> Watermarks {
        Watermarks::of(self.capacity_pages())
    }

    /// Whether pages are owed. If they are, a thread that finds no free page may yet get one: the thread that shrinks
    /// the cache either repays the pages or gives up.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.budget.limit().owed > 0
    }

    /// The most pages that pins may hold at the present capacity.
    pub(crate) fn pinned_pages_max(&self) -> u64 {
        pinned_pages_max(self.capacity_pages())
    }

    /// Whether pins hold more pages than a capacity allows.
    pub(crate) fn has_too_many_pins_for(&self, capacity_pages: u32) -> bool {
        self.pinned_pages.load(Ordering::SeqCst) > pinned_pages_max(capacity_pages)
    }

    /// Whether page tables and page words take so much of the cache that empty spans do not keep theirs.
    pub(crate) fn is_sparse(&self) -> bool {
        self.table_pages.load(Ordering::Relaxed) > u64::from(self.capacity_pages() / KEPT_SHARE)
    }

    /// Changes the capacity; [`Budget::resize`] says how. The caller holds the lock on resizing.
    pub(super) fn set_capacity(&self, pages: u32) {
        self.budget.resize(pages);
        self.published_capacity.store(u64::from(pages), Ordering::Relaxed);
    }

    // ---- freed pages

    /// Gives back the budget of pages that did not come in, and wakes the threads that wait for a free page. The budget
    /// of evicted pages comes back by [`super::Shared::release_evicted`].
    pub(crate) fn release(&self, pages: u32) {
        if pages > 0 {
            self.budget.release(pages);
            self.note_freed();
        }
    }

    /// Wakes the threads that wait for a free page, or for owed pages to be repaid.
    pub(super) fn note_freed(&self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.freed_waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.freed);
        }
    }

    /// Returns the number to pass to [`Self::wait_for_free`]. Call this before looking for a free page.
    pub(crate) fn freed_event(&self) -> u32 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Sleeps until a page was freed since `event`, but for a millisecond for each waiting thread at most: one of them looks each millisecond,
    /// however many they are. If all did, they could take the cores from the thread that evicts.
    pub(crate) fn wait_for_free(&self, event: u32) {
        let waiting = self.freed_waiters.fetch_add(1, Ordering::SeqCst) + 1;
        futex::wait_for(&self.freed, event, Duration::from_millis(u64::from(waiting)));
        self.freed_waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::telemetry::page::Description;

    /// While a thread evicts, those that wait leave it a core.
    #[test]
    fn many_threads_that_wait_look_no_more_often_than_a_few() {
        const THREADS: u64 = 64;
        const LOOKS: u64 = 1000;
        let description = Description { capacity_pages: 1024, cores: 1, counters: 1, read_sampling: 1 };
        let memory = Memory::new(&StatPage::new(description).unwrap(), 1024, Overhead::LEAST);
        let (looks, event, began) = (AtomicU64::new(0), memory.freed_event(), Instant::now());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while looks.fetch_add(1, Ordering::Relaxed) < LOOKS {
                        memory.wait_for_free(event);
                    }
                });
            }
        });
        // Of threads that wait, the first looks after 1 ms, the second after 2 ms and so on: together at most 4.75 times in a millisecond.
        let most = 5 * began.elapsed().as_millis() as u64 + 2 * THREADS;
        assert!(looks.into_inner() <= most, "more than {most} looks in {:?}", began.elapsed());
    }
}
