//! The totals of caches in Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write};

use vmio::PAGE_BYTES;
use vmio::telemetry::{Histogram, Snapshot};

use super::priorities::resident_by_priority;

/// The content type of [`exposition`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The target of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsTarget {
    /// Standard output, once.
    StandardOutput,
    /// A server at an address with a port.
    Address(String),
}

impl From<&str> for MetricsTarget {
    fn from(text: &str) -> Self {
        if text == "-" { Self::StandardOutput } else { Self::Address(text.to_owned()) }
    }
}

/// The help texts of the counters by name. A counter without one came with a later version of the stat page.
const COUNTERS: &[(&str, &str)] = &[
    ("load_misses", "Loads that found their page absent."),
    ("store_misses", "Stores that found their page absent."),
    (
        "minor_faults",
        "Touches of a page that was inactive (in memory, but unmapped), or mapped at another address only.",
    ),
    ("write_protect_faults", "Stores to resident pages that were write-protected."),
    ("fresh_fills", "Misses that were filled with zeros because their range was marked fresh."),
    ("read_ahead_pages", "Pages read ahead of a missed one."),
    ("fault_waits", "Faults that waited for another thread's work on the page."),
    ("reads", "Read requests to the backings."),
    ("read_bytes", "Bytes read from the backings."),
    ("writes", "Write requests to the backings."),
    ("written_bytes", "Bytes written to the backings."),
    ("helped_writes", "Write requests done by a faulting thread."),
    ("evicted_clean", "Pages evicted without a write."),
    ("evicted_dirty", "Pages evicted right after a write."),
    ("direct_reclaims", "Faulting threads that had to evict pages themselves."),
    ("shootdowns_evict", "TLB shootdowns of eviction."),
    ("shootdowns_write_back", "TLB shootdowns of write-back and sync."),
    ("shootdowns_store", "TLB shootdowns of stores to protected pages."),
    ("read_errors", "Pages that could not be read."),
    ("write_errors", "Pages that could not be written, each attempt counted."),
    ("drop_failures", "Mappings whose last sync failed while they were dropped."),
    ("timed_misses", "Misses whose parts were timed."),
    ("handler_ns", "Of the timed misses: time in the handler."),
    ("budget_ns", "Of that: getting a page of the budget."),
    ("read_ns", "Of that: reading."),
    ("install_ns", "Of that: mapping the page."),
    ("moved_spans", "Spans of 2 MiB that were read into one huge page."),
    ("recycled_spans", "Spans whose huge page was reused for the next one."),
    ("fetched_pages", "Pages read by asynchronous misses, through io_uring."),
];

/// Every metric of all caches of a process, with its help and type.
pub fn exposition(process_id: u32, caches: &[Snapshot]) -> String {
    let mut text = Exposition { process_id, caches, text: String::new() };
    let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES as u64);
    text.gauge("capacity_bytes", "Memory for pages, page tables and page words.", |cache| {
        bytes(cache.stats.capacity_pages)
    });
    text.gauge("resident_bytes", "Pages in memory or being read.", |cache| bytes(cache.stats.resident_pages));
    text.by_priority("resident_by_priority_bytes", "Resident pages of each eighth of the priorities; 255 goes first.");
    text.gauge("table_bytes", "Page tables and page words.", |cache| bytes(cache.stats.table_pages));
    text.gauge("dirty_bytes", "Resident pages that are newer than the device.", |cache| bytes(cache.stats.dirty_pages));
    text.gauge("free_bytes", "Unused memory of the capacity.", |cache| bytes(cache.stats.free_pages));
    text.gauge("pinned_bytes", "Pages held by pins.", |cache| bytes(cache.stats.pinned_pages));
    text.gauge("mappings", "Open mappings.", |cache| cache.mappings);
    text.gauge("mapped_bytes", "Total length of the open mappings.", |cache| cache.mapped_bytes);
    text.gauge("start_time_seconds", "When the cache was built, since 1970.", |cache| seconds(cache.started_unix_ns));
    text.counters();
    text.histogram("miss_latency_seconds", "From the claim of a missed page until it is mapped.", |cache| &cache.miss);
    let sampling = caches.first().map_or(1, |cache| cache.read_sampling);
    text.histogram("read_latency_seconds", &format!("One read request in {sampling}."), |cache| &cache.read);
    text.histogram("write_latency_seconds", "Write requests, including the handling of their pages.", |cache| {
        &cache.write
    });
    text.histogram("sync_latency_seconds", "Syncs, including the flush of the device.", |cache| &cache.sync);
    text.text
}

/// The text so far.
struct Exposition<'a> {
    process_id: u32,
    caches: &'a [Snapshot],
    text: String,
}

