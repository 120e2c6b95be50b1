//! A sample as a JSON object: bytes, counts and nanoseconds, not rounded.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use vmio::PAGE_BYTES;
use vmio::telemetry::{Histogram, Snapshot};

use super::interval::Interval;
use super::priorities::resident_by_priority;

/// The object of one sample.
pub fn sample(process_id: u32, command: &str, caches: Vec<Value>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "unix_ms": now.as_millis() as u64,
        "process_id": process_id,
        "command": command,
        "caches": caches,
    })
}

/// One cache: its totals, and its rates if there is an interval.
pub fn cache(cache: &Snapshot, interval: Option<&Interval>) -> Value {
    let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES as u64);
    let counters: Map<String, Value> =
        cache.counters().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    let mut object = json!({
        "cache": cache.cache_number,
        "started_unix_ns": cache.started_unix_ns,
        "capacity_bytes": bytes(cache.stats.capacity_pages),
        "resident_bytes": bytes(cache.stats.resident_pages),
        "resident_bytes_by_priority": resident_by_priority(cache).map(|(priorities, pages)| json!({
            "lowest": priorities.start(),
            "highest": priorities.end(),
            "bytes": bytes(pages),
        })).collect::<Vec<_>>(),
        "table_bytes": bytes(cache.stats.table_pages),
        "dirty_bytes": bytes(cache.stats.dirty_pages),
        "free_bytes": bytes(cache.stats.free_pages),
        "pinned_bytes": bytes(cache.stats.pinned_pages),
        "mappings": cache.mappings,
        "mapped_bytes": cache.mapped_bytes,
        "counters": counters,
        "latency_ns": {
            "miss": latency(&cache.miss),
            "read": latency(&cache.read),
            "write": latency(&cache.write),
            "sync": latency(&cache.sync),
        },
        "reads_timed_one_in": cache.read_sampling,
    });
    if let Some(interval) = interval {
        object["interval"] = rates(interval);
    }
    object
}

fn rates(interval: &Interval) -> Value {
    json!({
        "seconds": interval.seconds,
        "misses_per_s": interval.misses_per_s,
        "minor_faults_per_s": interval.minor_faults_per_s,
        "write_protect_faults_per_s": interval.write_protect_faults_per_s,
        "evictions_per_s": interval.evictions_per_s,
        "read_bytes_per_s": interval.read_bytes_per_s,
        "written_bytes_per_s": interval.written_bytes_per_s,
        "reads_per_s": interval.reads_per_s,
        "writes_per_s": interval.writes_per_s,
        "shootdowns_per_s": interval.shootdowns_per_s,
        "misses_under_way": interval.misses_under_way,
        "writes_under_way": interval.writes_under_way,
        "miss_ns": {
            "count": interval.miss.count(),
            "p50": interval.miss.quantile_ns(0.5),
            "p99": interval.miss.quantile_ns(0.99),
        },
    })
}

/// Quantiles are null if there are no timings.
fn latency(histogram: &Histogram) -> Value {
    json!({
        "count": histogram.count(),
        "sum": histogram.sum_ns(),
        "p50": histogram.quantile_ns(0.5),
        "p99": histogram.quantile_ns(0.99),
        "p999": histogram.quantile_ns(0.999),
        "max": histogram.max_ns(),
    })
}
