//! docs/benchmarks/programs.md and a JSON of the same figures, from what scripts/measure-program wrote: DIR/DEVICE/PROGRAM.jsonl has a line
//! for each run of a program on each side.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use vmio_report::standard_output::print_line;
use vmio_report::surroundings;

use super::part::{commands_section, machine_table, table};
use super::runs::{Runs, count, distinct, of, select, text};
use super::write_page;
use crate::figure::{DASH, least, median, mib, most, number, ratio, times};
use crate::machine::Machine;

const DEVICES: [(&str, &str); 2] = [("disk", "Disk"), ("zram", "Fast device (ext4 on zram)")];
const SIDES: [&str; 2] = ["plain", "vmio"];

const INTRO: &str = "\
# Programs that people run, with `vmio run` and without

Written by `make bench-programs`; not edited by hand. Each program maps files. It runs as it is in a memory cgroup (*plain*), and
as `vmio run --cache CACHE --under DIR -- PROGRAM` in a cgroup of the same limit (*vmio*). The programs are short files in
[bench/programs](../../bench/programs), with their parameters at the top. Each run begins with a cold page cache. The two sides
take turns, and both must compute the same.

**How to read it.** Figures are medians of the rounds. *plain ÷ vmio* is how many times as long the program takes plain: above 1
vmio is faster, below 1 it is slower. *Rounds* has the smallest and the largest ratio of a round: where that range
includes 1, the two sides are not told apart. *Seconds* are those of the work, from before the file is mapped until the program is done with it;
*start and end* is what the whole command takes beside, such as loading Python. *Peak* is the most that the cgroup held, page cache
included; plain, it is the limit wherever the files are larger. *Read* is what Linux counts for the program, libraries included. Where
that is less with vmio than its cache, the program touches few pages, and the difference is what Linux reads around each of them:
it goes by the read-ahead of the device.";

/// Render docs/benchmarks/programs.md; fails if a program did, or computed something else with vmio than without
#[derive(Args)]
pub struct ProgramsPage {
    /// Where the runs are, in DEVICE/PROGRAM.jsonl
    folder: PathBuf,
    /// Programs in the order of the page, with spaces between them
    #[arg(long, default_value = "")]
    order: String,
    /// Whose failures end it with status 1: a device, and programs
    #[arg(long, default_value = "", value_name = "DEVICE PROGRAM...")]
    measured: String,
    /// Page to write
    #[arg(long, default_value = "docs/benchmarks/programs.md")]
    out: PathBuf,
    /// JSON to write
    #[arg(long, default_value = "docs/benchmarks/programs.json")]
    figures: PathBuf,
}

/// The runs of a program on a device.
struct Program {
    device: &'static str,
    name: String,
    /// As they were written.
    lines: Vec<String>,
    runs: Vec<Value>,
}

impl ProgramsPage {
    /// Writes both.
    pub fn render(&self) -> Result<()> {
        let found = self.read()?;
        let mut parts = vec![INTRO.to_owned(), machine_table(&[])?];
        for (device, title) in DEVICES {
            let here: Vec<_> = found.iter().filter(|program| program.device == device).collect();
            if !here.is_empty() {
                parts.push(format!("## {title}"));
                parts.push(settings(&here));
                parts.push(programs_table(&here));
            }
        }
        let problems: Vec<_> = found.iter().filter_map(|program| Some((program, program.problem()?))).collect();
        let failed: Vec<_> =
            problems.iter().map(|(program, why)| format!("- {} on {}: {why}", program.name, program.device)).collect();
        if !failed.is_empty() {
            parts.push("## What failed".to_owned());
            parts.push(failed.join("\n"));
        }
        let commands = commands(&found);
        parts.push(commands_section(&commands, None));
        write_page(&self.out, &parts, "")?;
        self.write_figures(&commands, &found)?;
        let mut now = self.measured.split_whitespace();
        let (device, names): (_, Vec<_>) = (now.next().unwrap_or_default(), now.collect());
        let of_now = |program: &Program| program.device == device && names.contains(&program.name.as_str());
        let failed = problems.iter().filter(|(program, _)| of_now(program));
        let failed: Vec<_> = failed.map(|(program, why)| format!("{}: {why}", program.name)).collect();
        if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
    }

