//! `vmio-bench units`: a mapping whose pages come in by 4 KiB, by 2 MiB, or by what its accesses look like.

use std::fmt;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use vmio::{Advice, FrameHint};
use vmio_measure::child::Spec;
use vmio_measure::content::{PAGE_BYTES, WORD_BYTES, word_is_valid};
use vmio_measure::engines::pointer::PointerAccess;
use vmio_measure::engines::vmio::VmioEngine;
use vmio_measure::median::median;
use vmio_measure::process::Usage;
use vmio_measure::side::run_side;
use vmio_measure::target::{Target, TargetArgs};
use vmio_measure::wrong_words::fail_on_verify_errors;
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_cache};
use vmio_report::table::Table;

use super::hit::load_time_ns;

const EXAMPLES: &str = "\
Examples:
  vmio-bench units
  vmio-bench units --dir /data --size 4G --cache 512M --json units.json

Each kind of unit does the same loads of a cold file that is larger than the cache: at random, page after
page, and a scan with a random load after every 16 pages. Then half a cache is filled by loads of the same pattern, and
hits at random in it are timed, which shows what the huge pages spare the TLB. A page is used by each load of the work.";

/// Compare units of 4 KiB, of 2 MiB and dynamic ones on random, sequential and mixed loads.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UnitsArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Memory for the cache
    #[arg(long, default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    /// Loads of the random work; the others are one scan of the file
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    loads: u64,
    /// Rounds of hits
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// How much comes in at a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Units {
    /// A page, whatever came before (`Advice::Random`).
    #[serde(rename = "4K")]
    Small,
    /// A page, and what is read ahead of misses in a row: the default.
    #[serde(rename = "4K, read-ahead")]
    ReadAhead,
    /// 2 MiB (`FrameHint::Stream`).
    #[serde(rename = "2M")]
    Huge,
    /// `FrameHint::Dynamic`.
    #[serde(rename = "dynamic")]
    Dynamic,
}

impl Units {
    const ALL: [Self; 4] = [Self::Small, Self::ReadAhead, Self::Huge, Self::Dynamic];

    fn frames(self) -> FrameHint {
        match self {
            Self::Small | Self::ReadAhead => FrameHint::ReadMostly,
            Self::Huge => FrameHint::Stream,
            Self::Dynamic => FrameHint::Dynamic,
        }
    }

    fn open(self, spec: &UnitsSpec) -> anyhow::Result<VmioEngine> {
        let engine = VmioEngine::open_with_frames(self.frames(), &spec.path, spec.cache_bytes)?;
        if self == Self::Small {
            engine.mapping().advise(0..engine.mapping().len(), Advice::Random)?;
        }
        Ok(engine)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Small => "4K",
            Self::ReadAhead => "4K, read-ahead",
            Self::Huge => "2M",
            Self::Dynamic => "dynamic",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Work {
    Random,
    Sequential,
    Mixed,
}

impl Work {
    const ALL: [Self; 3] = [Self::Random, Self::Sequential, Self::Mixed];
    /// Pages that the scan of mixed work goes on for each load at random.
    const SCANNED: u64 = 16;

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
            Self::Mixed => "mixed",
        }
    }

    /// The pages to load one after the other, of the first `pages` of a file: the same for all units.
    fn of_file(self, pages: u64, loads: u64) -> Box<dyn Iterator<Item = u64>> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut any = move || random.random_range(0..pages);
        match self {
            Self::Random => Box::new((0..loads).map(move |_| any())),
            Self::Sequential => Box::new(0..pages),
            Self::Mixed => Box::new((0..pages).flat_map(move |page| {
                let also = page.is_multiple_of(Self::SCANNED).then(&mut any);
                [Some(page), also].into_iter().flatten()
            })),
        }
    }

    /// The same where each page of a small range is to be there in the end.
    fn of_range(self, pages: u64) -> Box<dyn Iterator<Item = u64>> {
        if self != Self::Random {
            return self.of_file(pages, 0);
        }
        let mut order: Vec<u64> = (0..pages).collect();
        order.shuffle(&mut SmallRng::seed_from_u64(2));
        Box::new(order.into_iter())
    }
}

