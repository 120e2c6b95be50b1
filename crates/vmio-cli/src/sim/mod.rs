//! `vmio sim`: replays a trace of pages through vmio itself and through other replacement policies.

mod cache_size;
mod formats;
mod outcome;
mod plot;
mod policy;
mod replacement;
mod trace;

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::{ArgGroup, Args, ValueEnum, ValueHint};
use vmio_report::output::OutputArgs;
use vmio_report::progress::Activity;
use vmio_report::report_file::ReportFile;
use vmio_report::size::format_size;
use vmio_report::table::Table;

use self::cache_size::CacheSize;
use self::formats::PAGE_BYTES;
use self::outcome::Outcome;
use self::policy::{Misses, Policy};
use self::trace::{Synthetic, Trace, TraceFormat};

const EXAMPLES: &str = "\
Examples:
  vmio sim --synthetic zipf:0.99 --pages 200000 --cache 64M,128M,256M
  vmio sim --synthetic scan-hot --pages 100000 --accesses 2000000 --cache 80M
  vmio sim --trace pages.txt --cache 1G --json sim.json
  vmio sim --trace hm_0.csv --format msr --cache 256M,1G,4G
  vmio sim --synthetic zipf:0.8 --cache 5%,10%,25%,50% --policy auto,s3-fifo --report misses.html

vmio's own policies run for real: the command replays the trace through a mapping without a device, in a cache with extra memory for
the page tables. Minor faults are accesses of inactive pages: in memory, but unmapped.
In a trace of objects (oracle-general) each object counts as a page; the pages lie side by side in the order of their first access.";

/// The smallest cache: vmio's own minimum.
const MEMORY_MIN: u64 = 1 << 20;
/// Replay a trace of pages and compare the misses of vmio's policies with LRU, CLOCK, ARC, S3-FIFO and the optimum.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("accesses to replay").required(true).args(["trace", "synthetic"]))]
pub struct SimArgs {
    /// The file of the trace
    #[arg(long, value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// The format of the file
    #[arg(long, value_enum, default_value = "pages", conflicts_with = "synthetic")]
    format: TraceFormat,
    /// Generate a trace: uniform, zipf:EXPONENT, seq, blocks:PAGES, scan-hot or shift
    #[arg(long)]
    synthetic: Option<Synthetic>,
    /// Pages of a generated trace
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 30), conflicts_with = "trace")]
    pages: u64,
    /// Accesses of a generated trace
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "trace")]
    accesses: u32,
    /// Memory for pages, or a percentage of the trace's pages (10%); give several to compare sizes
    #[arg(long, value_parser = CacheSize::parse, value_delimiter = ',', required = true)]
    cache: Vec<CacheSize>,
    /// The policies to compare, or all: vmio's auto, auto-mixed, keep-refaulted, mixed, fifo, second-chance and
    /// vmio-s3-fifo-mixed, and lru, clock, arc, s3-fifo and optimum
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = parse_policies)]
    policy: Vec<Policies>,
    /// Draw the misses by cache size: OUT.html or OUT.svg
    #[arg(long, value_name = "OUT", value_parser = plot::parse_file)]
    report: Option<ReportFile>,
    #[command(flatten)]
    output: OutputArgs,
}

/// One policy, or all of them.
type Policies = &'static [Policy];

fn parse_policies(text: &str) -> Result<Policies, String> {
    let all = Policy::value_variants();
    if text == "all" {
        return Ok(all);
    }
    let is_named = |policy: &&Policy| policy.to_possible_value().is_some_and(|value| value.matches(text, false));
    all.iter().find(is_named).map(std::slice::from_ref).ok_or_else(|| {
        let names: Vec<_> = all.iter().filter_map(|policy| policy.to_possible_value()).collect();
        let names: Vec<_> = names.iter().map(|value| value.get_name()).collect();
        format!("{text:?} is not a policy: write all, or some of {}", names.join(", "))
    })
}

/// Runs `vmio sim`.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let trace = match (&args.trace, args.synthetic) {
        (Some(path), _) => Trace::read(path, args.format)?,
        (None, Some(kind)) => Trace::synthetic(kind, args.pages, args.accesses as usize, 1)?,
        (None, None) => bail!("give --trace or --synthetic"),
    };
    ensure!(!trace.accesses.is_empty(), "--accesses 0 leaves nothing to replay: give a larger number");
    let caches: Vec<(CacheSize, u64)> = args.cache.iter().map(|size| (*size, size.bytes(trace.pages.len()))).collect();
    if let Some((size, bytes)) = caches.iter().find(|(_, bytes)| *bytes < MEMORY_MIN) {
        bail!("--cache {size} is {bytes} bytes: it must be at least {}", format_size(MEMORY_MIN));
    }
    let mut outcomes = Vec::new();
    for (size, cache_bytes) in &caches {
        for policy in args.policy.iter().copied().flatten() {
            let _activity = Activity::start(format!("{}, {size}", policy.name()));
            let (Misses { misses, minor_faults }, accesses) =
                (policy.replay(&trace, *cache_bytes)?, trace.accesses.len());
            let (policy, cache_bytes, miss_ratio) = (policy.name(), *cache_bytes, misses as f64 / accesses as f64);
            outcomes.push(Outcome { policy, cache_bytes, accesses, misses, miss_ratio, minor_faults });
        }
    }
    let about = about(&trace);
    args.output.text(&format!("{about}\n\n{}", table(&args.cache, &outcomes).text().trim_end()))?;
    let inputs: Vec<&Path> = args.trace.as_deref().into_iter().collect();
    if let Some(file) = &args.report {
        plot::write(file, &about, &outcomes, &inputs)?;
        args.output.text(&file.notice())?;
    }
    args.output.results_from(&outcomes, &inputs)
}

fn about(trace: &Trace) -> String {
    let (accesses, pages) = (trace.accesses.len(), trace.pages.len());
    format!("{accesses} accesses to {pages} pages ({})", format_size(pages as u64 * PAGE_BYTES))
}

fn table(caches: &[CacheSize], outcomes: &[Outcome]) -> Table {
    let sizes: Vec<String> = caches.iter().map(|size| format!("miss % {size}")).collect();
    let mut header = vec!["policy"];
    header.extend(sizes.iter().map(String::as_str));
    let mut table = Table::new(&header);
    let policies = outcomes.len() / caches.len();
    for (number, outcome) in outcomes.iter().take(policies).enumerate() {
        let of_policy = outcomes.iter().skip(number).step_by(policies);
        let cells = of_policy.map(|outcome| {
            let minor = match outcome.minor_faults {
                0 => String::new(),
                minor => format!(" + {:.2} minor", 100.0 * minor as f64 / outcome.accesses as f64),
            };
            format!("{:.2}{minor}", 100.0 * outcome.miss_ratio)
        });
        table.row(std::iter::once(outcome.policy.to_owned()).chain(cells).collect());
    }
    table
}