    fn read(&self) -> Result<Vec<Program>> {
        let mut found = Vec::new();
        for (device, _) in DEVICES {
            for name in self.order.split_whitespace() {
                let path = self.folder.join(device).join(format!("{name}.jsonl"));
                if path.exists() {
                    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
                    let runs = lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<Vec<Value>, _>>();
                    let runs = runs.with_context(|| format!("{} is not lines of JSON", path.display()))?;
                    found.push(Program { device, name: name.to_owned(), lines, runs });
                }
            }
        }
        Ok(found)
    }

    /// A run on a line, so that a change of one is seen as such.
    fn write_figures(&self, commands: &[String], found: &[Program]) -> Result<()> {
        let machine = serde_json::to_string_pretty(&Machine::this()?)?.replace('\n', "\n  ");
        let commands = serde_json::to_string_pretty(commands)?.replace('\n', "\n  ");
        let date = surroundings::today();
        let mut text = format!(
            "{{\n  \"commands\": {commands},\n  \"date\": \"{date}\",\n  \"machine\": {machine},\n  \"runs\": [\n"
        );
        let lines = found.iter().flat_map(|program| program.lines.iter().map(|line| (program.device, line)));
        let lines: Vec<_> = lines
            .map(|(device, line)| format!("    {{\"device\": \"{device}\", {}", line.trim_start_matches('{')))
            .collect();
        let _ = write!(text, "{}\n  ]\n}}\n", lines.join(",\n"));
        if let Some(folder) = self.figures.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        fs::write(&self.figures, text).with_context(|| format!("cannot write {}", self.figures.display()))
    }
}

impl Program {
    fn runs(&self) -> Runs<'_> {
        self.runs.iter().collect()
    }

    fn of_side(&self, side: &str) -> Runs<'_> {
        select(&self.runs(), &[("side", json!(side))])
    }

    /// Why there is no figure of it.
    fn problem(&self) -> Option<String> {
        if let Some(run) = self.runs.iter().find(|run| !run["failure"].is_null()) {
            return Some(format!("{}, round {}: {}", text(run, "side"), run["round"], text(run, "failure")));
        }
        let [plain, vmio] = SIDES.map(|side| distinct(&self.of_side(side), "checksum"));
        let all = distinct(&self.runs(), "checksum");
        if all.len() <= 1 {
            return None;
        }
        let is_same = plain.len() == vmio.len() && plain.iter().all(|checksum| vmio.contains(checksum));
        Some(if is_same { "two runs differ" } else { "vmio and plain do not compute the same" }.to_owned())
    }

    /// Plain by vmio, for each round.
    fn ratios(&self) -> Vec<f64> {
        let [plain, vmio] = SIDES.map(|side| self.of_side(side));
        plain.iter().zip(&vmio).filter_map(|(plain, vmio)| ratio(of(plain, "seconds"), of(vmio, "seconds"))).collect()
    }

    /// Of plain and of vmio; nothing of a side where a run does not say it.
    fn medians(&self, value: impl Fn(&Value) -> Option<f64>) -> [Option<f64>; 2] {
        SIDES.map(|side| {
            let values = self.of_side(side).into_iter().map(&value).collect::<Option<Vec<_>>>()?;
            median(values)
        })
    }

    /// What it is.
    fn what(&self) -> Vec<String> {
        let told = self.runs.iter().find_map(|run| run["what"].as_str()).unwrap_or(DASH);
        let first = self.runs.first().unwrap_or(&Value::Null);
        vec![self.name.clone(), told.to_owned(), first["data_mib"].to_string(), first["cache_mib"].to_string()]
    }

    fn seconds_or_failed(&self, side: &str) -> String {
        let ran = self.of_side(side);
        if ran.iter().any(|run| !run["failure"].is_null()) {
            return "failed".to_owned();
        }
        number(median(ran.iter().filter_map(|run| of(run, "seconds"))))
    }
}