/// What the child does.
#[derive(Debug, Serialize, Deserialize)]
pub struct UnitsSpec {
    path: PathBuf,
    size_bytes: u64,
    cache_bytes: u64,
    units: Units,
    work: Work,
    loads: u64,
    rounds: u32,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct UnitsResult {
    units: Units,
    work: Work,
    size_bytes: u64,
    cache_bytes: u64,
    loads: u64,
    /// The time of a load of the work, hit or miss, and the CPU time of all threads for it.
    load_ns: f64,
    cpu_ns: f64,
    /// Traps that brought something in.
    faults: u64,
    huge_pages: u64,
    read_bytes: u64,
    /// Bytes read by the bytes of the pages that were loaded from.
    amplification: f64,
    /// The time of a load at random from pages that are all in memory, the median of the rounds.
    hit_ns: f64,
    /// Misses meanwhile; anything but 0 means that these were not hits.
    hit_misses: u64,
    verify_errors: u64,
}

impl Spec for UnitsSpec {
    const NAME: &'static str = "units";
    type Found = UnitsResult;
}

/// Runs `vmio-bench units`.
pub fn run(args: &UnitsArgs) -> anyhow::Result<()> {
    let target = Target::prepare(&args.target.or_fast_device(), args.cache.saturating_mul(4))?;
    let mut table = Table::new(&[
        "work",
        "unit",
        "ns/load",
        "CPU ns/load",
        "faults",
        "huge pages",
        "read MB",
        "read / used",
        "ns/hit",
    ]);
    let mut results = Vec::new();
    for work in Work::ALL {
        for units in Units::ALL {
            let spec = UnitsSpec {
                path: target.path().to_owned(),
                size_bytes: target.size_bytes(),
                cache_bytes: args.cache,
                units,
                work,
                loads: args.loads,
                rounds: args.rounds,
            };
            let what = format!("units: {} loads, {units}", work.name());
            let result = run_side(&what, &target, &spec)?;
            table.row(vec![
                work.name().to_owned(),
                units.to_string(),
                format!("{:.0}", result.load_ns),
                format!("{:.0}", result.cpu_ns),
                result.faults.to_string(),
                result.huge_pages.to_string(),
                format!("{:.1}", result.read_bytes as f64 / 1e6),
                format!("{:.2}", result.amplification),
                format!("{:.1}", result.hit_ns),
            ]);
            results.push(result);
        }
    }
    args.output.text(&format!(
        "loads of {} through {} of memory, then hits in half of it\n{}",
        format_size(target.size_bytes()),
        format_size(args.cache),
        table.text()
    ))?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

/// The child's side.
pub fn measure(spec: &UnitsSpec) -> anyhow::Result<UnitsResult> {
    let (pages, warm_pages) = (spec.size_bytes / PAGE_BYTES, (spec.cache_bytes / 2).min(spec.size_bytes) / PAGE_BYTES);
    if warm_pages == 0 {
        bail!("a cache of {} is too small", format_size(spec.cache_bytes));
    }
    let engine = spec.units.open(spec)?;
    let before = Usage::now()?;
    let start = Instant::now();
    let (loads, mut verify_errors) = touch(&engine.pointer(), spec.work.of_file(pages, spec.loads));
    let elapsed = start.elapsed();
    let used = Usage::now()?.since(&before);
    let stats = engine.cache_stats();
    drop(engine);

    let engine = spec.units.open(spec)?;
    let access = engine.pointer();
    // Twice: what was read ahead at the wrong place may have pushed something out.
    for _ in 0..2 {
        verify_errors += touch(&access, spec.work.of_range(warm_pages)).1;
    }
    let misses = engine.cache_stats().load_misses;
    let words = warm_pages * PAGE_BYTES / WORD_BYTES;
    let hit_ns = median((0..spec.rounds).map(|round| load_time_ns(&access, words, round)));
    Ok(UnitsResult {
        units: spec.units,
        work: spec.work,
        size_bytes: spec.size_bytes,
        cache_bytes: spec.cache_bytes,
        loads,
        load_ns: elapsed.as_nanos() as f64 / loads as f64,
        cpu_ns: used.cpu_s * 1e9 / loads as f64,
        faults: stats.load_misses,
        huge_pages: stats.moved_spans,
        read_bytes: stats.read_bytes,
        amplification: stats.read_bytes as f64 / (loads * PAGE_BYTES) as f64,
        hit_ns,
        hit_misses: engine.cache_stats().load_misses - misses,
        verify_errors,
    })
}

/// Loads a word of each page; returns how many there were, and how many were wrong.
fn touch(access: &PointerAccess<'_>, pages: impl Iterator<Item = u64>) -> (u64, u64) {
    let is_wrong = |offset: u64| !word_is_valid(offset, black_box(access.load_word(offset)));
    pages.fold((0, 0), |(loads, wrong), page| (loads + 1, wrong + u64::from(is_wrong(page * PAGE_BYTES))))
}
