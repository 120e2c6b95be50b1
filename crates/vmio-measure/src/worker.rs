//! Runs one spec in this process: threads, warm-up, measurement.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hdrhistogram::Histogram;
use quanta::Clock;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use vmio::Stats;
use vmio_report::latency_curve::LatencyCurve;

use crate::content::{PAGE_BYTES, WORD_BYTES, word_at, word_is_valid};
use crate::engines::{Access, Engine};
use crate::op::Op;
use crate::pattern::OffsetStream;
use crate::process::{Usage, max_rss_bytes};
use crate::spec::{CacheReport, MeasuredRun, MissParts, RunResult, RunSpec};

/// A histogram of latencies: 1 ns to 60 s, three digits.
pub fn new_histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("cannot make a histogram")
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// Operations drawn at a time, outside of the timed part.
const BATCH_OPS: usize = 1024;
/// Marks a store in the lowest bit of a drawn offset, which is free in a multiple of a word.
const STORE_BIT: u64 = 1;
const _: () = assert!(STORE_BIT < WORD_BYTES);

/// Warming up ends when the cache grows by less than a part of the budget in one check: the budget divided by this.
const STEADY_GROWTH: u64 = 100;
const STEADY_CHECK: Duration = Duration::from_millis(500);
const WARM_UP_LIMIT: Duration = Duration::from_secs(30);
/// How long the measurement waits for threads that have not begun.
const LATE_LIMIT: Duration = Duration::from_secs(30);

struct Run<'a> {
    spec: &'a RunSpec,
    clock: Clock,
    phase: AtomicU8,
    failed: AtomicBool,
    /// Threads that have measured something.
    measuring: AtomicU32,
}

/// The results of one thread.
struct ThreadResult {
    latencies: Histogram<u64>,
    verify_errors: u64,
}

/// Runs `spec` through `engine` and closes the engine.
pub fn measure<E: Engine>(engine: E, spec: &RunSpec) -> anyhow::Result<MeasuredRun> {
    if spec.size_bytes < PAGE_BYTES || spec.threads == 0 {
        bail!("a run needs at least one page and one thread");
    }
    let run = Run {
        spec,
        clock: Clock::new(),
        phase: AtomicU8::new(WARM_UP),
        failed: AtomicBool::new(false),
        measuring: AtomicU32::new(0),
    };
    let (window, threads) = thread::scope(|scope| -> anyhow::Result<_> {
        let workers: Vec<_> = (0..spec.threads)
            .map(|thread| {
                let (run, engine) = (&run, &engine);
                scope.spawn(move || run.work(engine, thread).inspect_err(|_| run.failed.store(true, Ordering::Relaxed)))
            })
            .collect();
        let window = run.conduct(&engine);
        run.phase.store(STOP, Ordering::Relaxed);
        let threads = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a worker thread panicked"))?)
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok((window?, threads))
    })?;
    let max_rss_bytes = max_rss_bytes();
    engine.finish()?;
    window.into_result(spec, threads, max_rss_bytes)
}

impl Run<'_> {
    /// Waits for the warm-up and the measurement. Takes the counters at both ends of the measurement.
    fn conduct<E: Engine>(&self, engine: &E) -> anyhow::Result<Window> {
        self.warm_up(engine);
        let (usage, stats, start) = (Usage::now()?, engine.stats(), Instant::now());
        self.phase.store(MEASURE, Ordering::Relaxed);
        self.sleep(Duration::from_secs_f64(self.spec.measure_s));
        // On a machine that is busy with other things a thread may not even have begun.
        let late = Instant::now();
        while self.measuring.load(Ordering::Relaxed) < self.spec.threads && late.elapsed() < LATE_LIMIT {
            self.sleep(Duration::from_millis(1));
            if self.failed.load(Ordering::Relaxed) {
                break;
            }
        }
        self.phase.store(STOP, Ordering::Relaxed);
        let elapsed = start.elapsed();
        Ok(Window { elapsed, usage: Usage::now()?.since(&usage), stats: stats.zip(engine.stats()) })
    }

    /// Warms up: at least as long as asked, then for as long as the cache keeps filling, up to `WARM_UP_LIMIT`.
    fn warm_up<E: Engine>(&self, engine: &E) {
        let start = Instant::now();
        self.sleep(Duration::from_secs_f64(self.spec.warm_up_s));
        let mut cached = engine.cached_bytes().unwrap_or(0);
        while start.elapsed() < WARM_UP_LIMIT && !self.failed.load(Ordering::Relaxed) {
            if cached >= self.spec.cache_bytes / 100 * 97 || cached >= self.spec.size_bytes {
                break;
            }
            self.sleep(STEADY_CHECK);
            let now = engine.cached_bytes().unwrap_or(0);
            if now < cached + self.spec.cache_bytes / STEADY_GROWTH {
                break;
            }
            cached = now;
        }
    }

    /// Sleeps, but ends early if a thread has failed.
    fn sleep(&self, duration: Duration) {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + duration;
        while !self.failed.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(SLICE));
        }
    }

    fn work<E: Engine>(&self, engine: &E, thread: u32) -> anyhow::Result<ThreadResult> {
        let spec = self.spec;
        let pages = spec.size_bytes / PAGE_BYTES;
        let mut worker = Worker {
            access: engine.access()?,
            offsets: OffsetStream::new(spec.pattern, pages, thread, spec.threads)?,
            random: SmallRng::seed_from_u64(spec.seed ^ u64::from(thread).wrapping_mul(0x9e37_79b9)),
            op: spec.op,
            batch: Vec::with_capacity(BATCH_OPS),
            verify_errors: 0,
        };
        let mut latencies = new_histogram()?;
        worker.run_while(self, WARM_UP, |_| ())?;
        worker.run_while(self, MEASURE, |nanoseconds| {
            if latencies.is_empty() {
                self.measuring.fetch_add(1, Ordering::Relaxed);
            }
            latencies.saturating_record(nanoseconds.max(1));
        })?;
        Ok(ThreadResult { latencies, verify_errors: worker.verify_errors })
    }
}

