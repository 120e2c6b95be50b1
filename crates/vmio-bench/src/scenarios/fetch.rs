//! `vmio-bench fetch`: asynchronous misses and misses by a call, beside Linux mmap with advice and raw reads.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use futures::executor::block_on;
use futures::stream::{FuturesUnordered, StreamExt};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use vmio::Stats;
use vmio_measure::child::Spec;
use vmio_measure::content::{PAGE_BYTES, WORD_BYTES, word_is_valid};
use vmio_measure::engines::mmap::LinuxMapping;
use vmio_measure::engines::pointer::PointerAccess;
use vmio_measure::engines::vmio::{Variant, VmioEngine};
use vmio_measure::process::Usage;
use vmio_measure::side::{run_side, run_side_in_cgroup};
use vmio_measure::target::{Target, TargetArgs};
use vmio_measure::wrong_words::fail_on_verify_errors;
use vmio_report::output::OutputArgs;
use vmio_report::seconds::{parse_measured, parse_warm_up};
use vmio_report::size::{format_size, parse_cache};
use vmio_report::table::Table;

use crate::raw_reads;

const EXAMPLES: &str = "\
Examples:
  vmio-bench fetch --dir /data --size 4G --cache 512M
  vmio-bench fetch --dir /data --ways vmio-fetch,raw-reads --in-flight 64
  vmio-bench fetch --device zram --ways vmio-ensure,vmio,mmap --threads 1,2 --json fetch.json

Words of random pages are loaded and verified. The ways that keep several pages on their way at a
time run with one thread, the others with each number of --threads. Linux mmap runs in a memory
cgroup (which needs root). scripts/bench-fetch adds fio on the same file.";

/// Measure misses that do not wait, and misses by a call.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FetchArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Memory for the cache of vmio, and for the page cache of Linux mmap
    #[arg(long, default_value = "256M", value_parser = parse_cache)]
    cache: u64,
    /// Ways to reach a page
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Way::value_variants().to_vec())]
    ways: Vec<Way>,
    /// Pages on their way at a time, where a way has more than one
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Numbers of threads, where a way has one page at a time
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds measured for each
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_measured)]
    secs: f64,
    /// Seconds before that, for the cache to fill
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_warm_up)]
    warm_up: f64,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a page that is not in memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// `Mapping::fetch`, then a load
    VmioFetch,
    /// `Mapping::ensure`, then a load
    VmioEnsure,
    /// A load that traps
    Vmio,
    /// Linux mmap
    Mmap,
    /// Linux mmap; MADV_WILLNEED some pages ahead of the load
    MmapWillneed,
    /// Linux mmap; MADV_POPULATE_READ before the load
    MmapPopulate,
    /// Direct reads through io_uring, without any cache
    RawReads,
}

impl Way {
    fn has_many_in_flight(self) -> bool {
        matches!(self, Way::VmioFetch | Way::MmapWillneed | Way::RawReads)
    }

