//! docs/benchmarks/busy.md, from what `vmio-bench map --json` wrote: a file is named MACHINE.ROUND.json, and has a run for each engine at
//! each operation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::part::{Wanted, commands_section, machine_table, read_commands, table, target, targets_table};
use super::runs::{self, Runs, count, distinct, name_in, note, of, select};
use super::write_page;
use crate::figure::{least, median, most, number, ratio, times};

const MACHINES: [(&str, &str); 3] = [
    ("quiet", "Quiet"),
    ("low", "A busy thread a core, at low priority (nice 19)"),
    ("usual", "A busy thread a core, at the usual priority"),
];
const OPERATIONS: [(&str, &str); 2] = [("read", "loads"), ("write", "stores")];
const PEER: &str = "mmap";

const INTRO: &str = "\
# Loads and stores on a busy machine

Written by `make bench-busy`; not edited by hand. `vmio-bench map`, uniform accesses to a file four times the cache, while threads that never
wait keep all cores busy. Linux mmap has the same memory, by a cgroup. Figures are medians of the rounds; \"× mmap\" is the ratio to Linux mmap
in the same round, and the range beside it has the smallest and the largest: above 1 is better for throughput, below 1 for latency.";

/// Render docs/benchmarks/busy.md
#[derive(Args)]
pub struct BusyPage {
    /// Where the files are, MACHINE.ROUND.json
    folder: PathBuf,
    /// File with the commands that were run, one a line
    #[arg(long)]
    commands: Option<PathBuf>,
    /// Page to write
    #[arg(long)]
    out: PathBuf,
}

impl BusyPage {
    /// Writes it; fails where words were wrong.
    pub fn render(&self) -> Result<()> {
        let all = read(&self.folder)?;
        let runs: Runs = all.iter().collect();
        let first = *runs.first().with_context(|| format!("{} has no runs", self.folder.display()))?;
        let (size, cache) = (count(first, "size_bytes") >> 20, count(first, "cache_bytes") >> 20);
        let sizes = format!("{size} MiB, {cache} MiB; {} threads", first["threads"]);
        let facts =
            [("file, cache", sizes.as_str()), ("rounds", &rounds(&runs).to_string()), ("command", "`make bench-busy`")];
        let mut parts = vec![
            INTRO.to_owned(),
            machine_table(&facts)?,
            format!("## Targets\n\n{}", targets_table(&verdicts(&runs))),
        ];
        for (name, _) in MACHINES {
            if !select(&runs, &[("machine", json!(name))]).is_empty() {
                parts.push(section(name, &runs));
            }
        }
        parts.push(commands_section(&read_commands(self.commands.as_deref())?, None));
        write_page(&self.out, &parts, "")?;
        match runs.iter().map(|run| count(run, "verify_errors")).sum::<u64>() {
            0 => Ok(()),
            wrong => bail!("{wrong} words were not what they should be"),
        }
    }
}

/// All rounds, each with its machine.
fn read(folder: &Path) -> Result<Vec<Value>> {
    let listed = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = listed.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let mut of_file = runs::read(&path)?;
        let machine = runs::stem(&path).split('.').next().unwrap_or_default();
        of_file.iter_mut().for_each(|run| note(run, "machine", machine));
        all.append(&mut of_file);
    }
    Ok(all)
}

/// How often an engine was measured at most.
fn rounds(runs: &Runs) -> usize {
    let same = |run: &Value| ["machine", "op", "engine"].map(|key| (key, run[key].clone()));
    runs.iter().map(|run| select(runs, &same(run)).len()).max().unwrap_or_default()
}

/// The runs of an engine on a machine at an operation, by round.
fn of_engine<'a>(runs: &Runs<'a>, machine: &str, operation: &str, engine: &str) -> Runs<'a> {
    select(runs, &[("machine", json!(machine)), ("op", json!(operation)), ("engine", json!(engine))])
}

/// Of each round, to that of Linux mmap.
fn ratios(own: &Runs, peer: &Runs, key: &str) -> Vec<f64> {
    own.iter().zip(peer).filter_map(|(own, peer)| ratio(of(own, key), of(peer, key))).collect()
}

fn shown(values: &[f64]) -> String {
    let of = |value: Option<f64>| times(value);
    if values.is_empty() {
        return of(None);
    }
    let all = || values.iter().copied();
    format!("{} ({} to {})", of(median(all())), of(least(all())), of(most(all())))
}

fn section(machine: &str, runs: &Runs) -> String {
    let mut rows = Vec::new();
    for (operation, title) in OPERATIONS {
        let here = select(runs, &[("machine", json!(machine)), ("op", json!(operation))]);
        let peer = of_engine(runs, machine, operation, PEER);
        for engine in distinct(&here, "engine") {
            let engine = engine.as_str().unwrap_or_default();
            let own = of_engine(runs, machine, operation, engine);
            let middle = |key: &str| number(median(own.iter().filter_map(|run| of(run, key))));
            let beside = |key: &str| if engine == PEER { "1".to_owned() } else { shown(&ratios(&own, &peer, key)) };
            rows.push(vec![
                title.to_owned(),
                engine.to_owned(),
                middle("ops_per_s"),
                beside("ops_per_s"),
                middle("p50_us"),
                middle("p999_us"),
                beside("p999_us"),
                own.iter().map(|run| count(run, "verify_errors")).sum::<u64>().to_string(),
            ]);
        }
    }
    let head = ["operation", "engine", "a second", "× mmap", "p50 µs", "p99.9 µs", "× mmap", "wrong words"];
    format!("## {}\n\n{}", name_in(&MACHINES, machine), table(&head, &rows, &[0, 1]))
}

fn verdicts(runs: &Runs) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for machine in ["low", "usual"] {
        let title = name_in(&MACHINES, machine);
        let beside = |operation: &str, key: &str| {
            let (own, peer) = (of_engine(runs, machine, operation, "vmio"), of_engine(runs, machine, operation, PEER));
            median(ratios(&own, &peer, key))
        };
        if let Some(throughput) = beside("write", "ops_per_s") {
            rows.push(target(format!("{title}: stores × mmap"), Some(throughput), Wanted::AtLeast(1.2)));
            let what = format!("{title}: p99.9 of stores × mmap");
            rows.push(target(what, beside("write", "p999_us"), Wanted::AtMost(1.0)));
        }
        if let Some(tail) = beside("read", "p999_us") {
            rows.push(target(format!("{title}: p99.9 of loads × mmap"), Some(tail), Wanted::AtMost(1.0)));
        }
    }
    rows
}