impl<'a> Exposition<'a> {
    fn gauge<T: Display>(&mut self, name: &str, help: &str, value: impl Fn(&Snapshot) -> T) {
        self.family(name, "gauge", help);
        for cache in self.caches {
            self.sample(name, cache, "", value(cache));
        }
    }

    fn by_priority(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", help);
        for cache in self.caches {
            for (priorities, pages) in resident_by_priority(cache) {
                let label = format!(",priority=\"{}-{}\"", priorities.start(), priorities.end());
                self.sample(name, cache, &label, pages.saturating_mul(PAGE_BYTES as u64));
            }
        }
    }

    fn counters(&mut self) {
        let caches = self.caches;
        let Some(first) = caches.first() else { return };
        for (index, (name, _)) in first.counters().enumerate() {
            let help = COUNTERS.iter().find(|(known, _)| *known == name).map_or("See the stat page.", |(_, help)| help);
            // Prometheus uses seconds.
            let (metric, is_time) = match name.strip_suffix("_ns") {
                Some(name) => (format!("timed_miss_{name}_seconds_total"), true),
                None => (format!("{name}_total"), false),
            };
            self.family(&metric, "counter", help);
            for cache in caches {
                let value = cache.counters().nth(index).map_or(0, |(_, value)| value);
                match is_time {
                    true => self.sample(&metric, cache, "", seconds(value)),
                    false => self.sample(&metric, cache, "", value),
                }
            }
        }
    }

    /// A bucket for each power of two: the stat page has four.
    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Snapshot) -> &Histogram) {
        self.family(name, "histogram", help);
        for cache in self.caches {
            let (histogram, mut count) = (of(cache), 0_u64);
            for (end_ns, durations) in histogram.buckets() {
                count = count.saturating_add(durations);
                let end = match end_ns {
                    Some(ns) if ns.is_power_of_two() => seconds(ns).to_string(),
                    Some(_) => continue,
                    None => "+Inf".to_owned(),
                };
                self.sample(&format!("{name}_bucket"), cache, &format!(",le=\"{end}\""), count);
            }
            self.sample(&format!("{name}_sum"), cache, "", seconds(histogram.sum_ns()));
            self.sample(&format!("{name}_count"), cache, "", count);
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP vmio_{name} {help}\n# TYPE vmio_{name} {kind}");
    }

    fn sample(&mut self, name: &str, cache: &Snapshot, labels: &str, value: impl Display) {
        let (process, number) = (self.process_id, cache.cache_number);
        let _ = writeln!(self.text, "vmio_{name}{{pid=\"{process}\",cache=\"{number}\"{labels}}} {value}");
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    #[test]
    fn every_counter_is_explained() {
        let page = MadeUpPage::new(1, 1).snapshot();
        assert!(page.counters().map(|(name, _)| name).eq(COUNTERS.iter().map(|(name, _)| *name)));
    }

    #[test]
    fn a_cache_in_numbers() {
        // Bucket 0 ends at 256 ns, bucket 4 at 512 ns, bucket 5 is the first beyond.
        let busy = MadeUpPage::new(7, 2)
            .gauge(0, 400)
            .resident(4, 10)
            .counter(0, 12)
            .counter(22, 1_500_000_000)
            .durations(0, 0, 1, 0)
            .durations(0, 4, 2, 0)
            .durations(0, 5, 4, 250_000_000)
            .durations(0, 89, 8, 250_000_000);
        let text = exposition(70, &[MadeUpPage::new(7, 1).snapshot(), busy.snapshot()]);
        let labels = r#"{pid="70",cache="2"}"#;
        let of_bucket = |end: &str| format!(r#"vmio_miss_latency_seconds_bucket{{pid="70",cache="2",le="{end}"}}"#);
        for line in [
            format!("vmio_resident_bytes{labels} 2457600"),
            r#"vmio_resident_by_priority_bytes{pid="70",cache="2",priority="128-159"} 40960"#.to_owned(),
            r#"vmio_resident_by_priority_bytes{pid="70",cache="2",priority="224-255"} 0"#.to_owned(),
            format!("vmio_load_misses_total{labels} 12"),
            format!("vmio_timed_miss_handler_seconds_total{labels} 1.5"),
            format!("vmio_miss_latency_seconds_sum{labels} 0.25"),
            format!("vmio_miss_latency_seconds_count{labels} 15"),
            format!("{} 1", of_bucket("0.000000256")),
            format!("{} 3", of_bucket("0.000000512")),
            format!("{} 7", of_bucket("0.000001024")),
            format!("{} 15", of_bucket("+Inf")),
            r#"vmio_load_misses_total{pid="70",cache="1"} 0"#.to_owned(),
        ] {
            assert_eq!(text.lines().filter(|found| **found == line).count(), 1, "{line} in\n{text}");
        }
    }
}
