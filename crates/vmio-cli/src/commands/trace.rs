//! `vmio trace`: the misses of a running program, as a trace for `vmio sim`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, bail};
use clap::{ArgGroup, Args, ValueHint};
use vmio::telemetry::{Miss, Misses, Reader};
use vmio_report::new_file::folder_of;

use super::stat::parse_process_id;
use super::watched_command;

const EXAMPLES: &str = "\
Examples:
  vmio trace --out pages.txt -- ./my-database --bench   from its start to its end
  vmio trace --out pages.txt --pid 4711                 of a running process, until it ends or Ctrl-C
  vmio sim --trace pages.txt --cache 5%,10%,25%,50%

The program builds its cache with CacheBuilder::publish_misses(true); others cannot be traced. What is recorded are
misses: with a cache of the smallest capacity (6 MiB, which hold 256 pages) nearly every touch of another page, in the order
of the faults. What hits in those 256 pages is missing, and so are pages that Mapping::fetch brought in. Pages of the
second and later mappings are numbered behind those of the first. A line is: page,load or page,store. An interrupt ends
the recording, not the program.";

/// How often is looked for new misses.
const INTERVAL: Duration = Duration::from_millis(5);
/// Of a program that misses without a pause, so many reads of new misses go to the file before it is looked after.
const READS_MAX: usize = 16;

/// Record the pages that a program touches, for `vmio sim`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("what runs").required(true).args(["pid", "command"]))]
pub struct TraceArgs {
    /// The file for the trace
    #[arg(long, value_hint = ValueHint::FilePath)]
    out: PathBuf,
    /// The process to record, in place of a command
    #[arg(long, value_parser = parse_process_id)]
    pid: Option<u32>,
    /// Which of the caches of the process, in the order in which it built them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    cache_number: u64,
    /// The command to run and to record, with its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Runs `vmio trace`.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    folder_of(&args.out).map_err(Error::msg)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("cannot watch for Ctrl-C")?;
    let mut recording = Recording { path: &args.out, misses: Vec::new(), recorded: 0, interrupted };
    let child = match (args.pid, &args.command[..]) {
        (None, [program, arguments @ ..]) => Some(watched_command::start(program, arguments)?),
        _ => None,
    };
    let id = args.pid.or(child.as_ref().map(Child::id)).context("give --pid or a command")?;
    let reader = Reader::open(id)?;
    if args.pid.is_some() && reader.misses(args.cache_number)?.is_none() {
        eprintln!(
            "vmio: process {id} has no such cache that publishes its misses: waiting until it has, or ends, or Ctrl-C"
        );
    }
    let recorded = recording.record(&reader, args.cache_number);
    // The program goes on though the recording failed.
    let status = match child {
        Some(mut child) if !recording.is_interrupted() => Some(child.wait()?),
        _ => None,
    };
    let source = recorded.with_context(|| format!("cannot record to {}", args.out.display()))?;
    let Some(misses) = source else {
        bail!("process {id} had no cache {} that publishes its misses: CacheBuilder::publish_misses", args.cache_number)
    };
    eprintln!("vmio: {} misses recorded, {} lost", recording.recorded, misses.lost());
    status.map_or(Ok(()), |status| watched_command::succeeded(&args.command[0], status))
}

/// A trace that is being recorded.
struct Recording<'path> {
    /// Written once there is a cache to record: what is there before may be another run's.
    path: &'path Path,
    misses: Vec<Miss>,
    recorded: u64,
    interrupted: Arc<AtomicBool>,
}

/// A cache's misses, and where they go.
struct Traced {
    source: Misses,
    output: BufWriter<File>,
}

impl Recording<'_> {
    /// Records until the process ends or somebody interrupts; `None` if there was nothing to record from.
    fn record(&mut self, reader: &Reader, cache_number: u64) -> anyhow::Result<Option<Misses>> {
        let mut traced: Option<Traced> = None;
        loop {
            let is_interrupted = self.is_interrupted();
            let has_ended = reader.wait_for_end(INTERVAL)?;
            if traced.is_none() && !has_ended {
                let source = match reader.misses(cache_number) {
                    Err(_) if reader.wait_for_end(Duration::ZERO)? => None,
                    found => found?,
                };
                traced = source.map(|source| self.begin(source, cache_number, reader.process_id())).transpose()?;
            }
            if let Some(traced) = &mut traced {
                self.drain(traced, has_ended)?;
            }
            if has_ended || is_interrupted {
                return Ok(traced.map(|traced| traced.source));
            }
        }
    }

    fn begin(&self, source: Misses, cache_number: u64, process_id: u32) -> anyhow::Result<Traced> {
        let mut output = BufWriter::new(File::create(self.path)?);
        writeln!(output, "# misses of cache {cache_number} of process {process_id}: page,access")?;
        Ok(Traced { source, output })
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Writes what has been missed since the last call, to the file; all there is, if nothing will be added.
    fn drain(&mut self, Traced { source, output }: &mut Traced, is_last: bool) -> anyhow::Result<()> {
        for reads in 1.. {
            let left = source.read(&mut self.misses)?;
            if self.misses.is_empty() {
                match (left, is_last) {
                    (1.., true) => source.skip(),
                    _ => break,
                }
            }
            for miss in self.misses.drain(..) {
                self.recorded += 1;
                writeln!(output, "{},{}", miss.page, if miss.store { "store" } else { "load" })?;
            }
            if reads == READS_MAX && !is_last {
                break;
            }
        }
        Ok(output.flush()?)
    }
}
