//! The memory of a cache: its capacity, the pages that are free, and the threads that wait for one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::budget::Budget;
use crate::cache::overhead::Overhead;
use crate::sys::futex;
use crate::telemetry::layout::Gauge;
use crate::telemetry::page::{PublishedWord, StatPage};

/// While the tables take less than this share of the cache, a span that has just lost its last page keeps them for a
/// round: most likely a page comes back before.
pub(crate) const KEPT_SHARE: u32 = 16;

/// The pages that a cache may have in memory, and what takes them beside the contents of files.
pub(crate) struct Memory {
    pub(crate) budget: Budget<PublishedWord>,
    /// The capacity, for others to see.
    published_capacity: PublishedWord,
    /// What the cache keeps for itself beside.
    pub(crate) overhead: Overhead,
    /// Held by whoever changes the capacity, or promises some of it.
    pub(crate) resizing: Mutex<()>,
    /// Of the budget, what page tables and page words take.
    pub(crate) table_pages: PublishedWord,
    pub(crate) pinned_pages: PublishedWord,
    freed: AtomicU32,
    freed_waiters: AtomicU32,
}

/// When the reserve of free pages is refilled; all in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    /// Fewer free: the workers start to evict.
    pub(crate) low: u32,
    /// This many free: they stop.
    pub(crate) high: u32,
    /// Fewer free: a faulting thread writes one run itself, which slows all of them evenly.
    pub(crate) help: u32,
}

impl Watermarks {
    /// The reserve is large enough that the threads do not run through it before a worker gets a core (a few ms), and
    /// refilled in runs so long that their number does not show in the latency of 999 of 1000 accesses.
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

/// Pages of a cache that pins may hold; the rest is for what is touched.
pub(crate) fn pinned_pages_max(capacity_pages: u32) -> u64 {
    u64::from(capacity_pages / 4 * 3)
}

/// The smallest capacity at which pins may hold this many pages.
pub(crate) fn capacity_for_pins(pinned_pages: u64) -> u64 {
    pinned_pages.div_ceil(3) * 4
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

    /// Whether pages are owed: then a thread that finds none may yet get one, since a thread that shrinks the cache either repays or
    /// gives up.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.budget.limit().owed > 0
    }

    /// Pages that pins may hold.
    pub(crate) fn pinned_pages_max(&self) -> u64 {
        pinned_pages_max(self.capacity_pages())
    }

    /// Whether they hold more than they may at a capacity.
    pub(crate) fn has_too_many_pins_for(&self, capacity_pages: u32) -> bool {
        self.pinned_pages.load(Ordering::SeqCst) > pinned_pages_max(capacity_pages)
    }

    /// Whether the tables take so much of the cache that empty spans do not keep theirs.
    pub(crate) fn is_sparse(&self) -> bool {
        self.table_pages.load(Ordering::Relaxed) > u64::from(self.capacity_pages() / KEPT_SHARE)
    }

    /// Changes the capacity; [`Budget::resize`] says how. The caller holds the lock on resizing.
    pub(super) fn set_capacity(&self, pages: u32) {
        self.budget.resize(pages);
        self.published_capacity.store(u64::from(pages), Ordering::Relaxed);
    }

    // ---- freed pages

    /// Gives pages back to the budget that did not come in, and wakes the threads that wait for one. Evicted pages come back by
    /// [`super::Shared::release_evicted`].
    pub(crate) fn release(&self, pages: u32) {
        if pages > 0 {
            self.budget.release(pages);
            self.note_freed();
        }
    }

    /// Wakes the threads that wait for a free page, or for what is owed to be repaid.
    pub(super) fn note_freed(&self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.freed_waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.freed);
        }
    }

    /// The number to pass to [`Self::wait_for_free`]; take it before looking whether something is free.
    pub(crate) fn freed_event(&self) -> u32 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Sleeps until pages were freed since `event`, a millisecond at most.
    pub(crate) fn wait_for_free(&self, event: u32) {
        self.freed_waiters.fetch_add(1, Ordering::SeqCst);
        futex::wait_for(&self.freed, event, Duration::from_millis(1));
        self.freed_waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
