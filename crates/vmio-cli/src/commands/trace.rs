//! `vmio trace`: records the misses of a running program as a trace for `vmio sim`.

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
  vmio trace --out pages.txt -- ./my-database --bench   record a program from its start to its end
  vmio trace --out pages.txt --pid 4711                 record a running process, until it ends or Ctrl-C
  vmio sim --trace pages.txt --cache 5%,10%,25%,50%

The program must build its cache with CacheBuilder::publish_misses(true). The trace has its misses, in the order of the faults. With the
smallest capacity (6 MiB, which hold 256 pages) that is nearly every access to another page. Hits in those 256 pages are missing from the
trace, and so are pages that Mapping::fetch has read. Pages of the second and later mappings are numbered behind those of the first. A
line is: page,load or page,store. Ctrl-C ends the recording, not the program.";

/// How often the recorder reads new misses.
const INTERVAL: Duration = Duration::from_millis(5);
/// While a program misses without a pause, this number of reads go to the file between two checks of the program.
const READS_MAX: usize = 16;

/// Record the pages that a program misses, for `vmio sim`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("what runs").required(true).args(["pid", "command"]))]
pub struct TraceArgs {
    /// Write the trace to this file
    #[arg(long, value_hint = ValueHint::FilePath)]
    out: PathBuf,
    /// Record this process, instead of a command
    #[arg(long, value_parser = parse_process_id)]
    pid: Option<u32>,
    /// Record this cache of the process: 1 is the first that it built
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    cache_number: u64,
    /// The command to run and record, with its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Runs `vmio trace`.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    folder_of(&args.out).map_err(Error::msg)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("cannot handle Ctrl-C")?;
    let mut recording = Recording { path: &args.out, misses: Vec::new(), recorded: 0, interrupted };
    let child = match (args.pid, &args.command[..]) {
        (None, [program, arguments @ ..]) => Some(watched_command::start(program, arguments)?),
        _ => None,
    };
    let id = args.pid.or(child.as_ref().map(Child::id)).context("give --pid or a command")?;
    let reader = Reader::open(id)?;
    if args.pid.is_some() && reader.misses(args.cache_number)?.is_none() {
        eprintln!(
            "vmio: process {id} has no cache {} yet that publishes its misses: waiting for one until it ends (Ctrl-C ends this)",
            args.cache_number
        );
    }
    let recorded = recording.record(&reader, args.cache_number);
    // The program goes on even if the recording has failed.
    let status = match child {
        Some(mut child) if !recording.is_interrupted() => Some(child.wait()?),
        _ => None,
    };
    let source = recorded.with_context(|| format!("cannot record to {}", args.out.display()))?;
    let Some(misses) = source else {
        bail!(
            "process {id} had no cache {} that publishes its misses: build it with CacheBuilder::publish_misses(true)",
            args.cache_number
        )
    };
    eprintln!("vmio: {} misses recorded, {} lost", recording.recorded, misses.lost());
    status.map_or(Ok(()), |status| watched_command::succeeded(&args.command[0], status))
}

/// A trace while it is recorded.
struct Recording<'path> {
    /// Written once there is a cache to record: until then the file may be another run's.
    path: &'path Path,
    misses: Vec<Miss>,
    recorded: u64,
    interrupted: Arc<AtomicBool>,
}

/// A cache's misses, and the file for them.
struct Traced {
    source: Misses,
    output: BufWriter<File>,
}

impl Recording<'_> {
    /// Records until the process ends or an interrupt; `None` if there was no cache to record.
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

    /// Writes the misses since the last call to the file; all of them if no more will follow.
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
