//! `vmio-bench sync`: what stores wait for while a sync runs over their pages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::Args;
use hdrhistogram::Histogram;
use quanta::Clock;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use vmio_measure::child::Spec;
use vmio_measure::content::{PAGE_BYTES, word_at};
use vmio_measure::engines::EngineKind;
use vmio_measure::engines::mmap::LinuxMapping;
use vmio_measure::engines::pointer::PointerAccess;
use vmio_measure::engines::vmio::{Variant, VmioEngine};
use vmio_measure::pattern::{OffsetStream, Pattern};
use vmio_measure::side::{run_side, run_side_in_cgroup};
use vmio_measure::target::{Target, TargetArgs};
use vmio_measure::worker::new_histogram;
use vmio_measure::wrong_words::fail_on_verify_errors;
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_cache};
use vmio_report::table::Table;

const EXAMPLES: &str = "\
Examples:
  vmio-bench sync
  vmio-bench sync --dir /data --size 256M --cache 512M --rounds 5
  vmio-bench sync --device zram --json sync.json

Every page of the range is made dirty; then one thread stores at random while another syncs, and
only the stores during the sync are timed. Linux mmap does the same with msync(MS_SYNC) in a
memory cgroup of the same size (which needs root).";

/// Measure stores while a sync runs over the pages they go to.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SyncArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Memory for the cache of vmio, and for the page cache of Linux mmap
    #[arg(long, default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    /// How often to make everything dirty and sync
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the child does.
#[derive(Debug, Serialize, Deserialize)]
pub struct SyncSpec {
    engine: EngineKind,
    path: PathBuf,
    size_bytes: u64,
    cache_bytes: u64,
    rounds: u32,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct SyncResult {
    engine: EngineKind,
    size_bytes: u64,
    cache_bytes: u64,
    rounds: u32,
    /// The mean time of a sync.
    sync_s: f64,
    /// Stores made during the syncs.
    stores: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Stores that took longer than 50 µs: percentiles are of all stores, and whoever waits less makes more.
    slow_stores: u64,
    verify_errors: u64,
}

const DEFAULT_SIZE_BYTES: u64 = 256 << 20;
const SLOW_NS: u64 = 50_000;

impl Spec for SyncSpec {
    const NAME: &'static str = "sync";
    type Found = SyncResult;
}

/// Runs `vmio-bench sync`.
pub fn run(args: &SyncArgs) -> anyhow::Result<()> {
    let target = Target::prepare(&args.target.or_fast_device(), DEFAULT_SIZE_BYTES)?;
    let spec = |engine| SyncSpec {
        engine,
        path: target.path().to_owned(),
        size_bytes: target.size_bytes(),
        cache_bytes: args.cache,
        rounds: args.rounds,
    };
    let mut results: Vec<SyncResult> = Vec::new();
    for variant in [Variant::Plain, Variant::Memfd] {
        let side = format!("sync: {}", variant.name());
        results.push(checked(&target, run_side(&side, &target, &spec(EngineKind::Vmio(variant)))?)?);
    }
    match run_side_in_cgroup("sync: mmap", &target, args.cache, &spec(EngineKind::Mmap))? {
        Ok(result) => results.push(checked(&target, result)?),
        Err(reason) => args.output.text(&reason)?,
    }
    args.output.text(&format!(
        "one thread storing at random over {} of dirty pages while they are synced\n{}",
        format_size(target.size_bytes()),
        table(&results)
    ))?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

fn checked(target: &Target, mut result: SyncResult) -> anyhow::Result<SyncResult> {
    result.verify_errors = target.count_invalid_in_sample(1)?;
    Ok(result)
}

fn table(results: &[SyncResult]) -> String {
    let header = ["engine", "sync s", "stores", "mean µs", "p50 µs", "p99 µs", "p99.9 µs", "max ms", "over 50 µs"];
    let mut table = Table::new(&header);
    for result in results {
        table.row(vec![
            result.engine.to_string(),
            format!("{:.2}", result.sync_s),
            result.stores.to_string(),
            format!("{:.2}", result.mean_us),
            format!("{:.2}", result.p50_us),
            format!("{:.1}", result.p99_us),
            format!("{:.1}", result.p999_us),
            format!("{:.1}", result.max_us / 1e3),
            result.slow_stores.to_string(),
        ]);
    }
    table.text()
}

/// The child's side.
pub fn measure(spec: &SyncSpec) -> anyhow::Result<SyncResult> {
    let mut latencies = new_histogram()?;
    let mut synced = Duration::ZERO;
    match spec.engine {
        EngineKind::Vmio(variant) => {
            let engine = VmioEngine::open(variant, &spec.path, spec.cache_bytes, true)?;
            engine.advise_pattern(Pattern::Uniform)?;
            for round in 0..spec.rounds {
                synced += store_during(&engine.pointer(), spec, round, &mut latencies, || {
                    Ok(engine.mapping().sync_begin()?.wait()?)
                })?;
            }
            engine.mapping().sync()?;
        }
        EngineKind::Mmap => {
            let mapping = LinuxMapping::of_file(&spec.path, spec.size_bytes, true)?;
            mapping.advise_pattern(Pattern::Uniform)?;
            for round in 0..spec.rounds {
                synced += store_during(&mapping.pointer(), spec, round, &mut latencies, || mapping.sync())?;
            }
        }
        EngineKind::Pread => bail!("{} is not part of this", spec.engine),
    }
    let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(SyncResult {
        engine: spec.engine,
        size_bytes: spec.size_bytes,
        cache_bytes: spec.cache_bytes,
        rounds: spec.rounds,
        sync_s: synced.as_secs_f64() / f64::from(spec.rounds),
        stores: latencies.len(),
        mean_us: latencies.mean() / 1e3,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        p999_us: microseconds(0.999),
        max_us: latencies.max() as f64 / 1e3,
        slow_stores: latencies.count_between(SLOW_NS, u64::MAX),
        verify_errors: 0,
    })
}

/// Makes every page dirty, then stores at random for as long as `sync` runs in another thread;
/// gives the time that `sync` took.
fn store_during(
    access: &PointerAccess<'_>,
    spec: &SyncSpec,
    round: u32,
    latencies: &mut Histogram<u64>,
    sync: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<Duration> {
    for offset in (0..spec.size_bytes).step_by(PAGE_BYTES as usize) {
        access.store_word(offset, word_at(offset, u64::from(round)));
    }
    let mut random = SmallRng::seed_from_u64(u64::from(round));
    let mut offsets = OffsetStream::new(Pattern::Uniform, spec.size_bytes / PAGE_BYTES, 0, 1)?;
    let clock = Clock::new();
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            let start = Instant::now();
            begun.store(true, Ordering::Release);
            let result = sync();
            done.store(true, Ordering::Release);
            result.map(|()| start.elapsed())
        });
        while !begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        while !done.load(Ordering::Acquire) {
            let offset = offsets.next_offset(&mut random);
            let start = clock.raw();
            access.store_word(offset, word_at(offset, start));
            let latency_ns = clock.delta_as_nanos(start, clock.raw());
            latencies.saturating_record(latency_ns.max(1));
        }
        syncing.join().map_err(|_| anyhow!("the syncing thread panicked"))?
    })
}
