//! `vmio bench map`: loads and stores over a file larger than the memory for it.

use clap::{Args, ValueHint};
use vmio::probe::KernelFeature;
use vmio_report::output::OutputArgs;
use vmio_report::report_file::ReportFile;
use vmio_report::seconds::parse_measured;
use vmio_report::size::{format_size, parse_cache};

use crate::engines::EngineKind;
use crate::matrix::Matrix;
use crate::op::Op;
use crate::pattern::Pattern;
use crate::quick;
use crate::run_report::{self, Setting};
use crate::tables::{Style, report};
use crate::target::{Target, TargetArgs};
use crate::wrong_words::fail_on_verify_errors;

const EXAMPLES: &str = "\
Examples:
  vmio bench map --quick
  vmio bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8
  vmio bench map --device zram --op read,write --breakdown --json map.json
  vmio bench map --quick --report map.html
  vmio bench map --pattern blocks:16 --engines vmio,vmio-64k,mmap
  vmio bench map --engines vmio,mmap --without batched-unmap
  vmio bench map --file /dev/nvme0n1 --size 64G --cache 8G --pattern zipf:0.99 --op mixed:95 --overwrite

Every run has a process of its own. Linux mmap gets a memory cgroup with the budget of the cache,
which needs root; without, that column is left out. A zram device needs root too.";

/// Measure loads and stores through vmio, Linux mmap and pread.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct MapArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Memory for the cache, and for the page cache of Linux mmap [default: 512M]
    #[arg(long, value_parser = parse_cache)]
    cache: Option<u64>,
    /// Patterns: uniform, zipf:EXPONENT, seq, blocks:PAGES (random blocks, read page after page)
    #[arg(long, value_delimiter = ',', default_value = "uniform")]
    pattern: Vec<Pattern>,
    /// Operations: read, write, mixed:PERCENT_OF_READS
    #[arg(long, value_delimiter = ',', default_value = "read")]
    op: Vec<Op>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,2,8", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds to measure each run, after a warm-up that is not counted [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_measured)]
    secs: Option<f64>,
    /// Engines to compare: vmio, vmio-memfd (frames whose stores the kernel tracks), vmio-reader-thread, vmio-managed (Linux mmap kept
    /// within the budget), vmio-kernel (the kernel module), vmio-ring0 (guest mode); vmio-ring0-polled (polled submissions), vmio-16k and
    /// vmio-64k (units); mmap; pread
    #[arg(long, value_delimiter = ',', default_value = "vmio,mmap,pread")]
    engines: Vec<EngineKind>,
    /// Features of the kernel that vmio does without, as on an older kernel (`vmio doctor` lists them)
    #[arg(long, value_delimiter = ',')]
    without: Vec<KernelFeature>,
    #[command(flatten)]
    output: OutputArgs,
    /// Write charts and tables to this file as a page of HTML, or the charts alone if it ends in .svg
    #[arg(long, value_name = "OUT", value_parser = ReportFile::parse, value_hint = ValueHint::FilePath)]
    report: Option<ReportFile>,
    /// Print the tables as Markdown
    #[arg(long)]
    markdown: bool,
    /// Time the parts of every miss (adds clock reads to each)
    #[arg(long)]
    breakdown: bool,
    /// The fixed set of measurements that takes less than two minutes; --size (1G), --cache (256M) and --secs (3) change
    /// its scale
    #[arg(long, conflicts_with_all = ["pattern", "op", "threads", "engines", "breakdown", "without"])]
    quick: bool,
}

/// The size of a temporary file or fast device, unless given.
const DEFAULT_SIZE_BYTES: u64 = 2 << 30;
const DEFAULT_CACHE_BYTES: u64 = 512 << 20;
const DEFAULT_MEASURE_S: f64 = 5.0;

/// Runs `vmio bench map`.
pub fn run(args: &MapArgs) -> anyhow::Result<()> {
    let style = if args.markdown { Style::Markdown } else { Style::Text };
    if args.quick {
        let scale = quick::Scale::new(args.target.size, args.cache, args.secs)?;
        return quick::run(&args.target, scale, &args.output, args.report.as_ref(), style);
    }
    let measure_s = args.secs.unwrap_or(DEFAULT_MEASURE_S);
    let matrix = Matrix {
        engines: args.engines.clone(),
        patterns: args.pattern.clone(),
        ops: args.op.clone(),
        threads: args.threads.clone(),
        cache_bytes: args.cache.unwrap_or(DEFAULT_CACHE_BYTES),
        measure_s,
        warm_up_s: (measure_s / 2.0).max(1.0),
        breakdown: args.breakdown,
        without: args.without.iter().map(KernelFeature::to_string).collect(),
    };
    let target = Target::prepare(&args.target, DEFAULT_SIZE_BYTES)?;
    args.output.text(&format!(
        "{}, a cache of {}, {measure_s} s for each run{}\n",
        target.description(),
        format_size(matrix.cache_bytes),
        if matrix.without.is_empty() { String::new() } else { format!("; vmio without {}", matrix.without.join(", ")) },
    ))?;
    let result = matrix.run(&target)?;
    args.output.text(&report(&result, style))?;
    args.output.results(&result.runs)?;
    if let Some(file) = &args.report {
        run_report::write(file, &Setting::now(&target, matrix.cache_bytes, measure_s), &result)?;
        args.output.text(&file.notice())?;
    }
    fail_on_verify_errors(result.runs.iter().map(|run| run.verify_errors).sum())
}
