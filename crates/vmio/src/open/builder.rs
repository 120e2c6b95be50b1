//! Builds a cache.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::cache::CacheCore;
use crate::cache::fault::handle_fault;
use crate::cache::held_for_calls::HOLD_CALLS;
use crate::cache::overhead::{Overhead, PAGES_MIN};
use crate::cache::refusal::while_absent;
use crate::cache::shared::{Settings, Shared};
use crate::engine::FaultCalls;
use crate::error::{Error, Result, UnsupportedBy};
use crate::kernel_engine::KernelCore;
use crate::managed::{Limits, ManagedCore};
use crate::open::automatic::FollowerParts;
use crate::open::{Cache, FaultBackend};
use crate::options::{Engine, FrameHint};
use crate::policy::EvictionPolicy;
use crate::probe;
use crate::probe::KernelFeature;
use crate::sys::fork::Generation;
use crate::sys::kernel::KernelFeatures;
use crate::sys::polled_rings::PolledRings;
use crate::sys::unmap::Unmapper;
use crate::sys::{PAGE_BYTES, cpu};

/// The default of [`CacheBuilder::pages_in_flight`]. Half of it is as many single pages as the queue of an NVMe or virtio disk
/// takes.
const PAGES_IN_FLIGHT: usize = 256;

/// Whether the pages of a cache are locked in memory.
///
/// # Default
///
/// [`LockMemory::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMemory {
    /// Locks if swap is on, the process may lock (CAP_IPC_LOCK), and the kernel can evict locked pages (Linux 5.18).
    ///
    /// Warns if swap is on and one of the others is missing. Without swap the pages stay in memory anyway, and locks would only
    /// slow evictions down.
    #[default]
    Auto,
    /// Never locks.
    Never,
    /// Locks. The build fails without CAP_IPC_LOCK, and on a kernel that cannot evict locked pages.
    Require,
}

/// Options of a cache; [`Self::build`] builds it.
///
/// # Examples
///
/// ```
/// # fn main() -> vmio::Result<()> {
/// use vmio::{Cache, EvictionPolicy};
///
/// let cache = Cache::builder().capacity(64 << 20).policy(EvictionPolicy::S3Fifo).dirty_ratio(0.5).build()?;
/// assert!(cache.capacity_bytes() <= 64 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CacheBuilder {
    engine: Engine,
    readers: Option<usize>,
    capacity_bytes: u64,
    automatic: Option<RangeInclusive<u64>>,
    dirty_ratio: f64,
    workers: Option<usize>,
    pages_in_flight: usize,
    lock_memory: LockMemory,
    frames: FrameHint,
    policy: EvictionPolicy,
    measures_misses: bool,
    publishes_misses: bool,
    holds_back: bool,
    polls_submissions: bool,
    kernel_features: KernelFeatures,
}

impl CacheBuilder {
    /// The bounds of [`Self::capacity`], in bytes: 6 MiB (1 MiB of pages, the rest merge buffers) to 16 TiB.
    pub const CAPACITY_BYTES: RangeInclusive<u64> = 6 << 20..=16 << 40;

    pub(super) fn new() -> Self {
        CacheBuilder {
            engine: Engine::Auto,
            readers: None,
            capacity_bytes: 0,
            automatic: None,
            dirty_ratio: 0.75,
            workers: None,
            pages_in_flight: PAGES_IN_FLIGHT,
            lock_memory: LockMemory::Auto,
            frames: FrameHint::Auto,
            policy: EvictionPolicy::default(),
            measures_misses: false,
            publishes_misses: false,
            holds_back: false,
            polls_submissions: false,
            kernel_features: KernelFeatures::ALL,
        }
    }