/// One thread of a run.
struct Worker<A> {
    access: A,
    offsets: OffsetStream,
    random: SmallRng,
    op: Op,
    batch: Vec<u64>,
    verify_errors: u64,
}

impl<A: Access> Worker<A> {
    /// Operates for as long as the phase lasts, and gives every latency to `record`. The end of one operation is the start of the next.
    fn run_while(&mut self, run: &Run, phase: u8, mut record: impl FnMut(u64)) -> anyhow::Result<()> {
        loop {
            self.draw_batch();
            let mut version = self.random.next_u64();
            let mut start = run.clock.raw();
            for index in 0..self.batch.len() {
                if run.phase.load(Ordering::Relaxed) != phase {
                    return Ok(());
                }
                let drawn = self.batch[index];
                let offset = drawn & !STORE_BIT;
                if drawn & STORE_BIT != 0 {
                    version = version.wrapping_add(1);
                    self.access.store(offset, word_at(offset, version))?;
                } else if !word_is_valid(offset, self.access.load(offset)?) {
                    self.verify_errors += 1;
                }
                let end = run.clock.raw();
                record(run.clock.delta_as_nanos(start, end));
                start = end;
            }
        }
    }

    fn draw_batch(&mut self) {
        self.batch.clear();
        for _ in 0..BATCH_OPS {
            let offset = self.offsets.next_offset(&mut self.random);
            let store = self.op.next_is_store(&mut self.random);
            self.batch.push(offset | if store { STORE_BIT } else { 0 });
        }
    }
}

/// The counts between the two ends of the measurement.
struct Window {
    elapsed: Duration,
    usage: Usage,
    stats: Option<(Stats, Stats)>,
}

impl Window {
    fn into_result(
        self,
        spec: &RunSpec,
        threads: Vec<ThreadResult>,
        max_rss_bytes: Option<u64>,
    ) -> anyhow::Result<MeasuredRun> {
        let mut latencies = new_histogram()?;
        let mut verify_errors = 0;
        for thread in threads {
            latencies.add(&thread.latencies).context("cannot merge histograms")?;
            verify_errors += thread.verify_errors;
        }
        let ops = latencies.len();
        let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let shootdowns = self.stats.as_ref().map(|(before, after)| after.shootdowns - before.shootdowns);
        let stats = self.stats.map(|(before, after)| cache_report(&before, &after, &latencies, spec.breakdown));
        let result = RunResult {
            engine: spec.engine,
            pattern: spec.pattern,
            op: spec.op,
            threads: spec.threads,
            without: spec.without.clone(),
            size_bytes: spec.size_bytes,
            cache_bytes: spec.cache_bytes,
            ops_per_s: ops as f64 / self.elapsed.as_secs_f64(),
            mean_us: latencies.mean() / 1e3,
            p50_us: microseconds(0.5),
            p99_us: microseconds(0.99),
            p999_us: microseconds(0.999),
            max_us: latencies.max() as f64 / 1e3,
            read_bytes: self.usage.read_bytes,
            write_bytes: self.usage.write_bytes,
            cpu_s_per_mop: self.usage.cpu_s * 1e6 / ops.max(1) as f64,
            max_rss_bytes,
            shootdowns,
            verify_errors,
            stats,
        };
        Ok(MeasuredRun { result, curve: LatencyCurve::from_histogram(&latencies) })
    }
}