    fn is_linux_mapping(self) -> bool {
        matches!(self, Way::Mmap | Way::MmapWillneed | Way::MmapPopulate)
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchSpec {
    way: Way,
    threads: u32,
    in_flight: u32,
    path: PathBuf,
    size_bytes: u64,
    cache_bytes: u64,
    secs: f64,
    warm_up_secs: f64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct FetchResult {
    way: Way,
    threads: u32,
    /// Pages on their way at a time, of each thread.
    in_flight: u32,
    size_bytes: u64,
    cache_bytes: u64,
    elapsed_s: f64,
    /// Loads of a word of a random page.
    ops_per_s: f64,
    /// What of it the device had to give, by the kernel's count for the process.
    device_pages_per_s: f64,
    cpu_us_per_op: f64,
    /// By the cache's own count.
    fetched_pages: Option<u64>,
    load_misses: Option<u64>,
    fault_waits: Option<u64>,
    verify_errors: u64,
}

const DEFAULT_SIZE_BYTES: u64 = 1 << 30;

impl Spec for FetchSpec {
    const NAME: &'static str = "fetch";
    type Found = FetchResult;
}

/// Runs `vmio-bench fetch`.
pub fn run(args: &FetchArgs) -> anyhow::Result<()> {
    let target = Target::prepare(&args.target.or_fast_device(), DEFAULT_SIZE_BYTES)?;
    let mut results: Vec<FetchResult> = Vec::new();
    for &way in &args.ways {
        let counts = if way.has_many_in_flight() { &[1] } else { args.threads.as_slice() };
        for &threads in counts {
            let spec = FetchSpec {
                way,
                threads,
                in_flight: if way.has_many_in_flight() { args.in_flight } else { 1 },
                path: target.path().to_owned(),
                size_bytes: target.size_bytes(),
                cache_bytes: args.cache,
                secs: args.secs,
                warm_up_secs: args.warm_up,
            };
            let what = format!("fetch: {}, {threads} threads", way.name());
            if !way.is_linux_mapping() {
                results.push(run_side(&what, &target, &spec)?);
                continue;
            }
            match run_side_in_cgroup(&what, &target, args.cache, &spec)? {
                Ok(result) => results.push(result),
                Err(reason) => args.output.text(&reason)?,
            }
        }
    }
    args.output.text(&format!(
        "Random pages of {} through {} of memory\n{}",
        format_size(target.size_bytes()),
        format_size(args.cache),
        table(&results)
    ))?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

fn table(results: &[FetchResult]) -> String {
    let mut table =
        Table::new(&["way", "threads", "in flight", "loads/s", "device pages/s", "CPU µs/load", "verify errors"]);
    for result in results {
        table.row(vec![
            result.way.name(),
            result.threads.to_string(),
            result.in_flight.to_string(),
            format!("{:.0}", result.ops_per_s),
            format!("{:.0}", result.device_pages_per_s),
            format!("{:.1}", result.cpu_us_per_op),
            result.verify_errors.to_string(),
        ]);
    }
    table.text()
}

// ---- the child's side

/// What some threads have done.
#[derive(Clone, Copy, Default)]
struct Done {
    ops: u64,
    wrong: u64,
}

/// Runs one way, first to fill the cache, then to measure.
pub fn measure(spec: &FetchSpec) -> anyhow::Result<FetchResult> {
    if spec.way == Way::RawReads {
        return time(spec, |seed, end| {
            let mut random = RandomWords::new(seed, spec.size_bytes);
            let (ops, wrong) = raw_reads::read_until(&spec.path, spec.in_flight, || random.next(), end)?;
            Ok(Done { ops, wrong })
        });
    }
    if spec.way.is_linux_mapping() {
        let mapping = LinuxMapping::of_file(&spec.path, spec.size_bytes, false)?;
        mapping.advise(0, spec.size_bytes, libc::MADV_RANDOM)?;
        return time(spec, |seed, end| through_mmap(spec, &mapping, seed, end));
    }
    let engine = VmioEngine::open(Variant::Plain, &spec.path, spec.cache_bytes, false)?;
    let mut stats = engine.cache_stats();
    let mut result = time(spec, |seed, end| {
        if seed == MEASURED {
            stats = engine.cache_stats();
        }
        on_threads(spec.threads, seed, |seed| through_vmio(spec, &engine, seed, end))
    })?;
    let now = engine.cache_stats();
    let since = |count: fn(&Stats) -> u64| Some(count(&now) - count(&stats));
    result.fetched_pages = since(|stats| stats.fetched_pages);
    result.load_misses = since(|stats| stats.load_misses);
    result.fault_waits = since(|stats| stats.fault_waits);
    Ok(result)
}

/// The seeds of the two parts of a run.
const WARM_UP: u64 = 1;
const MEASURED: u64 = 1 << 32;

fn time(spec: &FetchSpec, mut run: impl FnMut(u64, Instant) -> anyhow::Result<Done>) -> anyhow::Result<FetchResult> {
    let until = |secs| Instant::now() + Duration::from_secs_f64(secs);
    let warm_up = run(WARM_UP, until(spec.warm_up_secs))?;
    let (usage, start) = (Usage::now()?, Instant::now());
    let done = run(MEASURED, until(spec.secs))?;
    let (elapsed_s, usage) = (start.elapsed().as_secs_f64(), Usage::now()?.since(&usage));
    Ok(FetchResult {
        way: spec.way,
        threads: spec.threads,
        in_flight: spec.in_flight,
        size_bytes: spec.size_bytes,
        cache_bytes: spec.cache_bytes,
        elapsed_s,
        ops_per_s: done.ops as f64 / elapsed_s,
        device_pages_per_s: (usage.read_bytes / PAGE_BYTES) as f64 / elapsed_s,
        cpu_us_per_op: usage.cpu_s * 1e6 / done.ops.max(1) as f64,
        fetched_pages: None,
        load_misses: None,
        fault_waits: None,
        verify_errors: warm_up.wrong + done.wrong,
    })
}

fn on_threads(threads: u32, seed: u64, run: impl Fn(u64) -> anyhow::Result<Done> + Sync) -> anyhow::Result<Done> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(seed + u64::from(thread)))).collect();
        threads.into_iter().try_fold(Done::default(), |sum, thread| match thread.join() {
            Ok(done) => done.map(|done| Done { ops: sum.ops + done.ops, wrong: sum.wrong + done.wrong }),
            Err(_) => bail!("a thread panicked"),
        })
    })
}

