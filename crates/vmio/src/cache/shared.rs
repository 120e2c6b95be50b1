//! What all mappings of a cache share: the budget, the policy, the engine, and the events that threads wait for.

use std::io;
use std::iter::repeat_n;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::budget::Budget;
use crate::cache::evictor::Evictor;
use crate::cache::fetch::EndedRequests;
use crate::cache::merge_buffers::MergeBuffers;
use crate::cache::overhead::Overhead;
use crate::cache::page_buffers::PageBuffers;
use crate::cache::stream::Streams;
use crate::cache::strided::StridedReads;
use crate::cache::tenant::Tenant;
use crate::cache::write_batch::{BATCH_PAGES, WriteBatch, WriteRun};
use crate::engine::{FaultEngine, Frames};
use crate::options::FrameHint;
use crate::policy::{EvictionOrder, EvictionPolicy};
use crate::sys::fork::Generation;
use crate::sys::kernel::{KernelFeature, KernelFeatures};
use crate::sys::unmap::Unmapper;
use crate::sys::{cpu, futex};
use crate::telemetry::counters::{Counter, Counters, NAMES};
use crate::telemetry::layout::{Gauge, Latency};
use crate::telemetry::miss_ring::MissRing;
use crate::telemetry::page::{Description, PublishedWord, StatPage};

/// Pages that a faulting thread evicts when it has to do it itself.
pub(crate) const DIRECT_PAGES: usize = 64;
/// This many workers have merge buffers that a device may have registered: as many as there are by default on the largest machines.
pub(super) const SHARED_BATCHES_MAX: usize = 16;
/// Write runs that may wait for a thread; more are written by the thread that made them.
const QUEUED_RUNS_MAX: usize = 4096;
/// Fetches have at most one page in this many of the cache under way, so that the rest can be evicted for faults.
const IN_FLIGHT_SHARE: u32 = 8;
/// Evictions between two ticks of the eviction clock: an eighth of the cache.
const CLOCK_TICKS_PER_TURNOVER: u64 = 8;
/// One in this many device reads is timed: every miss is, and that is enough of reading the clock.
const READ_SAMPLING: u64 = 8;
/// A device that takes longer than this for a write is worth several threads that wait for it.
const SLOW_WRITE_NS: u64 = 30_000;

/// When the workers act; all in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    /// Fewer free: the workers start to evict.
    pub(crate) low: u32,
    /// This many free: they stop.
    pub(crate) high: u32,
    /// Fewer free: a faulting thread writes one run itself, which slows all of them evenly.
    pub(crate) help: u32,
    /// More dirty: write-back begins though nothing must be evicted.
    pub(crate) dirty: u32,
    /// More dirty: storing threads help.
    pub(crate) dirty_help: u32,
}

impl Watermarks {
    /// The reserve is large enough that the threads do not run through it before a worker gets a core (a few ms), and
    /// refilled in runs so long that their number does not show in the latency of 999 of 1000 accesses.
    #[inline]
    fn of(capacity_pages: u32, dirty_ratio: f64) -> Self {
        let low = (capacity_pages / 64).clamp(16, 16 * 1024);
        Watermarks {
            low,
            high: 2 * low,
            help: low / 4,
            dirty: share(capacity_pages, dirty_ratio),
            dirty_help: share(capacity_pages, (1.0 + dirty_ratio) / 2.0),
        }
    }
}

/// A part of the cache, in pages.
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

