//! The rates of a cache between two samples.

use vmio::telemetry::{Histogram, Snapshot};

/// Rates of a cache over an interval.
#[derive(Clone)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// Misses by loads and stores.
    pub misses_per_s: f64,
    /// Touches of pages that were still in memory.
    pub minor_faults_per_s: f64,
    /// Stores to resident pages that were write-protected.
    pub write_protect_faults_per_s: f64,
    /// Pages evicted.
    pub evictions_per_s: f64,
    /// Bytes read from the backings.
    pub read_bytes_per_s: f64,
    /// Bytes written to the backings.
    pub written_bytes_per_s: f64,
    /// Read requests to the backings.
    pub reads_per_s: f64,
    /// Write requests to the backings.
    pub writes_per_s: f64,
    /// TLB shootdowns.
    pub shootdowns_per_s: f64,
    /// Mean number of misses under way at a time: by Little's law their total time, divided by the interval.
    pub misses_under_way: f64,
    /// Mean number of write requests under way at a time.
    pub writes_under_way: f64,
    /// The latencies of the interval's misses.
    pub miss: Histogram,
}

impl Interval {
    /// From an earlier snapshot of the same cache, or from its construction, to a later snapshot.
    pub fn between(before: Option<&Snapshot>, now: &Snapshot, seconds: f64) -> Self {
        let rate = |total: fn(&Snapshot) -> u64| {
            let before = before.map_or(0, total);
            total(now).saturating_sub(before) as f64 / seconds.max(1e-9)
        };
        let part = |all: fn(&Snapshot) -> &Histogram| {
            before.map_or_else(|| all(now).clone(), |before| all(now).since(all(before)))
        };
        let under_way = |part: &Histogram| part.sum_ns() as f64 / 1e9 / seconds.max(1e-9);
        let miss = part(|cache| &cache.miss);
        Interval {
            seconds,
            misses_per_s: rate(|cache| cache.stats.load_misses.saturating_add(cache.stats.store_misses)),
            minor_faults_per_s: rate(|cache| cache.stats.minor_faults),
            write_protect_faults_per_s: rate(|cache| cache.stats.write_protect_faults),
            evictions_per_s: rate(|cache| cache.stats.evicted_clean.saturating_add(cache.stats.evicted_dirty)),
            read_bytes_per_s: rate(|cache| cache.stats.read_bytes),
            written_bytes_per_s: rate(|cache| cache.stats.written_bytes),
            reads_per_s: rate(|cache| cache.stats.reads),
            writes_per_s: rate(|cache| cache.stats.writes),
            shootdowns_per_s: rate(|cache| cache.stats.shootdowns),
            misses_under_way: under_way(&miss),
            writes_under_way: under_way(&part(|cache| &cache.write)),
            miss,
        }
    }
}
