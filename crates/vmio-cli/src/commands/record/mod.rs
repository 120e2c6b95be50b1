//! `vmio record`: records the caches of a command while it runs, as a page with charts or in a file for `vmio report`.

mod charts;
mod descendants;
mod heat_map;
mod miss_log;
mod page;
mod recorder;
mod recording;
mod saved;
mod series;
mod units;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use recorder::Recorder;
use vmio_report::report_file::ReportFile;

use super::stat::parse_interval;
use super::watched_command;

pub use page::page;
pub use saved::read;

const EXAMPLES: &str = "\
Examples:
  vmio record --out run.html -- my-database --load
  vmio record --out sum.html --interval 0.05 -- vmio sum --cache 64M big.bin
  vmio record --save before.vmio -- my-database --load
                                         save the recording for vmio report

The page shows each cache of the command and of the processes that it starts: misses, evictions and bytes over time, latencies, sizes of
requests, resident pages, and totals. It needs no other file and no network.

For caches that are built with CacheBuilder::publish_misses(true) it also shows where in each file the misses were, and how random: R is
near 0 for misses that follow each other, and a third for random pages.

A cache is recorded from its beginning to its end, whatever the interval. A cache that is open for less than 50 ms may be missed. If the
command fails, vmio record fails, too, after everything is written. Ctrl-C ends the recording, not the command.";

/// Beyond this number of samples the recording drops every other one, and doubles the interval.
const SAMPLES_MAX: usize = 1024;

/// How often the recorder looks for new and ended caches and reads misses: a cache's memory for published misses must have space for those
/// of this time.
const LOOK: Duration = Duration::from_millis(50);
/// The first such interval, for commands that end soon; each is twice as long as the one before.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// Run a command, and draw charts of its caches.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("where to").required(true).multiple(true).args(["out", "save"]))]
pub struct RecordArgs {
    /// Write a page with charts to this file
    #[arg(long, value_name = "OUT.html", value_parser = ReportFile::parse)]
    out: Option<ReportFile>,
    /// Save the recording to this file, for vmio report
    #[arg(long, value_name = "FILE", value_parser = ReportFile::parse)]
    save: Option<ReportFile>,
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = parse_interval)]
    interval: Duration,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs `vmio record`.
pub fn run(args: &RecordArgs) -> anyhow::Result<()> {
    let (program, arguments) = args.command.split_first().context("no command is given")?;
    let shown = args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("cannot handle Ctrl-C")?;
    if let (Some(page), Some(recording)) = (&args.out, &args.save)
        && page.path() == recording.path()
    {
        bail!("--out and --save are the same file: choose another for one of them");
    }
    let mut child = watched_command::start(program, arguments)?;
    let mut recorder = Recorder::new(shown, args.interval, SAMPLES_MAX);
    let (mut next_sample, mut until_look) = (Instant::now(), FIRST_LOOK);
    let status = loop {
        let status = child.try_wait().context("cannot wait for the command")?;
        let is_over = status.is_some() || interrupted.load(Ordering::Relaxed);
        if is_over || Instant::now() >= next_sample {
            recorder.sample(child.id());
            next_sample = Instant::now() + recorder.interval();
        } else {
            recorder.look(child.id());
        }
        if is_over {
            break status;
        }
        thread::sleep(until_look.min(next_sample.saturating_duration_since(Instant::now())));
        until_look = LOOK.min(until_look * 2);
    };
    let recording = recorder.finish();
    if recording.series.is_empty() {
        eprintln!(
            "vmio: no cache was recorded: the command opened none, or only for less than {} ms",
            LOOK.as_millis()
        );
    }
    if let Some(file) = &args.save {
        file.write_text(&saved::text(&recording)?)?;
        eprintln!("recording written to {}", file.path().display());
    }
    if let Some(file) = &args.out {
        file.write_text(&page(&[recording]).into_string())?;
        eprintln!("{}", file.notice());
    }
    status.map_or(Ok(()), |status| watched_command::succeeded(program, status))
}
