//! Counters of a cache: kept by core, and summed when they are read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::sys::cpu;
use crate::telemetry::layout::{Latency, PRIORITY_CLASSES, priority_class};
use crate::telemetry::page::StatPage;

macro_rules! counters {
    ($($counter:ident $name:literal,)*) => {
        /// The counters. A new one goes to the end, where readers of an earlier version ignore it.
        #[derive(Clone, Copy, Debug)]
        #[repr(usize)]
        pub(crate) enum Counter {
            $($counter,)*
        }

        /// The names of all counters in their order, as other programs see them.
        pub(crate) const NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
    LoadMisses "load_misses",
    StoreMisses "store_misses",
    MinorFaults "minor_faults",
    WriteProtectFaults "write_protect_faults",
    FreshFills "fresh_fills",
    ReadAheadPages "read_ahead_pages",
    FaultWaits "fault_waits",
    Reads "reads",
    ReadBytes "read_bytes",
    Writes "writes",
    WrittenBytes "written_bytes",
    HelpedWrites "helped_writes",
    EvictedClean "evicted_clean",
    EvictedDirty "evicted_dirty",
    DirectReclaims "direct_reclaims",
    ShootdownsEvict "shootdowns_evict",
    ShootdownsWriteBack "shootdowns_write_back",
    ShootdownsStore "shootdowns_store",
    ReadErrors "read_errors",
    WriteErrors "write_errors",
    DropFailures "drop_failures",
    TimedMisses "timed_misses",
    HandlerNs "handler_ns",
    BudgetNs "budget_ns",
    ReadNs "read_ns",
    InstallNs "install_ns",
    MovedSpans "moved_spans",
    RecycledSpans "recycled_spans",
    FetchedPages "fetched_pages",
}

/// All counters and histograms of a cache, in its stat page.
pub(crate) struct Counters {
    page: Arc<StatPage>,
}

impl Counters {
    pub(crate) fn new(page: &Arc<StatPage>) -> Self {
        Counters { page: Arc::clone(page) }
    }

    /// Adds to a counter; `core` is a hint.
    #[inline]
    pub(crate) fn add(&self, core: usize, counter: Counter, amount: u64) {
        self.page.counter(core, counter as usize).fetch_add(amount, Ordering::Relaxed);
    }

    /// The count of one core so far; `core` is a hint.
    #[inline]
    pub(crate) fn of_core(&self, core: usize, counter: Counter) -> u64 {
        self.page.counter(core, counter as usize).load(Ordering::Relaxed)
    }

    /// The sum over all cores.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.page.total(counter as usize)
    }

    /// Adds to the number of resident pages of a priority; a negative number subtracts. `core` is a hint.
    #[inline]
    pub(crate) fn add_resident(&self, core: usize, priority: u8, pages: i64) {
        self.page.resident(core, priority_class(priority)).fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Resident pages of each class of priorities.
    pub(crate) fn resident_by_priority(&self) -> [u64; PRIORITY_CLASSES] {
        std::array::from_fn(|class| self.page.total_resident(class))
    }

    /// Adds a duration to a histogram; `core` is a hint.
    #[inline]
    pub(crate) fn record(&self, core: usize, latency: Latency, ns: u64) {
        self.page.record(core, latency, ns);
    }
}

/// When dropped, adds the time since its beginning to a histogram.
pub(crate) struct Timed<'a> {
    counters: &'a Counters,
    latency: Latency,
    started: Instant,
}

impl<'a> Timed<'a> {
    /// Takes the time of an operation that began just now or earlier.
    #[inline]
    pub(crate) fn since(started: Instant, counters: &'a Counters, latency: Latency) -> Self {
        Timed { counters, latency, started }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.counters.record(cpu::current(), self.latency, self.started.elapsed().as_nanos() as u64);
    }
}

/// A snapshot of a cache's state, and of its counters since it was built ([`crate::Cache::stats`]).
///
/// With [`crate::Engine::Managed`], resident pages are an estimate. Counters that only the kernel could count stay
/// zero: misses, reads, waits. Dirty pages and bytes written need Linux 6.5 (cachestat), and count vmio's own writes,
/// not the kernel's.
///
/// With [`crate::Engine::Kernel`], only the counters of the module are set.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Pages that may be resident at a time.
    pub capacity_pages: u64,
    /// Pages resident or on their way in.
    pub resident_pages: u64,
    /// Resident pages in spans of each eighth of the priorities, from 0 to 31 up to 224 to 255.
    ///
    /// Pages that are about to come in or to be forgotten count too. Zeros with [`crate::Engine::Managed`] and
    /// [`crate::Engine::Kernel`].
    pub resident_by_priority: [u64; PRIORITY_CLASSES],
    /// Resident pages that are newer than the device.
    pub dirty_pages: u64,
    /// Pages of the budget for page tables and page words.
    ///
    /// They are two for every 2 MiB that hold a resident page, or did a moment ago. Each view
    /// ([`crate::Mapping::view`]) at which those 2 MiB were touched takes one more.
    pub table_pages: u64,
    /// Free pages of the budget.
    pub free_pages: u64,
    /// Pages held by pins, and two more for each 2 MiB that a pin touches.
    pub pinned_pages: u64,
    /// Loads that found their page absent.
    pub load_misses: u64,
    /// Stores that found their page absent.
    pub store_misses: u64,
    /// Stores that found their page resident but protected.
    pub write_protect_faults: u64,
    /// Minor faults: touches of a page that is inactive (in memory but unmapped, see [`crate::FrameHint::Mixed`]), or
    /// mapped only at another address ([`crate::FrameHint::SharedAddresses`]).
    pub minor_faults: u64,
    /// Misses filled with zeros because the range was advised fresh.
    pub fresh_fills: u64,
    /// Pages brought in beside a missed one.
    pub read_ahead_pages: u64,
    /// Spans of 2 MiB that came in as one huge page ([`crate::FrameHint::Stream`]).
    pub moved_spans: u64,
    /// Spans whose huge page went straight to the next span, instead of being given back.
    pub recycled_spans: u64,
    /// Pages that [`crate::Mapping::fetch`] and [`crate::Mapping::prefetch`] brought in by io_uring. Pages that a
    /// background thread brings in instead count as load misses.
    pub fetched_pages: u64,
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
    /// Shootdowns of eviction.
    pub shootdowns_evict: u64,
    /// Shootdowns of write-back and sync.
    pub shootdowns_write_back: u64,
    /// Shootdowns of stores to protected pages.
    pub shootdowns_store: u64,
    /// Pages that could not be read. With [`crate::Engine::Kernel`], requests that failed.
    pub read_errors: u64,
    /// Pages that could not be written; each attempt counts. With [`crate::Engine::Kernel`], requests that failed.
    pub write_errors: u64,
    /// Mappings whose last sync failed while they were dropped.
    pub drop_failures: u64,
    /// The parts of the time of misses. Zeros unless [`crate::CacheBuilder::measure_misses`] is on.
    pub miss_time: MissTime,
}

