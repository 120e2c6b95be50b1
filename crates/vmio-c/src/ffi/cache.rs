//! The cache: one budget of memory for any number of mappings.

use std::mem::MaybeUninit;

use vmio::{Cache, Engine, EvictionPolicy, FrameHint, LockMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::failure::{Failure, contain, report};
use crate::ffi::memory::{given, hand_out, read_options, write_result};
use crate::status::vmio_status;

/// As VMIO_ENGINE_SIGBUS; where userfaultfd is denied, as in most containers, VMIO_ENGINE_MANAGED.
pub const VMIO_ENGINE_AUTO: u32 = 0;
/// The faulting thread handles its own fault in a SIGBUS handler that the cache installs. Threads that touch mapped memory
/// must not block SIGBUS, and system calls get pointers into pinned ranges only (others fail with EFAULT).
pub const VMIO_ENGINE_SIGBUS: u32 = 1;
/// Reader threads of the cache handle faults while the faulting thread sleeps: no signal handler, and system calls take
/// mapped pointers. Misses take longer, and a right is needed; `vmio doctor` says which.
pub const VMIO_ENGINE_READER_THREAD: u32 = 2;
/// The kernel's own mmap takes the faults, and a background reclaimer of vmio keeps the budget.
pub const VMIO_ENGINE_MANAGED: u32 = 3;
/// The kernel module vmio.ko takes the faults, and system calls take mapped pointers. Without it, or the right to open
/// /dev/vmio, VMIO_ERROR_NO_ENGINE.
pub const VMIO_ENGINE_KERNEL: u32 = 4;

/// The frames of the cache's options; if these are VMIO_FRAMES_AUTO too, VMIO_FRAMES_READ_MOSTLY.
pub const VMIO_FRAMES_AUTO: u32 = 0;
/// Private pages: cheapest to bring in and to evict.
pub const VMIO_FRAMES_READ_MOSTLY: u32 = 1;
/// For pages that are read and then stored to, and for stores beside a sync.
pub const VMIO_FRAMES_MIXED: u32 = 2;
/// Huge pages that are read ahead, for scans of mappings that are read-only.
pub const VMIO_FRAMES_STREAM: u32 = 3;
/// As VMIO_FRAMES_READ_MOSTLY, with huge pages for the scans of mappings that are read-only.
pub const VMIO_FRAMES_DYNAMIC: u32 = 4;

/// The best for most programs: S3-FIFO; over frames that can be deactivated, span by span.
pub const VMIO_POLICY_AUTO: u32 = 0;
/// First in, first out.
pub const VMIO_POLICY_FIFO: u32 = 1;
/// Pages that are wanted again soon after their eviction stay longer.
pub const VMIO_POLICY_KEEP_REFAULTED: u32 = 2;
/// New pages leave soon, those that come back stay the longer the more often they did.
pub const VMIO_POLICY_S3_FIFO: u32 = 3;

/// Lock the cache in memory if swap is on and the process may.
pub const VMIO_LOCK_AUTO: u32 = 0;
/// Do not lock it.
pub const VMIO_LOCK_NEVER: u32 = 1;
/// Lock it, or fail.
pub const VMIO_LOCK_REQUIRE: u32 = 2;

/// A budget of memory that any number of mappings share.
pub struct vmio_cache(pub(super) Cache);

/// Options of a cache. Zero is the default of every field but `size` and `capacity_bytes`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct vmio_cache_options {
    /// sizeof(struct vmio_cache_options).
    pub size: usize,
    /// The memory that the cache may use; 6 MiB at least.
    pub capacity_bytes: u64,
    /// The share of the cache that may be dirty before write-back begins though nothing is evicted; 0.75 by default.
    pub dirty_ratio: f64,
    /// How page faults reach the cache: VMIO_ENGINE_*.
    pub engine: u32,
    /// The memory that holds resident pages, for mappings that do not choose: VMIO_FRAMES_*.
    pub frames: u32,
    /// Which pages are given up first, within a priority: VMIO_POLICY_*.
    pub policy: u32,
    /// Whether the cache is locked in memory: VMIO_LOCK_*.
    pub lock_memory: u32,
    /// Threads that evict and write in the background; one a core by default, 2 to 16.
    pub workers: u32,
    /// Threads that handle the faults of VMIO_ENGINE_READER_THREAD; one a core by default, 2 at least.
    pub readers: u32,
    /// Pages that each core may have under way, half of them for prefetches; 256 by default.
    pub pages_in_flight: u32,
    /// Must be 0.
    pub reserved: u32,
    /// If not 0, vmio changes the capacity, from this many bytes (6 MiB at least) up to `capacity_bytes`. The cache
    /// shrinks where memory runs short in the process's memory cgroups or in the system, and grows where nobody waits
    /// for memory. vmio_cache_stats has the present capacity.
    pub capacity_min_bytes: u64,
}

