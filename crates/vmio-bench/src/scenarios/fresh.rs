//! `vmio-bench fresh`: filling a file with stores without reading it first.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};
use vmio::Advice;
use vmio_measure::child::Spec;
use vmio_measure::content::{PAGE_BYTES, WORD_BYTES, word_at};
use vmio_measure::engines::EngineKind;
use vmio_measure::engines::mmap::LinuxMapping;
use vmio_measure::engines::pointer::PointerAccess;
use vmio_measure::engines::vmio::{Variant, VmioEngine};
use vmio_measure::pattern::Pattern;
use vmio_measure::process::Usage;
use vmio_measure::side::{run_side, run_side_in_cgroup};
use vmio_measure::target::{Target, TargetArgs};
use vmio_measure::wrong_words::fail_on_verify_errors;
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_cache};
use vmio_report::table::Table;

const EXAMPLES: &str = "\
Examples:
  vmio-bench fresh
  vmio-bench fresh --dir /data --size 1G --cache 256M
  vmio-bench fresh --device zram --json -

Every word of the range is stored and synced: once with the advice that the range holds garbage,
once without it, once by Linux mmap in a memory cgroup (which needs root). With the advice the
device is not read at all.";

/// Fill a range with stores and count what is read from the device.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FreshArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Memory for the cache of vmio, and for the page cache of Linux mmap
    #[arg(long, default_value = "256M", value_parser = parse_cache)]
    cache: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the child does.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreshSpec {
    engine: EngineKind,
    advised: bool,
    path: PathBuf,
    size_bytes: u64,
    cache_bytes: u64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreshResult {
    engine: EngineKind,
    /// Whether the range was advised to be fresh.
    advised: bool,
    size_bytes: u64,
    cache_bytes: u64,
    elapsed_s: f64,
    /// By the kernel's count for the process.
    read_bytes: u64,
    write_bytes: u64,
    /// By the cache's own count.
    cache_read_bytes: Option<u64>,
    cache_written_bytes: Option<u64>,
    fresh_fills: Option<u64>,
    verify_errors: u64,
}

const DEFAULT_SIZE_BYTES: u64 = 1 << 30;

impl Spec for FreshSpec {
    const NAME: &'static str = "fresh";
    type Found = FreshResult;
}

/// Runs `vmio-bench fresh`.
pub fn run(args: &FreshArgs) -> anyhow::Result<()> {
    let target = Target::prepare(&args.target.or_fast_device(), DEFAULT_SIZE_BYTES)?;
    let spec = |engine, advised| FreshSpec {
        engine,
        advised,
        path: target.path().to_owned(),
        size_bytes: target.size_bytes(),
        cache_bytes: args.cache,
    };
    let mut results: Vec<FreshResult> = Vec::new();
    results.push(checked(
        &target,
        run_side("fresh: vmio, advised", &target, &spec(EngineKind::Vmio(Variant::Plain), true))?,
    )?);
    results.push(checked(&target, run_side("fresh: vmio", &target, &spec(EngineKind::Vmio(Variant::Plain), false))?)?);
    match run_side_in_cgroup("fresh: mmap", &target, args.cache, &spec(EngineKind::Mmap, false))? {
        Ok(result) => results.push(checked(&target, result)?),
        Err(reason) => args.output.text(&reason)?,
    }
    args.output.text(&format!(
        "{} filled with stores through {} of memory, and synced\n{}",
        format_size(target.size_bytes()),
        format_size(args.cache),
        table(&results)
    ))?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

fn checked(target: &Target, mut result: FreshResult) -> anyhow::Result<FreshResult> {
    result.verify_errors = target.count_invalid_in_sample(1)?;
    Ok(result)
}

fn table(results: &[FreshResult]) -> String {
    let mut table = Table::new(&["engine", "seconds", "read MiB", "written MiB", "verify errors"]);
    for result in results {
        table.row(vec![
            format!("{}{}", result.engine, if result.advised { ", fresh" } else { "" }),
            format!("{:.2}", result.elapsed_s),
            format!("{:.1}", result.read_bytes as f64 / f64::from(1 << 20)),
            format!("{:.1}", result.write_bytes as f64 / f64::from(1 << 20)),
            result.verify_errors.to_string(),
        ]);
    }
    table.text()
}

/// The child's side.
pub fn measure(spec: &FreshSpec) -> anyhow::Result<FreshResult> {
    let (usage, start) = (Usage::now()?, Instant::now());
    let stats = match spec.engine {
        EngineKind::Vmio(variant) => {
            let engine = VmioEngine::open(variant, &spec.path, spec.cache_bytes, true)?;
            let range = 0..spec.size_bytes;
            if spec.advised {
                engine.mapping().advise(range, Advice::Fresh)?;
            } else {
                engine.advise_pattern(Pattern::Sequential)?;
            }
            store_all(&engine.pointer(), spec.size_bytes);
            engine.mapping().sync()?;
            Some(engine.cache_stats())
        }
        EngineKind::Mmap => {
            let mapping = LinuxMapping::of_file(&spec.path, spec.size_bytes, true)?;
            mapping.advise_pattern(Pattern::Sequential)?;
            store_all(&mapping.pointer(), spec.size_bytes);
            mapping.sync()?;
            None
        }
        EngineKind::Pread => bail!("{} is not part of this", spec.engine),
    };
    let (elapsed, usage) = (start.elapsed(), Usage::now()?.since(&usage));
    Ok(FreshResult {
        engine: spec.engine,
        advised: spec.advised,
        size_bytes: spec.size_bytes,
        cache_bytes: spec.cache_bytes,
        elapsed_s: elapsed.as_secs_f64(),
        read_bytes: usage.read_bytes,
        write_bytes: usage.write_bytes,
        cache_read_bytes: stats.as_ref().map(|stats| stats.read_bytes),
        cache_written_bytes: stats.as_ref().map(|stats| stats.written_bytes),
        fresh_fills: stats.as_ref().map(|stats| stats.fresh_fills),
        verify_errors: 0,
    })
}

fn store_all(access: &PointerAccess<'_>, size_bytes: u64) {
    for page in (0..size_bytes).step_by(PAGE_BYTES as usize) {
        for offset in (page..page + PAGE_BYTES).step_by(WORD_BYTES as usize) {
            access.store_word(offset, word_at(offset, page));
        }
    }
}