/// The counts of a cache's pages.
pub(crate) struct PageCounts {
    /// Pages that the cache may hold.
    pub(crate) capacity: u64,
    /// Pages that the cache holds beyond its capacity while it shrinks.
    pub(crate) owed: u64,
    /// Of the capacity and the owed pages: free ones.
    pub(crate) free: u64,
    /// Dirty.
    pub(crate) dirty: u64,
    /// Pinned.
    pub(crate) pinned: u64,
    /// Taken by page tables and page words.
    pub(crate) tables: u64,
    /// Resident, by class of priorities.
    pub(crate) by_priority: [u64; PRIORITY_CLASSES],
}

impl Stats {
    /// Makes the snapshot of a cache whose counters have these totals.
    pub(crate) fn gather(pages: PageCounts, total: impl Fn(Counter) -> u64) -> Self {
        let (evict, write_back, store) =
            (total(Counter::ShootdownsEvict), total(Counter::ShootdownsWriteBack), total(Counter::ShootdownsStore));
        Stats {
            capacity_pages: pages.capacity,
            resident_pages: (pages.capacity + pages.owed).saturating_sub(pages.free.saturating_add(pages.tables)),
            resident_by_priority: pages.by_priority,
            table_pages: pages.tables,
            dirty_pages: pages.dirty,
            free_pages: pages.free,
            pinned_pages: pages.pinned,
            load_misses: total(Counter::LoadMisses),
            store_misses: total(Counter::StoreMisses),
            minor_faults: total(Counter::MinorFaults),
            write_protect_faults: total(Counter::WriteProtectFaults),
            fresh_fills: total(Counter::FreshFills),
            read_ahead_pages: total(Counter::ReadAheadPages),
            fault_waits: total(Counter::FaultWaits),
            read_bytes: total(Counter::ReadBytes),
            reads: total(Counter::Reads),
            written_bytes: total(Counter::WrittenBytes),
            writes: total(Counter::Writes),
            helped_writes: total(Counter::HelpedWrites),
            evicted_clean: total(Counter::EvictedClean),
            evicted_dirty: total(Counter::EvictedDirty),
            direct_reclaims: total(Counter::DirectReclaims),
            shootdowns: evict.wrapping_add(write_back).wrapping_add(store),
            shootdowns_evict: evict,
            shootdowns_write_back: write_back,
            shootdowns_store: store,
            read_errors: total(Counter::ReadErrors),
            write_errors: total(Counter::WriteErrors),
            drop_failures: total(Counter::DropFailures),
            miss_time: MissTime {
                misses: total(Counter::TimedMisses),
                handler_ns: total(Counter::HandlerNs),
                budget_ns: total(Counter::BudgetNs),
                read_ns: total(Counter::ReadNs),
                install_ns: total(Counter::InstallNs),
            },
            moved_spans: total(Counter::MovedSpans),
            recycled_spans: total(Counter::RecycledSpans),
            fetched_pages: total(Counter::FetchedPages),
        }
    }
}

/// The parts of the time of all timed misses, in nanoseconds. The trap itself is not included.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MissTime {
    /// Misses timed.
    pub misses: u64,
    /// From the entry of the handler to its return.
    pub handler_ns: u64,
    /// Of this time: getting a page of the budget, with evictions and helped writes.
    pub budget_ns: u64,
    /// Of this time: reading from the backing.
    pub read_ns: u64,
    /// Of this time: mapping the page.
    pub install_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_document_names_every_counter_at_its_place() {
        let document = include_str!("../../../../docs/formats/stat-page.md");
        for (number, name) in NAMES.iter().enumerate() {
            assert!(document.contains(&format!("\n| {number} | `{name}` |")), "{number} is {name}");
        }
        assert!(!document.contains(&format!("\n| {} | `", NAMES.len())), "the document has more counters");
    }
}