/// The state of a cache, in pages of 4096 bytes, and its counters since it was made.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct vmio_stats {
    /// sizeof(struct vmio_stats).
    pub size: usize,
    /// Pages that may be resident.
    pub capacity_pages: u64,
    /// Pages that are resident.
    pub resident_pages: u64,
    /// Resident pages that are newer than the device.
    pub dirty_pages: u64,
    /// Pages of the budget for page tables and page words.
    pub table_pages: u64,
    /// Pages that nobody uses.
    pub free_pages: u64,
    /// Pages held by pins.
    pub pinned_pages: u64,
    /// Loads that found their page absent.
    pub load_misses: u64,
    /// Stores that found their page absent.
    pub store_misses: u64,
    /// Minor faults: touches of pages that were inactive (in memory, but unmapped), or mapped at another address only.
    pub minor_faults: u64,
    /// Stores that found their page resident but protected.
    pub write_protect_faults: u64,
    /// Misses filled with zeros because the range was advised fresh.
    pub fresh_fills: u64,
    /// Pages brought in beside a missed one.
    pub read_ahead_pages: u64,
    /// Pages brought in by vmio_prefetch.
    pub fetched_pages: u64,
    /// Times that a fault waited for another thread's work on the page.
    pub fault_waits: u64,
    /// Requests to read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Pages evicted without a write.
    pub evicted_clean: u64,
    /// Pages evicted right after a write.
    pub evicted_dirty: u64,
    /// Times that a faulting thread had to evict by itself.
    pub direct_reclaims: u64,
    /// Operations that make the kernel interrupt the other cores.
    pub shootdowns: u64,
    /// Pages that could not be read.
    pub read_errors: u64,
    /// Pages that could not be written, each attempt counted.
    pub write_errors: u64,
    /// Resident pages by the priority of their 2 MiB: 0 to 31, and so on up to 224 to 255, which go first. Zeros with
    /// VMIO_ENGINE_MANAGED and VMIO_ENGINE_KERNEL.
    pub resident_by_priority: [u64; 8],
}

/// Makes a cache and starts its threads. `options` may not be NULL, since the capacity has no default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_cache_new(
    options: *const vmio_cache_options,
    cache: Option<&mut MaybeUninit<*mut vmio_cache>>,
) -> vmio_status {
    report(|| {
        hand_out(cache, "cache", || {
            // SAFETY: the caller vouches for the options.
            let options = unsafe { read_options(options, "options") }?;
            Ok(vmio_cache(options.build()?))
        })
    })
}

/// Gives the handle back. The cache itself goes with the last mapping that uses it. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_cache_free(cache: Option<Box<vmio_cache>>) {
    contain((), || drop(cache));
}

/// Changes the memory that a cache may use, in bytes, without stopping anybody. A larger capacity counts at once; for a
/// smaller one the call evicts, and returns when that capacity is met. VMIO_ERROR_INVALID for less than 6 MiB.
/// VMIO_ERROR_CACHE_FULL if pins hold more than three quarters of the new capacity, or pages cannot be written; the
/// capacity then stays as it was.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_cache_resize(cache: Option<&vmio_cache>, capacity_bytes: u64) -> vmio_status {
    report(|| Ok(given(cache, "cache")?.0.resize(capacity_bytes)?))
}

/// Returns the engine of a cache: for VMIO_ENGINE_AUTO the one that it stands for here. VMIO_ENGINE_AUTO for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_cache_engine(cache: Option<&vmio_cache>) -> u32 {
    contain(VMIO_ENGINE_AUTO, || match cache.map(|cache| cache.0.engine()) {
        Some(Engine::Sigbus) => VMIO_ENGINE_SIGBUS,
        Some(Engine::ReaderThread) => VMIO_ENGINE_READER_THREAD,
        Some(Engine::Managed) => VMIO_ENGINE_MANAGED,
        Some(Engine::Kernel) => VMIO_ENGINE_KERNEL,
        _ => VMIO_ENGINE_AUTO,
    })
}

