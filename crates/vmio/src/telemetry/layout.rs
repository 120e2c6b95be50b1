//! The layout of a stat page, which `docs/formats/stat-page.md` describes to the byte.
//!
//! The page is an array of little-endian 64-bit words: a header block, then a block for each core. Writer and reader
//! both find a word through this file alone.

use crate::sys::PAGE_BYTES;

/// The name of the memory file.
pub(crate) const FILE_NAME: &str = "vmio-stat";
/// The first word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"vmiostat");
/// The version of the layout that this library writes and reads. Further counters, gauges or histograms at the end of
/// theirs do not change it: the header has their numbers.
pub(crate) const VERSION: u64 = 1;

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// Bytes of the header block and of each core's block: a page, so that no two cores share a cache line.
pub(crate) const BLOCK_BYTES: usize = PAGE_BYTES;
/// Words of a block.
pub(crate) const BLOCK_WORDS: usize = BLOCK_BYTES / WORD_BYTES;
/// A reader refuses pages with more cores than this.
pub(crate) const CORES_MAX: usize = 8192;

/// The header's words.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Header {
    /// [`MAGIC`]; written last.
    Magic,
    /// [`VERSION`].
    Version,
    /// Length of the file.
    FileBytes,
    /// [`BLOCK_BYTES`].
    BlockBytes,
    /// The ID of the process that the cache belongs to, as that process knows it.
    ProcessId,
    /// 1 for the first cache of the process, and so on.
    CacheNumber,
    /// When the cache was built, in nanoseconds since 1970.
    StartedUnixNs,
    /// Bytes of a page of the cache.
    PageBytes,
    /// How many pages may be resident.
    CapacityPages,
    /// How many blocks follow.
    Cores,
    /// How many gauges are written.
    Gauges,
    /// How many counters a core has.
    Counters,
    /// How many histograms a core has.
    Histograms,
    /// Buckets of a histogram.
    Buckets,
    /// The cache times one in this many device reads.
    ReadSampling,
    /// Classes of priorities for which each core counts resident pages; 0 in pages from before the field existed.
    PriorityClasses,
}

/// Values that go up and down, each on a cache line pair of its own in the header's block.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Gauge {
    /// Free pages that no core keeps to itself.
    PooledPages,
    /// Resident pages that are newer than the device. The value may be negative for an instant.
    DirtyPages,
    /// Pages held by pins.
    PinnedPages,
    /// Open mappings.
    Mappings,
    /// The sum of the mappings' lengths.
    MappedBytes,
    /// Pages of the budget that page tables and page words take.
    TablePages,
}

/// The number of gauges.
pub(crate) const GAUGES: usize = Gauge::TablePages as usize + 1;
const GAUGES_START: usize = 128;
const GAUGE_WORDS: usize = 16;
/// The space for gauges.
pub(crate) const GAUGES_MAX: usize = (BLOCK_WORDS - GAUGES_START) / GAUGE_WORDS;

/// The durations for which each core has a histogram.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Latency {
    /// A miss, from the claim of its page until it is mapped.
    Miss,
    /// A read request to a backing.
    Read,
    /// A write request to a backing, and settling its pages.
    Write,
    /// A sync of a mapping or a part of it.
    Sync,
}

/// The number of histograms.
pub(crate) const LATENCIES: usize = Latency::Sync as usize + 1;
/// The space for counters in a core's block.
pub(crate) const COUNTERS_MAX: usize = CORE_FREE_PAGES;
const CORE_FREE_PAGES: usize = 112;
const CORE_RESIDENT: usize = CORE_FREE_PAGES + 1;
/// Classes of priorities, all of the same width.
pub(crate) const PRIORITY_CLASSES: usize = 8;
const HISTOGRAMS_START: usize = 128;
const HISTOGRAM_WORDS: usize = 96;
/// The space for histograms in a core's block.
pub(crate) const HISTOGRAMS_MAX: usize = (BLOCK_WORDS - HISTOGRAMS_START) / HISTOGRAM_WORDS;

/// Durations below this power of two are in the first bucket.
const SHORTEST_POWER: u32 = 8;
/// Durations of this power of two and above are in the last bucket.
const LONGEST_POWER: u32 = 30;
/// Buckets for each power of two.
const STEPS: u64 = 4;
/// Buckets of a histogram: one below the shortest power, four for each, one above.
pub(crate) const BUCKETS: usize = (LONGEST_POWER - SHORTEST_POWER) as usize * STEPS as usize + 2;
/// Behind the buckets of a histogram: the sum of all durations.
pub(crate) const SUM_NS: usize = BUCKETS;
/// Behind the sum: the longest duration.
pub(crate) const MAX_NS: usize = BUCKETS + 1;

