//! What a cache has done between two samples.

use vmio::telemetry::{Histogram, Snapshot};

/// Rates of a cache over an interval.
pub struct Interval {
    /// How long it was.
    pub seconds: f64,
    /// Misses by loads and stores.
    pub misses_per_s: f64,
    /// Touches of pages that were still in memory.
    pub soft_misses_per_s: f64,
    /// Stores to resident pages that were protected.
    pub write_protect_faults_per_s: f64,
    /// Pages evicted.
    pub evictions_per_s: f64,
    /// Bytes read from the backings.
    pub read_bytes_per_s: f64,
    /// Bytes written to the backings.
    pub written_bytes_per_s: f64,
    /// TLB shootdowns.
    pub shootdowns_per_s: f64,
    /// How long the misses of the interval took.
    pub miss: Histogram,
}

impl Interval {
    /// From an earlier snapshot of the same cache, or from when it was built, to a later one.
    pub fn between(before: Option<&Snapshot>, now: &Snapshot, seconds: f64) -> Self {
        let rate = |total: fn(&Snapshot) -> u64| {
            let before = before.map_or(0, total);
            total(now).saturating_sub(before) as f64 / seconds.max(1e-9)
        };
        Interval {
            seconds,
            misses_per_s: rate(|cache| cache.stats.load_misses.saturating_add(cache.stats.store_misses)),
            soft_misses_per_s: rate(|cache| cache.stats.soft_misses),
            write_protect_faults_per_s: rate(|cache| cache.stats.write_protect_faults),
            evictions_per_s: rate(|cache| cache.stats.evicted_clean.saturating_add(cache.stats.evicted_dirty)),
            read_bytes_per_s: rate(|cache| cache.stats.read_bytes),
            written_bytes_per_s: rate(|cache| cache.stats.written_bytes),
            shootdowns_per_s: rate(|cache| cache.stats.shootdowns),
            miss: before.map_or_else(|| now.miss.clone(), |before| now.miss.since(&before.miss)),
        }
    }
}
