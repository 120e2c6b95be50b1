//! `vmio-bench priority`: a range that stays resident while everything else streams by.

use std::hint::black_box;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};
use vmio::Advice;
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_cache, parse_size};
use vmio_report::table::Table;

use crate::child::Spec;
use crate::content::{PAGE_BYTES, word_is_valid};
use crate::engines::EngineKind;
use crate::engines::mmap::LinuxMapping;
use crate::engines::pointer::PointerAccess;
use crate::engines::vmio::{Variant, VmioEngine};
use crate::process::Usage;
use crate::side::{run_side, run_side_in_cgroup};
use crate::target::{Target, TargetArgs};
use crate::wrong_words::fail_on_verify_errors;

const EXAMPLES: &str = "\
Examples:
  vmio-bench priority
  vmio-bench priority --dir /data --range 128M --stream 2G --cache 512M
  vmio-bench priority --device zram --json priority.json

The command touches a range of priority 0 once, and streams the rest of the file at priority 255
through a smaller cache. Then it looks for every page of the range, and touches it again. Linux mmap
does the same in a memory cgroup of the same size (which needs root).";

/// Check that a priority-0 range takes no miss while a scan goes on.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PriorityArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The range of priority 0
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    range: u64,
    /// Length of the stream
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    stream: u64,
    /// Memory for the cache of vmio, and for the page cache of Linux mmap
    #[arg(long, default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// The parameters of the child.
#[derive(Debug, Serialize, Deserialize)]
pub struct PrioritySpec {
    engine: EngineKind,
    path: PathBuf,
    range_bytes: u64,
    stream_bytes: u64,
    cache_bytes: u64,
}

/// The child's result.
#[derive(Debug, Serialize, Deserialize)]
pub struct PriorityResult {
    /// vmio or mmap.
    pub engine: EngineKind,
    range_bytes: u64,
    stream_bytes: u64,
    cache_bytes: u64,
    /// Pages of the range.
    pub range_pages: u64,
    /// Pages of the range that are still in memory after the stream.
    pub resident_pages: u64,
    /// Misses (for mmap: major faults) of a second pass over the range.
    pub misses: u64,
    /// Words with a wrong value.
    pub verify_errors: u64,
}

impl Spec for PrioritySpec {
    const NAME: &'static str = "priority";
    type Found = PriorityResult;
}

/// Runs `vmio-bench priority`.
pub fn run(args: &PriorityArgs) -> anyhow::Result<()> {
    let mut target_args = args.target.or_fast_device();
    if target_args.file.is_none() {
        target_args.size = Some(target_args.size.unwrap_or(args.range + args.stream));
    }
    let target = Target::prepare(&target_args, args.range + args.stream)?;
    let (results, text) = compare(&target, args.range, args.stream, args.cache)?;
    args.output.text(&text)?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

/// Measures both sides on a target; returns the results and the table.
pub fn compare(
    target: &Target,
    range_bytes: u64,
    stream_bytes: u64,
    cache_bytes: u64,
) -> anyhow::Result<(Vec<PriorityResult>, String)> {
    let (range_bytes, stream_bytes) = (whole_pages(range_bytes), whole_pages(stream_bytes));
    if range_bytes + stream_bytes > target.size_bytes() {
        bail!(
            "range and stream together are {}, but the file has {}: choose smaller ones or a larger --size",
            format_size(range_bytes + stream_bytes),
            format_size(target.size_bytes())
        );
    }
    let spec = |engine| {
        let path = target.path().to_owned();
        PrioritySpec { engine, path, range_bytes, stream_bytes, cache_bytes }
    };
    let mut results = vec![run_side("priority: vmio", target, &spec(EngineKind::Vmio(Variant::Plain)))?];
    let mut left_out = String::new();
    match run_side_in_cgroup("priority: mmap", target, cache_bytes, &spec(EngineKind::Mmap))? {
        Ok(result) => results.push(result),
        Err(reason) => left_out = reason + "\n",
    }
    let mut table = Table::new(&["engine", "pages", "still resident", "misses on touching them"]);
    for result in &results {
        table.row(vec![
            result.engine.to_string(),
            result.range_pages.to_string(),
            result.resident_pages.to_string(),
            result.misses.to_string(),
        ]);
    }
    let text = format!(
        "{} at priority 0, touched once, while {} stream by through {} of memory\n{}{left_out}",
        format_size(range_bytes),
        format_size(stream_bytes),
        format_size(cache_bytes),
        table.text()
    );
    Ok((results, text))
}

/// The child's side.
pub fn measure(spec: &PrioritySpec) -> anyhow::Result<PriorityResult> {
    let (range, all) = (0..spec.range_bytes, spec.range_bytes + spec.stream_bytes);
    let mut verify_errors = 0;
    let (resident_pages, misses) = match spec.engine {
        EngineKind::Vmio(variant) => {
            let engine = VmioEngine::open(variant, &spec.path, spec.cache_bytes, false)?;
            let mapping = engine.mapping();
            mapping.advise(range.clone(), Advice::Priority(0))?;
            mapping.advise(spec.range_bytes..all, Advice::Priority(255))?;
            let access = engine.pointer();
            verify_errors += touch(&access, 0, all);
            let resident = range.clone().step_by(PAGE_BYTES as usize).filter(|offset| mapping.is_resident(*offset));
            let resident = resident.count() as u64;
            let before = engine.cache_stats().load_misses;
            verify_errors += touch(&access, 0, spec.range_bytes);
            (resident, engine.cache_stats().load_misses - before)
        }
        EngineKind::Mmap => {
            let mapping = LinuxMapping::of_file(&spec.path, all, false)?;
            // The nearest advice that Linux has: it reads the stream once, but not the range.
            mapping.advise(0, spec.range_bytes, libc::MADV_RANDOM)?;
            mapping.advise(spec.range_bytes, spec.stream_bytes, libc::MADV_SEQUENTIAL)?;
            let access = mapping.pointer();
            verify_errors += touch(&access, 0, all);
            let resident = mapping.resident_pages(0, spec.range_bytes)?;
            let before = Usage::now()?;
            verify_errors += touch(&access, 0, spec.range_bytes);
            (resident, Usage::now()?.since(&before).major_faults)
        }
        EngineKind::Pread => bail!("{} is not part of this", spec.engine),
    };
    Ok(PriorityResult {
        engine: spec.engine,
        range_bytes: spec.range_bytes,
        stream_bytes: spec.stream_bytes,
        cache_bytes: spec.cache_bytes,
        range_pages: spec.range_bytes / PAGE_BYTES,
        resident_pages,
        misses,
        verify_errors,
    })
}

/// Loads a word of every page in order; counts the wrong ones.
fn touch(access: &PointerAccess<'_>, start: u64, end: u64) -> u64 {
    let offsets = (start..end).step_by(PAGE_BYTES as usize);
    offsets.filter(|&offset| !word_is_valid(offset, black_box(access.load_word(offset)))).count() as u64
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_BYTES * PAGE_BYTES
}