const _: () = {
    assert!(Header::ProcessId as usize * WORD_BYTES == 32);
    assert!(Header::Cores as usize * WORD_BYTES == 72);
    assert!(Header::ReadSampling as usize * WORD_BYTES == 112);
    assert!(Header::PriorityClasses as usize * WORD_BYTES == 120);
    assert!((Header::PriorityClasses as usize) < GAUGES_START);
    assert!(gauge(Gauge::PooledPages) * WORD_BYTES == 1024);
    assert!(gauge(Gauge::TablePages) * WORD_BYTES == 1664);
    assert!(GAUGES <= GAUGES_MAX && GAUGES_MAX == 24);
    assert!(counter(0, 0) * WORD_BYTES == 4096);
    assert!(free_pages(0) * WORD_BYTES == 4096 + 896);
    assert!(resident(0, 0) * WORD_BYTES == 4096 + 904);
    assert!(CORE_RESIDENT + PRIORITY_CLASSES <= HISTOGRAMS_START);
    assert!(histogram(0, 0) * WORD_BYTES == 4096 + 1024);
    assert!(histogram(1, 3) * WORD_BYTES == 2 * 4096 + 1024 + 3 * 768);
    assert!(BUCKETS == 90 && SUM_NS * WORD_BYTES == 720 && MAX_NS * WORD_BYTES == 728);
    assert!(MAX_NS < HISTOGRAM_WORDS);
    assert!(LATENCIES <= HISTOGRAMS_MAX && HISTOGRAMS_MAX == 4);
};

/// Bytes of the file.
pub(crate) const fn file_bytes(cores: usize) -> usize {
    (1 + cores) * BLOCK_BYTES
}

/// The word of a gauge.
pub(crate) const fn gauge(gauge: Gauge) -> usize {
    GAUGES_START + gauge as usize * GAUGE_WORDS
}

/// The word of a core's counter.
pub(crate) const fn counter(core: usize, counter: usize) -> usize {
    (1 + core) * BLOCK_WORDS + counter
}

/// The word of the free pages that a core keeps to itself. It is not among the core's counters, since other cores read
/// it.
pub(crate) const fn free_pages(core: usize) -> usize {
    (1 + core) * BLOCK_WORDS + CORE_FREE_PAGES
}

/// The word of a core for the resident pages of a class of priorities. It is signed, and only the sum over all cores
/// has a meaning.
pub(crate) const fn resident(core: usize, class: usize) -> usize {
    (1 + core) * BLOCK_WORDS + CORE_RESIDENT + class
}

/// The class of a priority.
pub(crate) fn priority_class(priority: u8) -> usize {
    usize::from(priority) * PRIORITY_CLASSES / (u8::MAX as usize + 1)
}

/// The first word of a core's histogram.
pub(crate) const fn histogram(core: usize, number: usize) -> usize {
    (1 + core) * BLOCK_WORDS + HISTOGRAMS_START + number * HISTOGRAM_WORDS
}

/// The bucket of a duration.
pub(crate) fn bucket_of(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0);
    if power < SHORTEST_POWER {
        return 0;
    }
    if power >= LONGEST_POWER {
        return BUCKETS - 1;
    }
    let step = (ns >> (power - STEPS.ilog2())) % STEPS;
    1 + (u64::from(power - SHORTEST_POWER) * STEPS + step) as usize
}

/// The shortest duration that is too long for a bucket; `u64::MAX` for the last one.
pub(crate) fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket >= BUCKETS - 1 {
        return u64::MAX;
    }
    // The end of one bucket is the start of the next.
    let (power, step) = (SHORTEST_POWER + (bucket as u64 / STEPS) as u32, bucket as u64 % STEPS);
    (STEPS + step) << (power - STEPS.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_duration_in_order() {
        assert_eq!((bucket_of(0), bucket_of(255), bucket_of(256), bucket_of(319)), (0, 0, 1, 1));
        assert_eq!((bucket_of(320), bucket_of(511), bucket_of(512)), (2, 4, 5));
        assert_eq!((bucket_of((1 << 30) - 1), bucket_of(1 << 30), bucket_of(u64::MAX)), (88, 89, 89));
        for bucket in 0..BUCKETS - 1 {
            let end = bucket_end_ns(bucket);
            assert_eq!((bucket_of(end - 1), bucket_of(end)), (bucket, bucket + 1));
        }
    }
}