/// The state that mappings and workers share.
pub(crate) struct Shared {
    pub(crate) generation: Generation,
    pub(crate) budget: Budget<PublishedWord>,
    /// The capacity, for others to see.
    published_capacity: PublishedWord,
    /// What it keeps for itself beside.
    pub(super) overhead: Overhead,
    dirty_ratio: f64,
    /// Held by whoever changes the capacity, or promises some of it.
    pub(super) resizing: Mutex<()>,
    /// The spans of mappings without floor and ceiling.
    pub(crate) order: EvictionOrder,
    policy: EvictionPolicy,
    cores: usize,
    /// Counts selections of a mapping that gives pages up.
    pub(super) selections: AtomicU64,
    pub(crate) engine: Box<dyn FaultEngine>,
    /// Frames whose first store traps; regions may have others of their own.
    pub(crate) frames: Box<dyn Frames>,
    /// For page tables and page words.
    pub(crate) unmapper: Unmapper,
    /// What mappings get that do not say.
    pub(crate) frame_hint: FrameHint,
    /// Whether pages may be fetched through io_uring.
    pub(crate) uses_io_uring: bool,
    /// Pages that a ring may have under way at a time, at most.
    pub(crate) pages_in_flight_max: u32,
    /// Ranges are locked in memory.
    pub(crate) locks_memory: bool,
    pub(crate) counters: Counters,
    pub(crate) measures_misses: bool,
    /// Where misses are published, if they are.
    pub(crate) miss_ring: Option<MissRing>,
    pub(crate) page_buffers: PageBuffers,
    /// Those of the workers, of a thread that syncs, and of the spare evictors; a thread beyond them has others.
    pub(crate) merge_buffers: Arc<MergeBuffers>,
    /// Runs of pages that are copied and wait to be written, by whoever comes first.
    pub(crate) write_queue: ArrayQueue<WriteRun>,
    pub(crate) streams: Streams,
    pub(crate) strided_reads: StridedReads,
    pub(crate) ended_requests: EndedRequests,
    /// Evictors for faulting threads. Boxed: whoever takes one may have a stack of 8 KiB.
    pub(crate) spare_evictors: ArrayQueue<Box<Evictor>>,
    sync_batches: Mutex<Vec<WriteBatch>>,
    /// Held for reading by whoever takes spans from an order, for writing while a region's spans are taken out. The mappings
    /// with a floor or a ceiling, each with an order of its own.
    pub(crate) eviction_gate: RwLock<Vec<Arc<Tenant>>>,
    dirty_pages: PublishedWord,
    evicted_pages: CachePadded<AtomicU64>,
    /// Of the budget, what page tables and page words take.
    pub(crate) table_pages: PublishedWord,
    pub(crate) pinned_pages: PublishedWord,
    pub(crate) mappings: PublishedWord,
    pub(crate) mapped_bytes: PublishedWord,
    freed: AtomicU32,
    freed_waiters: AtomicU32,
    work: AtomicU32,
    pub(crate) workers: u32,
    workers_on_fast_device: u32,
    workers_asleep: AtomicU32,
    write_ns: AtomicU64,
    /// The system's number for the last page that could not be written; 0 if it had none.
    last_write_error: AtomicI32,
    stopping: AtomicBool,
}

/// Held by whoever takes spans from the policy: no region that has spans there goes away meanwhile.
pub(crate) type Gate<'a> = RwLockReadGuard<'a, Vec<Arc<Tenant>>>;