fn through_vmio(spec: &FetchSpec, engine: &VmioEngine, seed: u64, end: Instant) -> anyhow::Result<Done> {
    let (mapping, access) = (engine.mapping(), engine.pointer());
    let mut random = RandomWords::new(seed, spec.size_bytes);
    let mut done = Done::default();
    if spec.way != Way::VmioFetch {
        while Instant::now() < end {
            let offset = random.next();
            if spec.way == Way::VmioEnsure {
                mapping.ensure(offset..offset + WORD_BYTES)?;
            }
            done.load(&access, offset);
        }
        return Ok(done);
    }
    block_on(async {
        let fetch = |offset: u64| async move {
            let range = offset..offset + WORD_BYTES;
            mapping.fetch([range]).await.map(|()| offset)
        };
        let mut fetches: FuturesUnordered<_> = (0..spec.in_flight).map(|_| fetch(random.next())).collect();
        while let Some(fetched) = fetches.next().await {
            done.load(&access, fetched.context("a fetch failed")?);
            if Instant::now() < end {
                fetches.push(fetch(random.next()));
            }
        }
        Ok(done)
    })
}

fn through_mmap(spec: &FetchSpec, mapping: &LinuxMapping, seed: u64, end: Instant) -> anyhow::Result<Done> {
    on_threads(spec.threads, seed, |seed| {
        let access = mapping.pointer();
        let mut random = RandomWords::new(seed, spec.size_bytes);
        let mut done = Done::default();
        let mut ahead = VecDeque::new();
        while Instant::now() < end {
            let offset = random.next();
            let page = offset / PAGE_BYTES * PAGE_BYTES;
            match spec.way {
                Way::MmapPopulate => mapping.advise(page, PAGE_BYTES, libc::MADV_POPULATE_READ)?,
                Way::MmapWillneed => {
                    mapping.advise(page, PAGE_BYTES, libc::MADV_WILLNEED)?;
                    ahead.push_back(offset);
                    if ahead.len() < spec.in_flight as usize {
                        continue;
                    }
                }
                _ => {}
            }
            done.load(&access, ahead.pop_front().unwrap_or(offset));
        }
        Ok(done)
    })
}

impl Done {
    fn load(&mut self, access: &PointerAccess<'_>, offset: u64) {
        self.ops += 1;
        self.wrong += u64::from(!word_is_valid(offset, access.load_word(offset)));
    }
}

/// Offsets of words, every one as likely as any other.
struct RandomWords {
    random: SmallRng,
    words: u64,
}

impl RandomWords {
    fn new(seed: u64, size_bytes: u64) -> Self {
        RandomWords { random: SmallRng::seed_from_u64(seed), words: size_bytes / WORD_BYTES }
    }

    fn next(&mut self) -> u64 {
        self.random.random_range(0..self.words) * WORD_BYTES
    }
}
