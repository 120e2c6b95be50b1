//! `vmio stat`: prints the counts of a running process's caches.

mod interval;
mod json;
#[cfg(test)]
pub mod made_up;
mod priorities;
mod prometheus;
mod sample;
mod scrape_endpoint;
mod text;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use prometheus::MetricsTarget;
use vmio::telemetry::Reader;
use vmio_report::seconds::parse_seconds;

pub use interval::Interval;
pub use priorities::resident_by_priority;
pub use sample::Sample;
pub use text::{format_latency, write_totals};

const EXAMPLES: &str = "\
Examples:
  vmio stat 4711                         print the totals of every cache since it was built
  vmio stat $(pgrep my-database) --watch print the rates of each second, until the process ends
  vmio stat 4711 --watch 0.2             print them five times a second
  vmio stat 4711 --watch --json | jq -c '.caches[] | .interval.misses_per_s'
  vmio stat 4711 --prometheus 127.0.0.1:9464
                                         serve /metrics to Prometheus until the process ends
  vmio stat 4711 --prometheus - > /var/lib/node_exporter/vmio.prom
                                         print them once, for the textfile collector of node_exporter

The process needs no option for this and is not slowed down: its caches keep their counts in shared memory. Reading them requires the
right to trace the process: the same user, or CAP_SYS_PTRACE. Quantiles are at most a quarter too long.";

/// Show the contents and counts of a running process's caches.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatArgs {
    /// The number of the process
    #[arg(value_name = "PID", value_parser = parse_process_id)]
    process_id: u32,
    /// Print a line for each cache at this interval (default: 1 second) until the process ends
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_interval)]
    watch: Option<Duration>,
    /// Print a JSON object for each sample, on a line of its own
    #[arg(long)]
    json: bool,
    /// Serve the totals to Prometheus at http://ADDRESS/metrics until the process ends; with -, print them once
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["watch", "json"])]
    prometheus: Option<MetricsTarget>,
}

/// Runs `vmio stat`.
pub fn run(args: &StatArgs) -> anyhow::Result<()> {
    let id = args.process_id;
    let reader = Reader::open(id)?;
    let command = command_name(id);
    let Some(first) = Sample::take(&reader)? else { bail!("process {id} has ended") };
    if first.caches.is_empty() {
        bail!("process {id} ({command}) does not use vmio: it has no open cache");
    }
    if let Some(MetricsTarget::Address(address)) = &args.prometheus {
        return scrape_endpoint::serve(address, &reader);
    }
    let mut output = io::stdout().lock();
    match args.watch {
        _ if args.prometheus.is_some() => output.write_all(prometheus::exposition(id, &first.caches).as_bytes())?,
        Some(interval) => watch(&mut output, &reader, &command, first, interval, args.json)?,
        None if args.json => {
            let caches = first.caches.iter().map(|cache| json::cache(cache, None)).collect();
            writeln!(output, "{}", json::sample(id, &command, caches))?;
        }
        None => text::write_totals(&mut output, id, &command, &first.caches)?,
    }
    output.flush()?;
    Ok(())
}

fn watch(
    output: &mut impl Write,
    reader: &Reader,
    command: &str,
    first: Sample,
    interval: Duration,
    json: bool,
) -> anyhow::Result<()> {
    /// Lines after which a terminal has scrolled the header away.
    const LINES: usize = 20;
    let repeats_header = io::stdout().is_terminal();
    let mut earlier = first;
    let mut lines = 0;
    while !reader.wait_for_end(interval)? {
        let Some(sample) = Sample::take(reader)? else { break };
        if json {
            let caches = sample.since(&earlier).map(|(cache, interval)| json::cache(cache, Some(&interval))).collect();
            writeln!(output, "{}", json::sample(reader.process_id(), command, caches))?;
        } else {
            for (cache, interval) in sample.since(&earlier) {
                if lines == 0 || (repeats_header && lines % LINES == 0) {
                    text::write_header(output)?;
                }
                text::write_interval(output, cache, &interval)?;
                lines += 1;
            }
        }
        output.flush()?;
        earlier = sample;
    }
    Ok(())
}

/// The kernel's name of a process; empty if there is none. Replaces control characters, which could move the cursor.
pub fn command_name(process_id: u32) -> String {
    let name = fs::read(format!("/proc/{process_id}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    String::from_utf8_lossy(name).replace(char::is_control, "\u{fffd}")
}

/// Parses the number of a process.
pub fn parse_process_id(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(id @ 1..) => Ok(id),
        _ => Err(format!(
            "{text:?} is not the number of a process: `pgrep {text}` prints the numbers of a program's processes"
        )),
    }
}

/// Parses a number of seconds between two samples.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 0.05..=3600.0).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_moves_the_cursor() {
        let own = std::process::id();
        fs::write("/proc/self/comm", b"a\x1b[2J\r\n\xff").unwrap();
        assert_eq!(command_name(own), "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(command_name(u32::MAX), "");
    }

    #[test]
    fn intervals_are_seconds_within_reason() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_interval("60"), Ok(Duration::from_secs(60)));
        for text in ["", "0", "-1", "1s", "nan", "inf", "1e9"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
