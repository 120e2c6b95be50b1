//! What happened so far: per-core counters, summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// The things that are counted.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Counter {
    LoadMisses,
    StoreMisses,
    WriteProtectFaults,
    SoftMisses,
    FreshFills,
    ReadAheadPages,
    FaultWaits,
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    HelpedWrites,
    EvictedClean,
    EvictedDirty,
    DirectReclaims,
    ShootdownsEvict,
    ShootdownsWriteBack,
    ShootdownsStore,
    ReadErrors,
    WriteErrors,
    DropFailures,
    TimedMisses,
    HandlerNs,
    BudgetNs,
    ReadNs,
    InstallNs,
}

const COUNTERS: usize = Counter::InstallNs as usize + 1;

/// All counters of a cache.
pub(crate) struct Counters {
    cores: Box<[CachePadded<[AtomicU64; COUNTERS]>]>,
}

impl Counters {
    pub(crate) fn new(cores: usize) -> Self {
        let zeros = || CachePadded::new([const { AtomicU64::new(0) }; COUNTERS]);
        Counters { cores: (0..cores.max(1)).map(|_| zeros()).collect() }
    }

    /// Adds to a counter; `core` is a hint.
    #[inline]
    pub(crate) fn add(&self, core: usize, counter: Counter, amount: u64) {
        self.cores[core % self.cores.len()][counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum over all cores.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.cores.iter().map(|core| core[counter as usize].load(Ordering::Relaxed)).sum()
    }
}

/// A snapshot of a cache's state and of what it has done since it was built.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Pages that may be resident at a time.
    pub capacity_pages: u64,
    /// Pages resident or on their way in.
    pub resident_pages: u64,
    /// Resident pages that are newer than the device.
    pub dirty_pages: u64,
    /// Pages of the budget that nobody uses.
    pub free_pages: u64,
    /// Pages held by pins.
    pub pinned_pages: u64,
    /// Loads that found their page absent.
    pub load_misses: u64,
    /// Stores that found their page absent.
    pub store_misses: u64,
    /// Stores that found their page resident but protected.
    pub write_protect_faults: u64,
    /// Touches of a page that was out of the program's sight but still in memory ([`crate::FrameHint::Mixed`]).
    pub soft_misses: u64,
    /// Misses filled with zeros because the range was advised fresh.
    pub fresh_fills: u64,
    /// Pages brought in beside a missed one.
    pub read_ahead_pages: u64,
    /// Times that a fault waited for another thread's work on the page.
    pub fault_waits: u64,
    /// Bytes read from the backings.
    pub read_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes written to the backings.
    pub written_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Write requests done by a faulting thread, because the workers could not keep up.
    pub helped_writes: u64,
    /// Pages evicted without a write.
    pub evicted_clean: u64,
    /// Pages evicted right after a write.
    pub evicted_dirty: u64,
    /// Times that a faulting thread had to evict by itself.
    pub direct_reclaims: u64,
    /// Operations that make the kernel interrupt the other cores to flush their TLBs.
    pub shootdowns: u64,
    /// Those of eviction.
    pub shootdowns_evict: u64,
    /// Those of write-back and sync.
    pub shootdowns_write_back: u64,
    /// Those of stores to protected pages.
    pub shootdowns_store: u64,
    /// Pages that could not be read.
    pub read_errors: u64,
    /// Pages that could not be written, each attempt counted.
    pub write_errors: u64,
    /// Mappings whose last sync failed while they were dropped.
    pub drop_failures: u64,
    /// Where the time of misses went; zeros unless [`crate::CacheBuilder::measure_misses`].
    pub miss_time: MissTime,
}

/// The parts of all misses that were timed, in nanoseconds; the trap itself is outside and not in it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MissTime {
    /// Misses timed.
    pub misses: u64,
    /// From the entry of the handler to its return.
    pub handler_ns: u64,
    /// Of that: getting a page of the budget, with evictions and helped writes.
    pub budget_ns: u64,
    /// Of that: reading from the backing.
    pub read_ns: u64,
    /// Of that: making the page visible.
    pub install_ns: u64,
}
