//! `vmio-bench posix`: the calls of a program that reads and writes a file, plain and under `vmio run --mode`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use vmio::{Access, SharedMap};
use vmio_measure::child::{self, Spec};
use vmio_measure::content::mix64;
use vmio_measure::median::median;
use vmio_measure::place::Place;
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_cache, parse_size};

use crate::vmio_command::{self, RunMode};

const EXAMPLES: &str = "\
Examples:
  vmio-bench posix --dir /data
  vmio-bench posix --dir /data --size 1G --rounds 9 --json posix.json
  vmio-bench posix --dir /data --mode strict --size 16M
  vmio-bench posix --dir /data --size 16M --cache 64M

Each pattern of SplitFS's (thesis, section 4.8.6) in a process of its own: all of a file that is in the page cache, 4 KiB a call.
The sides take turns; a time is the median over the rounds after the first, which is told apart.
With --mode sync or strict, the plain side makes each write durable by an fdatasync. With --cache there is a third side, which reads
and writes in a cache of the process's own.";

/// Measure reads and writes by calls, plain and without system calls.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PosixArgs {
    /// The mode that is measured beside the plain program
    #[arg(long, value_enum, default_value_t)]
    mode: RunMode,
    /// Measure the mode with a cache of this size, too
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    cache: Option<u64>,
    /// Work in a new folder in this one, and remove it afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// The file's size
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    size: u64,
    /// Passes over the file, of each side
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

const CALL_BYTES: u64 = 4096;
/// Appends are synced as in the table of the thesis.
const APPENDS_PER_SYNC: u64 = 10;
/// A pass of appends is so much shorter: its syncs take most of it.
const APPENDS_SHARE: u64 = 32;

/// SplitFS's five patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CallPattern {
    /// read, from the start to the end.
    SequentialReads,
    /// pread, each part once.
    RandomReads,
    /// write over what is there, from the start to the end.
    SequentialWrites,
    /// pwrite over what is there, each part once.
    RandomWrites,
    /// write at the end, and an fsync every ten, or as the mode has it.
    Appends,
}

/// What the child does.
#[derive(Debug, Serialize, Deserialize)]
pub struct PosixSpec {
    path: PathBuf,
    size_bytes: u64,
    pattern: CallPattern,
    rounds: u32,
    /// Whether each write is followed by an fdatasync.
    syncs_each_write: bool,
    /// Whether each write is durable without.
    is_durable: bool,
    /// Whether bytes are copied from and to a mapping of the file, in place of calls.
    copies: bool,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct PosixRun {
    /// Of each round, the mean time of a call.
    call_ns: Vec<f64>,
}

impl Spec for PosixSpec {
    const NAME: &'static str = "posix";
    type Found = PosixRun;
}

/// A pattern on all sides.
#[derive(Debug, Serialize)]
struct PosixResult {
    pattern: CallPattern,
    size_bytes: u64,
    plain_first_ns: f64,
    plain_ns: f64,
    mode: String,
    mode_first_ns: f64,
    mode_ns: f64,
    /// How many times as many calls in the same time, after the first round.
    speedup: f64,
    /// The same in a cache of the process's, if that was asked for.
    #[serde(flatten)]
    cached: Option<CachedResult>,
    /// What the copy alone takes, which no mode does without; none where a call does more than that.
    copy_ns: Option<f64>,
}

/// Those of the mode with a cache.
#[derive(Debug, Serialize)]
struct CachedResult {
    cache_bytes: u64,
    cached_first_ns: f64,
    cached_ns: f64,
    cached_speedup: f64,
}

impl PosixRun {
    fn first_ns(&self) -> f64 {
        self.call_ns[0]
    }

