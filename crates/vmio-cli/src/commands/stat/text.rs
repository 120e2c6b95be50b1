//! Samples as text.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vmio::PAGE_BYTES;
use vmio::telemetry::{Histogram, Snapshot};
use vmio_report::size::format_size;

use super::interval::Interval;
use super::priorities::resident_by_priority;

/// Writes the contents and counts of every cache.
pub fn write_totals(output: &mut impl Write, process_id: u32, command: &str, caches: &[Snapshot]) -> io::Result<()> {
    writeln!(output, "process {process_id} ({command})")?;
    caches.iter().try_for_each(|cache| write_cache(output, cache))
}

fn write_cache(output: &mut impl Write, cache: &Snapshot) -> io::Result<()> {
    let stats = &cache.stats;
    let bytes = |pages: u64| format_size(pages.saturating_mul(PAGE_BYTES as u64));
    let share = |pages: u64| format!("{:.1} %", 100.0 * pages as f64 / stats.capacity_pages as f64);
    let up = format_time(age(cache.started_unix_ns));
    writeln!(output, "\ncache {}: {}, up {up}", cache.cache_number, bytes(stats.capacity_pages))?;
    let mut line = |name: &str, value: String, detail: String| {
        let text = format!("  {name:<21}{value:>12}  {detail}");
        writeln!(output, "{}", text.trim_end())
    };
    line("resident", bytes(stats.resident_pages), share(stats.resident_pages))?;
    for (priorities, pages) in resident_by_priority(cache).filter(|(_, pages)| *pages > 0) {
        line(&format!("  priority {}-{}", priorities.start(), priorities.end()), bytes(pages), share(pages))?;
    }
    line("page tables", bytes(stats.table_pages), share(stats.table_pages))?;
    line("dirty", bytes(stats.dirty_pages), share(stats.dirty_pages))?;
    line("pinned", bytes(stats.pinned_pages), share(stats.pinned_pages))?;
    line("free", bytes(stats.free_pages), share(stats.free_pages))?;
    line("mapped", format_size(cache.mapped_bytes), format!("in {} mapping(s)", cache.mappings))?;

    let by_access = format!("by loads {}, by stores {}", stats.load_misses, stats.store_misses);
    line("misses", sum(&[stats.load_misses, stats.store_misses]), by_access)?;
    line("minor faults", sum(&[stats.minor_faults]), String::new())?;
    line("write-protect faults", sum(&[stats.write_protect_faults]), String::new())?;
    line("waits for a page", sum(&[stats.fault_waits]), String::new())?;
    line("read-ahead pages", sum(&[stats.read_ahead_pages]), String::new())?;
    line("fetched pages", sum(&[stats.fetched_pages]), String::new())?;
    line("fresh fills", sum(&[stats.fresh_fills]), String::new())?;
    let by_state = format!("clean {}, dirty {}", stats.evicted_clean, stats.evicted_dirty);
    line("evicted pages", sum(&[stats.evicted_clean, stats.evicted_dirty]), by_state)?;
    line("reads", sum(&[stats.reads]), format_size(stats.read_bytes))?;
    let helped = format!("{}, by faulting threads {}", format_size(stats.written_bytes), stats.helped_writes);
    line("write-backs", sum(&[stats.writes]), helped)?;
    let by_reason = format!(
        "eviction {}, write-back {}, stores {}",
        stats.shootdowns_evict, stats.shootdowns_write_back, stats.shootdowns_store
    );
    line("TLB shootdowns", sum(&[stats.shootdowns]), by_reason)?;
    let by_kind = format!("reads {}, writes {}, drops {}", stats.read_errors, stats.write_errors, stats.drop_failures);
    line("errors", sum(&[stats.read_errors, stats.write_errors, stats.drop_failures]), by_kind)?;

    writeln!(output, "  {:<21}{:>12}{:>10}{:>10}{:>10}{:>10}", "latency", "timed", "p50", "p99", "p99.9", "max")?;
    let reads = format!("read (one in {})", cache.read_sampling);
    for (name, histogram) in
        [("miss", &cache.miss), (reads.as_str(), &cache.read), ("write", &cache.write), ("sync", &cache.sync)]
    {
        let max = (histogram.count() > 0).then_some(histogram.max_ns());
        let quantiles = [0.5, 0.99, 0.999].map(|share| histogram.quantile_ns(share));
        let [p50, p99, p999] = quantiles.map(format_latency);
        writeln!(
            output,
            "  {name:<21}{:>12}{p50:>10}{p99:>10}{p999:>10}{:>10}",
            histogram.count(),
            format_latency(max)
        )?;
    }
    Ok(())
}

/// Writes the names of the columns of [`write_interval`].
pub fn write_header(output: &mut impl Write) -> io::Result<()> {
    writeln!(
        output,
        "{:>5}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}{:>11}{:>11}{:>9}{:>10}{:>8}",
        "cache",
        "misses/s",
        "p50",
        "p99",
        "minor/s",
        "in MB/s",
        "out MB/s",
        "evict/s",
        "protect/s",
        "shoot/s",
        "resident",
        "dirty"
    )
}

/// Writes the rates of a cache in an interval, in one line.
pub fn write_interval(output: &mut impl Write, cache: &Snapshot, interval: &Interval) -> io::Result<()> {
    let share = |pages: u64| format!("{:.1}%", 100.0 * pages as f64 / cache.stats.capacity_pages as f64);
    let quantile = |share| quantile(&interval.miss, share);
    writeln!(
        output,
        "{:>5}{:>11.0}{:>10}{:>10}{:>10.0}{:>10.1}{:>10.1}{:>11.0}{:>11.0}{:>9.0}{:>10}{:>8}",
        cache.cache_number,
        interval.misses_per_s,
        quantile(0.5),
        quantile(0.99),
        interval.minor_faults_per_s,
        interval.read_bytes_per_s / 1e6,
        interval.written_bytes_per_s / 1e6,
        interval.evictions_per_s,
        interval.write_protect_faults_per_s,
        interval.shootdowns_per_s,
        share(cache.stats.resident_pages),
        share(cache.stats.dirty_pages),
    )
}

fn quantile(histogram: &Histogram, share: f64) -> String {
    format_latency(histogram.quantile_ns(share))
}

fn sum(parts: &[u64]) -> String {
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)).to_string()
}

/// Two or three digits and a unit; a dash for none.
pub fn format_latency(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    for (unit_ns, unit) in [(1e9, "s"), (1e6, "ms"), (1e3, "µs")] {
        let value = ns as f64 / unit_ns;
        if value >= 1.0 {
            return if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") };
        }
    }
    format!("{ns} ns")
}

fn format_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// The time since then; zero if somebody has set the clock back.
fn age(unix_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(unix_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_that_fits() {
        let shown = [None, Some(0), Some(640), Some(5_120), Some(81_920), Some(1_500_000), Some(2_000_000_000)];
        assert_eq!(shown.map(format_latency), ["-", "0 ns", "640 ns", "5.1 µs", "82 µs", "1.5 ms", "2.0 s"]);
        let shown = [5, 65, 3_700, 90_000].map(|seconds| format_time(Duration::from_secs(seconds)));
        assert_eq!(shown, ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]);
    }
}
