//! `vmio sim`: a trace of pages, replayed through vmio itself and through other ways to choose a victim.

mod replacement;
mod trace;

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueHint};
use serde::Serialize;
use vmio::backing::NullBacking;
use vmio::{Access, Advice, Cache, Engine, EvictionPolicy, Mapping, MappingOptions};

use self::replacement::{Arc, Clock, Lru, Optimum, Replacement, S3Fifo};
use self::trace::{Synthetic, Trace, TraceFormat};
use crate::bench::content::PAGE_BYTES;
use crate::bench::output::OutputArgs;
use crate::bench::table::Table;
use crate::progress::Activity;
use crate::size::{format_size, parse_size};

const EXAMPLES: &str = "\
Examples:
  vmio sim --synthetic zipf:0.99 --pages 200000 --cache 64M,128M,256M
  vmio sim --synthetic scan-hot --pages 100000 --accesses 2000000 --cache 80M
  vmio sim --trace pages.txt --cache 1G --json sim.json
  vmio sim --trace hm_0.csv --format msr --cache 256M,1G,4G

vmio's own policies are not simulated: the trace is replayed through a mapping without a device behind it.
Of a trace of objects (oracle-general) their neighbourhood is not known: they are taken for pages side by side in the order
of their first access.";

/// A cache smaller than this is smaller than vmio's smallest.
const MEMORY_MIN: u64 = 1 << 20;
/// What a cache takes beside its pages.
const OVERHEAD_BYTES: u64 = 5 << 20;
/// vmio's own policies, and what they are called.
const OWN: [(&str, EvictionPolicy); 2] =
    [("vmio keep-refaulted", EvictionPolicy::KeepRefaulted), ("vmio fifo", EvictionPolicy::Fifo)];

/// Replay a trace of pages and compare the misses of vmio's policies with LRU, CLOCK, ARC, S3-FIFO and the optimum.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// The file that holds the trace
    #[arg(long, value_hint = ValueHint::FilePath, required_unless_present = "synthetic", conflicts_with = "synthetic")]
    trace: Option<PathBuf>,
    /// What the file looks like
    #[arg(long, value_enum, default_value = "pages")]
    format: TraceFormat,
    /// Make a trace up: uniform, zipf:EXPONENT, seq, blocks:PAGES or scan-hot
    #[arg(long)]
    synthetic: Option<Synthetic>,
    /// Pages of a made-up trace
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pages: u64,
    /// Accesses of a made-up trace
    #[arg(long, default_value_t = 1_000_000)]
    accesses: u32,
    /// Memory for pages; several to see how the misses depend on it
    #[arg(long, value_parser = parse_size, value_delimiter = ',', required = true)]
    cache: Vec<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The misses of one policy.
#[derive(Debug, Serialize)]
struct Outcome {
    policy: &'static str,
    cache_bytes: u64,
    accesses: usize,
    misses: usize,
    miss_ratio: f64,
}

/// Runs `vmio sim`.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    if let Some(small) = args.cache.iter().find(|bytes| **bytes < MEMORY_MIN) {
        bail!("--cache {small} is less than {}, vmio's smallest", format_size(MEMORY_MIN));
    }
    let trace = match (&args.trace, args.synthetic) {
        (Some(path), _) => Trace::read(path, args.format)?,
        (None, Some(kind)) => Trace::synthetic(kind, args.pages, args.accesses as usize, 1)?,
        (None, None) => bail!("give --trace or --synthetic"),
    };
    ensure!(!trace.accesses.is_empty(), "--accesses 0 leaves nothing to replay");
    let mut outcomes = Vec::new();
    for bytes in &args.cache {
        for (policy, own) in OWN {
            let _activity = Activity::start(format!("{policy}, {}", format_size(*bytes)));
            outcomes.push(outcome(policy, *bytes, &trace, replay(&trace, own, *bytes, args.format)?));
        }
        for (policy, misses) in simulate(&trace, (bytes / PAGE_BYTES) as usize) {
            outcomes.push(outcome(policy, *bytes, &trace, misses));
        }
    }
    args.output.text(report(&trace, &args.cache, &outcomes).trim_end());
    args.output.results(&outcomes)
}