    /// Sets the memory that the cache may use, in bytes: resident pages and merge buffers.
    ///
    /// The merge buffers of many [`Self::workers`] take an eighth of the capacity, or two buffers of 2 MiB if that is more.
    ///
    /// # Default
    ///
    /// None: [`Self::capacity`] or [`Self::capacity_auto`] must be called. See [`Self::CAPACITY_BYTES`] for the bounds.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Lets vmio change the capacity within these bounds in bytes, the lower one 6 MiB at least.
    ///
    /// Ten times a second a thread looks at the limits and the pressure (PSI) of the process's memory cgroups, and at the available
    /// memory of the system. Where memory runs short, the cache shrinks at once. Where nobody waits for memory, it grows by a
    /// sixteenth a second.
    ///
    /// The process may still hit a limit that the kernel enforces faster than the cache writes: lower `memory.high` before
    /// `memory.max`. [`Cache::resize`] holds until the next look finds a reason to change the capacity. As with [`Cache::resize`],
    /// the cache may outgrow the reserve of a journal for commits.
    ///
    /// While the thread changes the capacity, it has a handle of its own. If the program drops its last handle meanwhile, the
    /// workers end after the change, some moments after the drop.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// let cache = vmio::Cache::builder().capacity_auto(8 << 20..=256 << 20).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity_auto(mut self, bytes: RangeInclusive<u64>) -> Self {
        self.automatic = Some(bytes);
        self
    }

    /// Sets the engine: how page faults reach the cache.
    ///
    /// # Default
    ///
    /// [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Sets the number of threads that handle the faults of [`Engine::ReaderThread`]. No effect with other engines.
    ///
    /// # Default
    ///
    /// One per core, 2 at least.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = Some(readers);
        self
    }

    /// Sets the share of dirty pages from which write-back begins, even without evictions (FastMap §3.3).
    ///
    /// [`Engine::Kernel`] always begins at one half.
    ///
    /// # Default
    ///
    /// 0.75.
    pub fn dirty_ratio(mut self, ratio: f64) -> Self {
        self.dirty_ratio = ratio;
        self
    }

    /// Sets the number of background threads that evict and write.
    ///
    /// One works at a time unless the device is slow or the reserve of free pages runs low. No effect with [`Engine::Managed`] and
    /// [`Engine::Kernel`].
    ///
    /// # Default
    ///
    /// One per core, 2 to 16, as far as their merge buffers of 2 MiB each fit in an eighth of the capacity.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the number of pages that the fetches of each core may have under way at a time ([`crate::Mapping::fetch`]), an eighth
    /// of the cache at most.
    ///
    /// Half is for reads that begin in the requesting thread, half for the rest. Further requests wait.
    ///
    /// From the first fetch on, each of these pages takes a buffer of 4 KiB, and each core two threads with some 0.5 MiB of lists
    /// and buffers, all outside the capacity. A cache that grows later gets no more of them.
    ///
    /// # Default
    ///
    /// 256.
    pub fn pages_in_flight(mut self, pages: usize) -> Self {
        self.pages_in_flight = pages;
        self
    }

    /// Sets whether the pages of the cache are locked in memory.
    ///
    /// # Default
    ///
    /// [`LockMemory::Auto`].
    pub fn lock_memory(mut self, lock: LockMemory) -> Self {
        self.lock_memory = lock;
        self
    }

    /// Sets the order of eviction within a priority. No effect with [`Engine::Managed`] and [`Engine::Kernel`].
    ///
    /// # Default
    ///
    /// [`EvictionPolicy::Auto`].
    pub fn policy(mut self, policy: EvictionPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the kind of frames for mappings with [`FrameHint::Auto`] ([`crate::MappingOptions::frames`]).
    ///
    /// No effect with [`Engine::Managed`] and [`Engine::Kernel`].
    ///
    /// # Default
    ///
    /// [`FrameHint::Auto`].
    pub fn frames(mut self, hint: FrameHint) -> Self {
        self.frames = hint;
        self
    }

    /// Measures the time of each part of every miss for [`crate::Stats::miss_time`], at some 50 ns a part.
    ///
    /// No effect with [`Engine::Managed`] and [`Engine::Kernel`].
    ///
    /// # Default
    ///
    /// Off.
    pub fn measure_misses(mut self, on: bool) -> Self {
        self.measures_misses = on;
        self
    }

    /// Publishes the page of every miss by a load, a store or [`crate::Mapping::ensure`], for `vmio trace`, `vmio record` and
    /// [`crate::telemetry::Misses`].
    ///
    /// The cache then reads nothing ahead, and every miss brings in 4 KiB, with any unit and frames.
    ///
    /// With the smallest capacity nearly every touch of another page is a miss: in this way a program records its own accesses. The
    /// published misses take 8 MiB outside the capacity. [`Engine::Managed`] and [`Engine::Kernel`] publish none.
    ///
    /// # Default
    ///
    /// Off.
    pub fn publish_misses(mut self, on: bool) -> Self {
        self.publishes_misses = on;
        self
    }

    /// Holds back threads that bring in pages faster than the device takes dirty ones, so that [`Engine::Managed`] keeps its budget
    /// in bursts too.
    ///
    /// These threads wait in a handler of SIGURG. System calls that the signal interrupts go on, with two exceptions. The few that
    /// end at any signal (signal(7)) end, and transfers over sockets and pipes return the bytes moved so far, if any. Where the
    /// program has a handler of its own for SIGURG, no thread waits.
    ///
    /// # Default
    ///
    /// Off.
    pub fn hold_back_bursts(mut self, on: bool) -> Self {
        self.holds_back = on;
        self
    }

    /// Has a thread of the kernel submit the reads and writes of files, by io_uring (SQPOLL): a submission is a store, and its end a load. For
    /// [`Engine::Ring0`], where each system call leaves the machine.
    ///
    /// The files are those that [`Cache::open_backing`] opens, and those given to [`Cache::submit_for`]. A write to a regular file still asks for
    /// the file's length by a system call. A system call also makes up for what a request did not do: at the end of the file, without direct I/O, and
    /// where all rings are in use. There are four rings for each core, 64 at most. Each ring is a descriptor ([`Cache::descriptors`]).
    ///
    /// While there are requests, and for 50 ms after the last, the thread takes a core; then a system call wakes it. It runs on the cores of the thread
    /// that builds the cache. A thread that waits for a request's end takes its own core for up to a millisecond, and then sleeps.
    ///
    /// # Default
    ///
    /// Off.
    pub fn poll_submissions(mut self, on: bool) -> Self {
        self.polls_submissions = on;
        self
    }

    /// Does without a feature of the kernel, as on an older kernel that lacks it, to measure the cost or to avoid a broken feature.
    ///
    /// Call it once for each feature.
    ///
    /// # Default
    ///
    /// The cache uses every feature that the kernel has.
    pub fn without(mut self, feature: KernelFeature) -> Self {
        self.kernel_features = self.kernel_features.without(feature);
        self
    }

    /// Builds the cache and starts its threads.
    ///
    /// [`Engine::Sigbus`] installs a SIGBUS handler, which passes on to the earlier handler every signal that is not vmio's.
    ///
    /// # Errors
    ///
    /// - [`Error::BadOption`] for an option out of its bounds, for [`LockMemory::Require`] where locks are not possible, or for a
    ///   kernel whose pages are not 4 KiB.
    /// - [`Error::NoUserfaultfd`], [`Error::KernelFaultsDenied`] or [`Error::NoKernelModule`] if the requested engine is not
    ///   available; [`Engine::Auto`] takes another one instead.
    /// - [`Error::Unsupported`] for [`LockMemory::Require`] with [`Engine::Managed`], and for [`Self::poll_submissions`] with any engine but
    ///   [`Engine::Ring0`] and [`Engine::Sigbus`], also where [`Engine::Auto`] takes another.
    /// - [`Error::System`] if the system has no memory, thread or descriptor for the cache, or no thread that polls.
    pub fn build(self) -> Result<Cache> {
        let page_bytes = rustix::param::page_size();
        if page_bytes != PAGE_BYTES {
            return Err(Error::BadOption {
                option: "the kernel's page size",
                value: page_bytes.to_string(),
                expected: "4096 (other sizes are not supported yet)",
            });
        }
        let follower = self.automatic.as_ref().map(FollowerParts::new).transpose()?;
        let capacity_bytes = follower.as_ref().map_or(self.capacity_bytes, FollowerParts::first_capacity);
        let least_bytes = self.automatic.as_ref().map_or(capacity_bytes, |bounds| *bounds.start());
        let cache = self.build_of(capacity_bytes, least_bytes)?;
        if let Some(parts) = follower {
            parts.start(&cache).map_err(Error::system("starting the thread that adjusts the capacity"))?;
        }
        Ok(cache)
    }

    /// The capacity stays at `least_bytes` or above, unless the program changes it.
    fn build_of(self, capacity_bytes: u64, least_bytes: u64) -> Result<Cache> {
        let capacity_pages = Overhead::LEAST.capacity_pages(capacity_bytes)?;
        if !(self.dirty_ratio > 0.0 && self.dirty_ratio <= 1.0) {
            return Err(Error::BadOption {
                option: "dirty_ratio",
                value: self.dirty_ratio.to_string(),
                expected: "above 0 and at most 1",
            });
        }
        let cores = cpu::count();
        let workers = self.workers.unwrap_or(cores.clamp(2, 16).min(Overhead::workers_within(least_bytes)));
        if !(1..=256).contains(&workers) {
            return Err(Error::BadOption { option: "workers", value: workers.to_string(), expected: "1 to 256" });
        }
        let readers = self.readers.unwrap_or(cores.max(2));
        if !(1..=1024).contains(&readers) {
            return Err(Error::BadOption { option: "readers", value: readers.to_string(), expected: "1 to 1024" });
        }
        if !(1..=4096).contains(&self.pages_in_flight) {
            let value = self.pages_in_flight.to_string();
            return Err(Error::BadOption { option: "pages_in_flight", value, expected: "1 to 4096" });
        }
        let generation = Generation::of_this_process().map_err(Error::system("marking the process"))?;
        let managed = Limits { generation, capacity_pages, dirty_ratio: self.dirty_ratio, holds_back: self.holds_back };
        if self.engine == Engine::Managed {
            return self.build_managed(managed);
        }
        if self.engine == Engine::Kernel {
            self.check_not_polled(UnsupportedBy::KernelEngine)?;
            let core = KernelCore::start(generation, capacity_pages)?;
            return Ok(Cache { backend: FaultBackend::Kernel(Arc::new(core)) });
        }
        let calls = FaultCalls { resolve: handle_fault, while_absent, for_system_calls: HOLD_CALLS };
        let started = self.engine.start(calls, readers, self.kernel_features, capacity_pages);
        let (engine, frames) = match started {
            Ok(started) => started,
            Err(why @ Error::NoUserfaultfd { .. }) if self.engine == Engine::Auto => {
                tracing::warn!(
                    %why,
                    "Linux mmap takes the faults (Engine::Managed): the memory budget is kept within some milliseconds \
                     and not at every instant, and only files and block devices can be mapped"
                );
                return self.build_managed(managed);
            }
            Err(error) => return Err(error),
        };
        if engine.engine() == Engine::ReaderThread {
            // The kernel's thread may wait for a page of the cache that it is to read into, and the reader for the kernel's thread.
            self.check_not_polled(UnsupportedBy::ReaderThreadEngine)?;
        }
        let polled = self.polls_submissions.then(PolledRings::new).transpose();
        let polled = polled.map_err(Error::system("starting a thread of the kernel that polls submissions"))?;
        let locks_memory = self.decide_on_locking()?;
        let overhead = Overhead::of(workers, least_bytes);
        let settings = Settings {
            generation,
            capacity_pages: overhead.capacity_pages(capacity_bytes)?,
            overhead,
            dirty_ratio: self.dirty_ratio,
            policy: self.policy,
            engine,
            frames,
            frame_hint: self.frames,
            locks_memory,
            measures_misses: self.measures_misses,
            publishes_misses: self.publishes_misses,
            kernel_features: self.kernel_features,
            pages_in_flight: self.pages_in_flight as u32,
            workers: workers as u32,
            cores,
        };
        let shared = Shared::new(settings).map_err(Error::system("reserving memory for the cache"))?;
        let core = CacheCore::start(shared, polled.map(Arc::new));
        let core = core.map_err(Error::system("starting the workers of the cache"))?;
        Ok(Cache { backend: FaultBackend::Cached(Arc::new(core)) })
    }

    fn build_managed(&self, limits: Limits) -> Result<Cache> {
        if self.lock_memory == LockMemory::Require {
            let why = "file pages are never swapped, and the kernel may drop clean ones: use pins, or Engine::Sigbus";
            return Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, what: "LockMemory::Require", why });
        }
        self.check_not_polled(UnsupportedBy::ManagedEngine)?;
        let core = ManagedCore::start(limits).map_err(Error::system("starting the reclaimer of the cache"))?;
        Ok(Cache { backend: FaultBackend::Managed(Arc::new(core)) })
    }

    fn check_not_polled(&self, by: UnsupportedBy) -> Result<()> {
        if !self.polls_submissions {
            return Ok(());
        }
        let why =
            "the requests of a thread of the kernel are those of Engine::Ring0 and Engine::Sigbus: use one of these";
        Err(Error::Unsupported { by, what: "CacheBuilder::poll_submissions", why })
    }

    fn decide_on_locking(&self) -> Result<bool> {
        let may_lock = probe::may_lock_memory();
        let may_evict = Unmapper::probe(self.kernel_features).drops_locked();
        match self.lock_memory {
            LockMemory::Never => Ok(false),
            LockMemory::Require if !may_lock => Err(Error::BadOption {
                option: "lock_memory",
                value: "Require".to_owned(),
                expected: "Auto or Never without CAP_IPC_LOCK: the whole address range is charged at once, so no ulimit suffices",
            }),
            LockMemory::Require if !may_evict => Err(Error::BadOption {
                option: "lock_memory",
                value: "Require".to_owned(),
                expected: "Auto or Never: this kernel cannot evict locked pages (Linux 5.18 can)",
            }),
            LockMemory::Require => Ok(true),
            LockMemory::Auto => {
                let swap = probe::swap_is_on();
                if swap && !may_lock {
                    tracing::warn!("swap is on and CAP_IPC_LOCK is missing: the kernel may swap pages of the cache");
                } else if swap && !may_evict {
                    tracing::warn!(
                        "swap is on and this kernel cannot evict locked pages (Linux 5.18 can): the kernel may swap pages of the cache"
                    );
                }
                Ok(swap && may_lock && may_evict)
            }
        }
    }
}

const _: () = assert!(*CacheBuilder::CAPACITY_BYTES.start() == Overhead::LEAST.capacity_bytes(PAGES_MIN as u32));