fn cache_report(before: &Stats, after: &Stats, latencies: &Histogram<u64>, breakdown: bool) -> CacheReport {
    let load_misses = after.load_misses - before.load_misses;
    let store_misses = after.store_misses - before.store_misses;
    let ops = latencies.len();
    let misses = (load_misses + store_misses).min(ops);
    let (hit_mean_us, miss_mean_us) = split_means(latencies, ops - misses);
    CacheReport {
        hit_ratio: 1.0 - misses as f64 / ops.max(1) as f64,
        load_misses,
        store_misses,
        write_protect_faults: after.write_protect_faults - before.write_protect_faults,
        fault_waits: after.fault_waits - before.fault_waits,
        read_ahead_pages: after.read_ahead_pages - before.read_ahead_pages,
        evicted_clean: after.evicted_clean - before.evicted_clean,
        evicted_dirty: after.evicted_dirty - before.evicted_dirty,
        direct_reclaims: after.direct_reclaims - before.direct_reclaims,
        read_bytes: after.read_bytes - before.read_bytes,
        reads: after.reads - before.reads,
        written_bytes: after.written_bytes - before.written_bytes,
        writes: after.writes - before.writes,
        helped_writes: after.helped_writes - before.helped_writes,
        shootdowns_evict: after.shootdowns_evict - before.shootdowns_evict,
        shootdowns_write_back: after.shootdowns_write_back - before.shootdowns_write_back,
        shootdowns_store: after.shootdowns_store - before.shootdowns_store,
        read_errors: after.read_errors - before.read_errors,
        write_errors: after.write_errors - before.write_errors,
        hit_mean_us,
        miss_mean_us,
        miss_parts: breakdown.then(|| miss_parts(before, after, miss_mean_us?)).flatten(),
    }
}

/// The means of the `hits` fastest operations and of the others. A hit takes nanoseconds and a miss microseconds, so the order tells them
/// apart.
fn split_means(latencies: &Histogram<u64>, hits: u64) -> (Option<f64>, Option<f64>) {
    let (mut hits_left, mut hits_ns, mut misses, mut misses_ns) = (hits, 0.0, 0, 0.0);
    for step in latencies.iter_recorded() {
        let value_ns = step.value_iterated_to() as f64;
        let as_hits = step.count_at_value().min(hits_left);
        let as_misses = step.count_at_value() - as_hits;
        hits_left -= as_hits;
        hits_ns += as_hits as f64 * value_ns;
        misses += as_misses;
        misses_ns += as_misses as f64 * value_ns;
    }
    let mean_us = |sum_ns: f64, count: u64| (count > 0).then(|| sum_ns / count as f64 / 1e3);
    (mean_us(hits_ns, hits), mean_us(misses_ns, misses))
}

/// The parts of a mean miss. The trap is the time that the program waited beyond the handler's.
fn miss_parts(before: &Stats, after: &Stats, miss_mean_us: f64) -> Option<MissParts> {
    let (before, after) = (&before.miss_time, &after.miss_time);
    let misses = after.misses - before.misses;
    let mean_us = |before: u64, after: u64| (after - before) as f64 / misses as f64 / 1e3;
    let handler_us = mean_us(before.handler_ns, after.handler_ns);
    let cache_us = mean_us(before.budget_ns, after.budget_ns);
    let io_us = mean_us(before.read_ns, after.read_ns);
    let install_us = mean_us(before.install_ns, after.install_ns);
    (misses > 0).then(|| MissParts {
        trap_us: (miss_mean_us - handler_us).max(0.0),
        cache_us,
        io_us,
        install_us,
        other_us: (handler_us - cache_us - io_us - install_us).max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_operations_are_the_hits() -> anyhow::Result<()> {
        let mut latencies = new_histogram()?;
        latencies.record_n(20, 75)?;
        latencies.record_n(1000, 25)?;
        let (hit, miss) = split_means(&latencies, 75);
        assert!((hit.unwrap_or(0.0) - 0.02).abs() < 1e-6);
        assert!((miss.unwrap_or(0.0) - 1.0).abs() < 1e-2);
        assert_eq!(split_means(&latencies, 0).0, None);
        assert_eq!(split_means(&latencies, 100).1, None);
        Ok(())
    }
}