/// Fills `stats`, whose `size` must be set. The counts are of different instants, and zero in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_cache_stats(cache: Option<&vmio_cache>, stats: *mut vmio_stats) -> vmio_status {
    report(|| {
        let seen = vmio_stats::of(&given(cache, "cache")?.0);
        // SAFETY: the caller vouches for the structure.
        unsafe { write_result(stats, &seen, "stats") }
    })
}

impl vmio_cache_options {
    fn build(&self) -> Result<Cache, Failure> {
        let mut builder = Cache::builder().capacity(self.capacity_bytes);
        if self.capacity_min_bytes != 0 {
            builder = builder.capacity_auto(self.capacity_min_bytes..=self.capacity_bytes);
        }
        builder = builder.engine(match self.engine {
            VMIO_ENGINE_AUTO => Engine::Auto,
            VMIO_ENGINE_SIGBUS => Engine::Sigbus,
            VMIO_ENGINE_READER_THREAD => Engine::ReaderThread,
            VMIO_ENGINE_MANAGED => Engine::Managed,
            VMIO_ENGINE_KERNEL => Engine::Kernel,
            other => return Err(unknown("options.engine", other, "VMIO_ENGINE_*")),
        });
        builder = builder.frames(frames(self.frames)?);
        builder = builder.policy(match self.policy {
            VMIO_POLICY_AUTO => EvictionPolicy::Auto,
            VMIO_POLICY_FIFO => EvictionPolicy::Fifo,
            VMIO_POLICY_KEEP_REFAULTED => EvictionPolicy::KeepRefaulted,
            VMIO_POLICY_S3_FIFO => EvictionPolicy::S3Fifo,
            other => return Err(unknown("options.policy", other, "VMIO_POLICY_*")),
        });
        builder = builder.lock_memory(match self.lock_memory {
            VMIO_LOCK_AUTO => LockMemory::Auto,
            VMIO_LOCK_NEVER => LockMemory::Never,
            VMIO_LOCK_REQUIRE => LockMemory::Require,
            other => return Err(unknown("options.lock_memory", other, "VMIO_LOCK_*")),
        });
        if self.reserved != 0 {
            return Err(unknown("options.reserved", self.reserved, "0"));
        }
        if self.dirty_ratio != 0.0 {
            builder = builder.dirty_ratio(self.dirty_ratio);
        }
        if self.workers != 0 {
            builder = builder.workers(self.workers as usize);
        }
        if self.readers != 0 {
            builder = builder.readers(self.readers as usize);
        }
        if self.pages_in_flight != 0 {
            builder = builder.pages_in_flight(self.pages_in_flight as usize);
        }
        Ok(builder.build()?)
    }
}

impl vmio_stats {
    fn of(cache: &Cache) -> Self {
        let stats = cache.stats();
        vmio_stats {
            size: size_of::<Self>(),
            capacity_pages: stats.capacity_pages,
            resident_pages: stats.resident_pages,
            dirty_pages: stats.dirty_pages,
            table_pages: stats.table_pages,
            free_pages: stats.free_pages,
            pinned_pages: stats.pinned_pages,
            load_misses: stats.load_misses,
            store_misses: stats.store_misses,
            minor_faults: stats.minor_faults,
            write_protect_faults: stats.write_protect_faults,
            fresh_fills: stats.fresh_fills,
            read_ahead_pages: stats.read_ahead_pages,
            fetched_pages: stats.fetched_pages,
            fault_waits: stats.fault_waits,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            writes: stats.writes,
            written_bytes: stats.written_bytes,
            evicted_clean: stats.evicted_clean,
            evicted_dirty: stats.evicted_dirty,
            direct_reclaims: stats.direct_reclaims,
            shootdowns: stats.shootdowns,
            read_errors: stats.read_errors,
            write_errors: stats.write_errors,
            resident_by_priority: stats.resident_by_priority,
        }
    }
}

/// The kind of frames of that number.
pub(super) fn frames(number: u32) -> Result<FrameHint, Failure> {
    Ok(match number {
        VMIO_FRAMES_AUTO => FrameHint::Auto,
        VMIO_FRAMES_READ_MOSTLY => FrameHint::ReadMostly,
        VMIO_FRAMES_MIXED => FrameHint::Mixed,
        VMIO_FRAMES_STREAM => FrameHint::Stream,
        VMIO_FRAMES_DYNAMIC => FrameHint::Dynamic,
        other => return Err(unknown("options.frames", other, "VMIO_FRAMES_*")),
    })
}

/// A number that stands for nothing.
pub(super) fn unknown(name: &str, value: u32, expected: &str) -> Failure {
    Failure::invalid(format!("{name} is {value}: {expected} is expected"))
}