fn outcome(policy: &'static str, cache_bytes: u64, trace: &Trace, misses: usize) -> Outcome {
    let accesses = trace.accesses.len();
    Outcome { policy, cache_bytes, accesses, misses, miss_ratio: misses as f64 / accesses as f64 }
}

/// The misses of other policies.
fn simulate(trace: &Trace, capacity: usize) -> Vec<(&'static str, usize)> {
    let pages = trace.pages.len();
    let caches: [(&str, Box<dyn Replacement>); 5] = [
        ("LRU", Box::new(Lru::new(capacity))),
        ("CLOCK", Box::new(Clock::new(capacity, pages))),
        ("ARC", Box::new(Arc::new(capacity))),
        ("S3-FIFO", Box::new(S3Fifo::new(capacity, pages))),
        ("optimum (Belady)", Box::new(Optimum::new(capacity, pages, &trace.accesses))),
    ];
    let misses_of = |policy: &str, mut cache: Box<dyn Replacement>| {
        let _activity = Activity::start(format!("{policy}, {}", format_size(capacity as u64 * PAGE_BYTES)));
        trace.accesses.iter().enumerate().filter(|(time, page)| !cache.access(**page, *time)).count()
    };
    caches.map(|(policy, cache)| (policy, misses_of(policy, cache))).into()
}

/// The misses of vmio itself.
fn replay(trace: &Trace, policy: EvictionPolicy, bytes: u64, format: TraceFormat) -> anyhow::Result<usize> {
    let as_numbered = format == TraceFormat::OracleGeneral;
    let offset_of = |number: u32| {
        PAGE_BYTES.saturating_mul(if as_numbered { u64::from(number) } else { trace.pages[number as usize] })
    };
    let len = (0..trace.pages.len() as u32).map(offset_of).max().unwrap_or(0).saturating_add(PAGE_BYTES);
    let cache = Cache::builder().engine(Engine::Sigbus).policy(policy).capacity(OVERHEAD_BYTES + bytes).build();
    let cache = cache.context("cannot build the cache (`vmio doctor` says what is missing)")?;
    let mapping = Mapping::open(&cache, NullBacking::new(len), MappingOptions::new().access(Access::ReadOnly))
        .with_context(|| format!("cannot map {}: are these page numbers?", format_size(len)))?;
    // The others are not told either that a page is about to be wanted.
    mapping.advise(0..len, Advice::Random)?;
    for number in &trace.accesses {
        let offset = offset_of(*number);
        // As a load would, but for the trap.
        mapping.ensure(offset..offset + 1)?;
    }
    Ok(cache.stats().load_misses as usize)
}

fn report(trace: &Trace, caches: &[u64], outcomes: &[Outcome]) -> String {
    let sizes: Vec<String> = caches.iter().map(|bytes| format!("miss % {}", format_size(*bytes))).collect();
    let mut header = vec!["policy"];
    header.extend(sizes.iter().map(String::as_str));
    let mut table = Table::new(&header);
    let policies = outcomes.iter().take(outcomes.len() / caches.len());
    for policy in policies.map(|outcome| outcome.policy) {
        let of_policy = outcomes.iter().filter(|outcome| outcome.policy == policy);
        let cells = of_policy.map(|outcome| format!("{:.2}", 100.0 * outcome.miss_ratio));
        table.row(std::iter::once(policy.to_owned()).chain(cells).collect());
    }
    let (accesses, pages) = (trace.accesses.len(), trace.pages.len());
    format!("{accesses} accesses to {pages} pages ({})\n\n{}", format_size(pages as u64 * PAGE_BYTES), table.text())
}