fn programs_table(programs: &[&Program]) -> String {
    let head = [
        "program",
        "what it does",
        "data MiB",
        "cache MiB",
        "plain s",
        "vmio s",
        "plain ÷ vmio",
        "rounds",
        "start and end, plain s",
        "vmio s",
        "peak MiB, plain",
        "vmio",
        "read MiB, plain",
        "vmio",
    ];
    let row = |program: &&Program| {
        let mut row = program.what();
        if program.problem().is_some() {
            row.extend(SIDES.map(|side| program.seconds_or_failed(side)));
            row.extend(std::iter::repeat_n(DASH.to_owned(), 8));
            return row;
        }
        let [plain, vmio] = program.medians(|run| of(run, "seconds"));
        let by_round = program.ratios();
        let (lowest, highest) = (least(by_round.iter().copied()), most(by_round));
        row.extend([
            number(plain),
            number(vmio),
            format!("**{}**", times(ratio(plain, vmio))),
            format!("{} to {}", times(lowest), times(highest)),
        ]);
        row.extend(program.medians(|run| Some(of(run, "whole_seconds")? - of(run, "seconds")?)).map(number));
        row.extend(program.medians(|run| of(run, "peak_bytes")).map(mib));
        row.extend(program.medians(|run| of(run, "read_bytes")).map(mib));
        row
    };
    table(&head, &programs.iter().map(row).collect::<Vec<_>>(), &[0, 1])
}

/// What the runs of a device have in common, in words.
fn settings(programs: &[&Program]) -> String {
    let runs: Runs = programs.iter().flat_map(|program| program.runs()).collect();
    let each = |key: &str| {
        let mut values: Vec<_> = distinct(&runs, key).into_iter().filter(|value| !value.is_null()).collect();
        values.sort_by(|a, b| match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => a.as_str().cmp(&b.as_str()),
        });
        values
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let reports = runs.iter().filter_map(|run| run["vmio"].as_array()).flatten();
    let mut engines: Vec<_> = reports.map(|report| text(report, "engine")).collect();
    engines.sort_unstable();
    engines.dedup();
    let or_dash = |text: String| if text.is_empty() { DASH.to_owned() } else { text };
    let rounds = runs.iter().map(|run| count(run, "round")).max().unwrap_or_default();
    format!(
        "{}; {} MiB of memory, rounds: {rounds}, read-ahead of the device {} KiB, engine {}.",
        each("date"),
        each("memory_mib"),
        or_dash(each("read_ahead_kib")),
        or_dash(engines.join(", "))
    )
}

/// Those that measured, each once.
fn commands(found: &[Program]) -> Vec<String> {
    let mut commands = Vec::new();
    for run in found.iter().flat_map(|program| &program.runs) {
        let command = text(run, "command");
        if !commands.iter().any(|known| known == command) {
            commands.push(command.to_owned());
        }
    }
    commands
}

/// Tells in short of the run on standard input.
pub fn tell() -> Result<()> {
    let run: Value = serde_json::from_reader(io::stdin()).context("there is no run on standard input")?;
    let how = run["failure"].as_str().map(str::to_owned).unwrap_or_else(|| {
        let checksum = run["checksum"].as_str().map_or_else(|| run["checksum"].to_string(), str::to_owned);
        format!("{} s, checksum {checksum}", number(of(&run, "seconds")))
    });
    let (peak, read) = (mib(of(&run, "peak_bytes")), mib(of(&run, "read_bytes")));
    print_line(format!("    {:5}  {how}; peak {peak} MiB, read {read} MiB", text(&run, "side")))
}