    /// The median of the others.
    fn later_ns(&self) -> f64 {
        median(self.call_ns[1..].iter().copied())
    }
}

impl CallPattern {
    /// Whether a call may be a copy and nothing else.
    fn is_copy(self, is_durable: bool) -> bool {
        match self {
            CallPattern::SequentialReads | CallPattern::RandomReads => true,
            CallPattern::SequentialWrites | CallPattern::RandomWrites => !is_durable,
            CallPattern::Appends => false,
        }
    }
}

/// How a pass is made.
#[derive(Clone, Copy)]
enum Side {
    Plain,
    /// In the mode, perhaps with a cache of so many bytes.
    Mode(Option<u64>),
    Copies,
}

/// Runs `vmio-bench posix`.
pub fn run(args: &PosixArgs) -> anyhow::Result<()> {
    let place = Place::in_dir(&args.dir)?;
    args.output.text(&format!(
        "4 KiB a call, {} in the page cache, {}",
        format_size(args.size),
        place.description()
    ))?;
    let mode = args.mode.to_possible_value().map(|mode| mode.get_name().to_owned()).unwrap_or_default();
    let cached = args.cache.map(|cache| format!("in {}, first round  after it   ratio", format_size(cache)));
    args.output.text(&format!(
        "{:<20} plain, first round  after it {mode:>7}, first round  after it   ratio    the copy alone    {}",
        "pattern",
        cached.unwrap_or_default()
    ))?;
    let mut results = Vec::new();
    for pattern in CallPattern::value_variants() {
        let result = compare(args, &place, &mode, *pattern)?;
        let name = name_of(*pattern);
        let mut line = format!(
            "{name:<18} {:>15.0} ns {:>9.0} ns {:>15.0} ns {:>9.0} ns {:>7.2}",
            result.plain_first_ns, result.plain_ns, result.mode_first_ns, result.mode_ns, result.speedup
        );
        line += &result.copy_ns.map_or_else(|| " ".repeat(18), |copy_ns| format!(" {copy_ns:>14.0} ns"));
        if let Some(cached) = &result.cached {
            line += &format!(
                " {:>21.0} ns {:>7.0} ns {:>7.2}",
                cached.cached_first_ns, cached.cached_ns, cached.cached_speedup
            );
        }
        args.output.text(line.trim_end())?;
        results.push(result);
    }
    args.output.results(&results)
}

fn name_of(pattern: CallPattern) -> String {
    pattern.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Has each side make its passes, in a process of its own.
fn compare(args: &PosixArgs, place: &Place, mode: &str, pattern: CallPattern) -> anyhow::Result<PosixResult> {
    let is_durable = args.mode != RunMode::Posix;
    let passes = |side: Side| -> anyhow::Result<PosixRun> {
        let spec = PosixSpec {
            path: place.path().join("data"),
            size_bytes: args.size,
            pattern,
            rounds: args.rounds,
            syncs_each_write: is_durable && matches!(side, Side::Plain),
            is_durable,
            copies: matches!(side, Side::Copies),
        };
        let name = name_of(pattern);
        let (run, _) = match side {
            Side::Plain => child::run(&format!("{name}, plain"), None, &spec)?,
            Side::Copies => child::run(&format!("{name}, copies"), None, &spec)?,
            Side::Mode(cache) => {
                let mut within = vmio_command::run()?;
                within.args(["--mode", mode]);
                if let Some(cache) = cache {
                    within.args(["--cache", &cache.to_string()]);
                }
                within.arg("--under").arg(place.path()).arg("--");
                let what = if cache.is_some() { " in a cache" } else { "" };
                child::run_within(&format!("{name}, {mode}{what}"), within, &spec)?
            }
        };
        Ok(run)
    };
    let (plain, with) = (passes(Side::Plain)?, passes(Side::Mode(None))?);
    let copies = pattern.is_copy(is_durable).then(|| passes(Side::Copies)).transpose()?;
    let cached = args.cache.map(|cache_bytes| {
        let run = passes(Side::Mode(Some(cache_bytes)))?;
        anyhow::Ok(CachedResult {
            cache_bytes,
            cached_first_ns: run.first_ns(),
            cached_ns: run.later_ns(),
            cached_speedup: plain.later_ns() / run.later_ns(),
        })
    });
    Ok(PosixResult {
        pattern,
        size_bytes: args.size,
        plain_first_ns: plain.first_ns(),
        plain_ns: plain.later_ns(),
        mode: mode.to_owned(),
        mode_first_ns: with.first_ns(),
        mode_ns: with.later_ns(),
        speedup: plain.later_ns() / with.later_ns(),
        cached: cached.transpose()?,
        copy_ns: copies.map(|copies| copies.later_ns()),
    })
}

/// The child's side.
pub fn measure(spec: &PosixSpec) -> anyhow::Result<PosixRun> {
    let calls = spec.size_bytes / CALL_BYTES;
    ensure!(calls >= APPENDS_SHARE, "a file of {} is too small", format_size(spec.size_bytes));
    filled(&spec.path, calls).with_context(|| format!("cannot write {}", spec.path.display()))?;
    let mut file = File::options().read(true).write(true).open(&spec.path)?;
    let mut map = None;
    if spec.copies {
        let shared = SharedMap::open(file.as_fd(), spec.size_bytes, Access::ReadWrite)?;
        shared.populate_if_cached(file.as_fd(), 0..spec.size_bytes);
        map = Some(shared);
    }
    let mut call_ns = Vec::new();
    for round in 0..spec.rounds {
        let start = Instant::now();
        let done = match &map {
            Some(map) => copy_pass(map, spec, calls, round)?,
            None => pass(&mut file, spec, calls, round)?,
        };
        call_ns.push(start.elapsed().as_nanos() as f64 / done as f64);
    }
    Ok(PosixRun { call_ns })
}

fn filled(path: &Path, calls: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let block = [7; CALL_BYTES as usize];
    for _ in 0..calls {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// The block that a call is about, for each part of the file once.
fn block_of(pattern: CallPattern, calls: u64, round: u32) -> impl Fn(u64) -> u64 {
    // Odd, so that each part comes once if their number is a power of two.
    let step = mix64(u64::from(round)) | 1;
    move |at| match pattern {
        CallPattern::RandomReads | CallPattern::RandomWrites => at.wrapping_mul(step) % calls * CALL_BYTES,
        CallPattern::SequentialReads | CallPattern::SequentialWrites | CallPattern::Appends => at * CALL_BYTES,
    }
}

/// Once over the file by copies; how many that was.
fn copy_pass(map: &SharedMap, spec: &PosixSpec, calls: u64, round: u32) -> anyhow::Result<u64> {
    let mut block = [round as u8; CALL_BYTES as usize];
    let offset = block_of(spec.pattern, calls, round);
    match spec.pattern {
        CallPattern::SequentialReads | CallPattern::RandomReads => {
            (0..calls).try_for_each(|at| map.read_at(offset(at), &mut block))?;
        }
        _ => (0..calls).try_for_each(|at| map.write_at(offset(at), &block))?,
    }
    Ok(calls)
}

/// Once over the file; how many calls that was.
fn pass(file: &mut File, spec: &PosixSpec, calls: u64, round: u32) -> anyhow::Result<u64> {
    let mut block = [round as u8; CALL_BYTES as usize];
    let part = block_of(spec.pattern, calls, round);
    let written = |file: &File| if spec.syncs_each_write { file.sync_data() } else { Ok(()) };
    match spec.pattern {
        CallPattern::SequentialReads => {
            file.seek(SeekFrom::Start(0))?;
            (0..calls).try_for_each(|_| file.read_exact(&mut block))?;
        }
        CallPattern::RandomReads => (0..calls).try_for_each(|at| file.read_exact_at(&mut block, part(at)))?,
        CallPattern::SequentialWrites => {
            file.seek(SeekFrom::Start(0))?;
            for _ in 0..calls {
                file.write_all(&block)?;
                written(file)?;
            }
        }
        CallPattern::RandomWrites => {
            (0..calls).try_for_each(|at| file.write_all_at(&block, part(at)).and_then(|()| written(file)))?;
        }
        CallPattern::Appends => {
            file.seek(SeekFrom::End(0))?;
            for at in 1..=calls / APPENDS_SHARE {
                file.write_all(&block)?;
                written(file)?;
                if !spec.is_durable && at % APPENDS_PER_SYNC == 0 {
                    file.sync_all()?;
                }
            }
            return Ok(calls / APPENDS_SHARE);
        }
    }
    Ok(calls)
}