/// What [`Shared`] is made of.
pub(crate) struct Parts {
    pub(crate) generation: Generation,
    pub(crate) capacity_pages: u32,
    pub(crate) overhead: Overhead,
    pub(crate) dirty_ratio: f64,
    pub(crate) policy: EvictionPolicy,
    pub(crate) engine: Box<dyn FaultEngine>,
    pub(crate) frames: Box<dyn Frames>,
    pub(crate) frame_hint: FrameHint,
    pub(crate) locks_memory: bool,
    pub(crate) measures_misses: bool,
    pub(crate) publishes_misses: bool,
    pub(crate) kernel_features: KernelFeatures,
    pub(crate) pages_in_flight: u32,
    pub(crate) workers: u32,
    pub(crate) cores: usize,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        // One thread at a time evicts for itself on a small machine; the others wait for what it frees.
        let spare_evictors = ArrayQueue::new((parts.cores / 8).max(1));
        let (batches, spares) = ((parts.workers as usize).min(SHARED_BATCHES_MAX) + 1, spare_evictors.capacity());
        let sizes = repeat_n(BATCH_PAGES, batches).chain(repeat_n(DIRECT_PAGES, spares));
        let merge_buffers = Arc::new(MergeBuffers::new(sizes)?);
        while !spare_evictors.is_full() {
            let _ = spare_evictors.push(Box::new(Evictor::new(DIRECT_PAGES, &merge_buffers)?));
        }
        let page = StatPage::new(Description {
            capacity_pages: parts.capacity_pages,
            cores: parts.cores,
            counters: NAMES.len(),
            read_sampling: READ_SAMPLING,
        })?;
        let miss_ring = parts.publishes_misses.then(|| MissRing::new(page.cache_number())).transpose()?;
        let free_pages = (0..page.cores()).map(|core| page.free_pages(core)).collect();
        let streams = Streams::new(parts.cores + parts.workers as usize, &*parts.engine, &*parts.frames)?;
        Ok(Shared {
            generation: parts.generation,
            published_capacity: page.capacity_pages(),
            overhead: parts.overhead,
            dirty_ratio: parts.dirty_ratio,
            resizing: Mutex::new(()),
            budget: Budget::new(parts.capacity_pages, page.gauge(Gauge::PooledPages), free_pages),
            order: EvictionOrder::new(parts.cores, parts.policy),
            policy: parts.policy,
            cores: parts.cores,
            selections: AtomicU64::new(0),
            engine: parts.engine,
            frames: parts.frames,
            unmapper: Unmapper::probe(parts.kernel_features),
            frame_hint: parts.frame_hint,
            uses_io_uring: parts.kernel_features.allow(KernelFeature::IoUring),
            pages_in_flight_max: parts.pages_in_flight,
            locks_memory: parts.locks_memory,
            counters: Counters::new(&page),
            measures_misses: parts.measures_misses,
            miss_ring,
            page_buffers: PageBuffers::new(parts.cores)?,
            merge_buffers,
            write_queue: ArrayQueue::new(QUEUED_RUNS_MAX),
            streams,
            strided_reads: StridedReads::new(parts.cores, parts.kernel_features.allow(KernelFeature::IoUring)),
            ended_requests: EndedRequests::default(),
            spare_evictors,
            sync_batches: Mutex::new(Vec::new()),
            eviction_gate: RwLock::new(Vec::new()),
            dirty_pages: page.gauge(Gauge::DirtyPages),
            evicted_pages: CachePadded::new(AtomicU64::new(0)),
            table_pages: page.gauge(Gauge::TablePages),
            pinned_pages: page.gauge(Gauge::PinnedPages),
            mappings: page.gauge(Gauge::Mappings),
            mapped_bytes: page.gauge(Gauge::MappedBytes),
            freed: AtomicU32::new(0),
            freed_waiters: AtomicU32::new(0),
            work: AtomicU32::new(0),
            workers: parts.workers,
            workers_on_fast_device: (parts.cores as u32 / 4).clamp(1, parts.workers),
            workers_asleep: AtomicU32::new(0),
            write_ns: AtomicU64::new(0),
            last_write_error: AtomicI32::new(0),
            stopping: AtomicBool::new(false),
        })
    }

    /// An order for the spans of one mapping.
    pub(crate) fn new_order(&self) -> EvictionOrder {
        EvictionOrder::new(self.cores, self.policy)
    }

    /// Adds to a counter of the given core.
    #[inline]
    pub(crate) fn count(&self, core: usize, counter: Counter, amount: u64) {
        self.counters.add(core, counter, amount);
    }

    /// Whether the next device read of the given core is one of those that are timed.
    #[inline]
    pub(crate) fn times_read(&self, core: usize) -> bool {
        self.counters.of_core(core, Counter::Reads).is_multiple_of(READ_SAMPLING)
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
        Watermarks::of(self.capacity_pages(), self.dirty_ratio)
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

    /// Pages that a ring may have under way at a time.
    pub(crate) fn pages_in_flight(&self) -> u32 {
        self.pages_in_flight_max.min(self.capacity_pages() / IN_FLIGHT_SHARE)
    }

    /// Changes the capacity; [`Budget::resize`] says how. The caller holds the lock on resizing.
    pub(super) fn set_capacity(&self, pages: u32) {
        let before = u128::from(self.capacity_pages());
        self.budget.resize(pages);
        self.published_capacity.store(u64::from(pages), Ordering::Relaxed);
        // The eviction clock counts turnovers, and goes on from where it is.
        let _ = self.evicted_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |evicted| {
            Some((u128::from(evicted) * u128::from(pages) / before) as u64)
        });
        self.note_freed();
        self.wake_worker(true);
    }

    // ---- dirty pages

    /// Dirty pages of all mappings. The count is below zero while a page is cleaned before it has been counted.
    pub(crate) fn dirty_pages(&self) -> u32 {
        (self.dirty_pages.load(Ordering::Relaxed) as i64).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// One more dirty page; wakes a worker when that is one too many.
    pub(crate) fn add_dirty(&self) {
        if self.dirty_pages.fetch_add(1, Ordering::Relaxed) == u64::from(self.watermarks().dirty) {
            self.wake_worker(false);
        }
    }

    /// That many fewer dirty pages.
    pub(crate) fn remove_dirty(&self, pages: usize) {
        self.dirty_pages.fetch_sub(pages as u64, Ordering::Relaxed);
    }

    /// A page could not be written.
    pub(crate) fn note_write_error(&self, error: &io::Error) {
        self.last_write_error.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
    }

    /// Why the last one could not: the system's number, or 0 if it had none.
    pub(crate) fn last_write_error(&self) -> i32 {
        self.last_write_error.load(Ordering::Relaxed)
    }

    // ---- the eviction clock

    /// Pages evicted so far.
    pub(crate) fn evicted_pages(&self) -> u64 {
        self.evicted_pages.load(Ordering::Relaxed)
    }

    /// Moves the clock on.
    pub(crate) fn note_evicted(&self, pages: u32) {
        self.evicted_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
    }

    /// The present time of the eviction clock, 1 to 255.
    pub(crate) fn eviction_time(&self) -> u8 {
        let ticks =
            self.evicted_pages.load(Ordering::Relaxed) * CLOCK_TICKS_PER_TURNOVER / u64::from(self.capacity_pages());
        (ticks % 255) as u8 + 1
    }

    /// How long ago an eviction was, in eighths of a turnover of the cache; wraps around after 32 turnovers.
    pub(crate) fn evicted_ago(&self, time: u8) -> Option<u8> {
        (time != 0).then(|| ((u16::from(self.eviction_time()) + 255 - u16::from(time)) % 255) as u8)
    }

    // ---- freed pages and work

    /// Gives pages back to the budget and wakes those that wait for one.
    pub(crate) fn release(&self, pages: u32, evicted: bool) {
        if pages == 0 {
            return;
        }
        self.budget.release(pages);
        if evicted {
            self.note_evicted(pages);
        }
        self.note_freed();
    }

    /// Wakes the threads that wait for a free page, or for what is owed to be repaid.
    fn note_freed(&self) {
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

    /// Wakes a worker if none is awake, or one more if `urgent` and more would not just take cores from the program:
    /// they wait for a slow device, or there are cores enough.
    pub(crate) fn wake_worker(&self, urgent: bool) {
        // First the event: a worker that is about to sleep either sees it or is counted as asleep.
        self.work.fetch_add(1, Ordering::SeqCst);
        let asleep = self.workers_asleep.load(Ordering::SeqCst);
        let useful = if self.writes_are_slow() { self.workers } else { self.workers_on_fast_device };
        if asleep == self.workers || (urgent && asleep > self.workers - useful) {
            futex::wake_one(&self.work);
        }
    }

    /// The number to pass to [`Self::sleep`]; take it before looking for work.
    pub(crate) fn work_event(&self) -> u32 {
        self.work.load(Ordering::SeqCst)
    }

    /// Puts a worker to sleep until there is work since `event`, or for `limit`.
    pub(crate) fn sleep(&self, event: u32, limit: Option<Duration>) {
        self.workers_asleep.fetch_add(1, Ordering::SeqCst);
        match limit {
            Some(limit) => futex::wait_for(&self.work, event, limit),
            None => futex::wait(&self.work, event),
        }
        self.workers_asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells all workers to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.work.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.work);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    // ---- writing

    /// Notes how long a write took.
    pub(crate) fn note_write(&self, ns: u64) {
        let before = self.write_ns.load(Ordering::Relaxed);
        self.write_ns.store((before * 7 + ns) / 8, Ordering::Relaxed);
        self.counters.record(cpu::current(), Latency::Write, ns);
    }

    /// Whether a write mostly waits for the device, so that more threads mean more throughput.
    pub(crate) fn writes_are_slow(&self) -> bool {
        self.write_ns.load(Ordering::Relaxed) > SLOW_WRITE_NS
    }

    /// A merge buffer for a thread that syncs or advises.
    pub(crate) fn take_sync_batch(&self) -> io::Result<WriteBatch> {
        let pooled = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.map_or_else(|| WriteBatch::new(BATCH_PAGES, &self.merge_buffers), Ok)
    }

    /// Takes it back; one is kept.
    pub(crate) fn return_sync_batch(&self, batch: WriteBatch) {
        let mut pool = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_empty() {
            pool.push(batch);
        }
    }
}
