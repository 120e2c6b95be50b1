//! docs/benchmarks/map.md, from what `vmio-bench … --json` wrote: a file is named DEVICE_BENCH[_…].json, and has runs. What an engine cannot
//! know is null, and shows as a dash.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use vmio_report::size::parse_size;

use super::part::{Wanted, commands_section, machine_table, read_commands, table, target, target_shown, targets_table};
use super::runs::{self, Runs, count, distinct, name_in, note, of, select, text};
use super::{Common, write_page};
use crate::figure::{DASH, least, mib, most, number, plural, ratio, times, whole};
use crate::targets;

const DEVICES: [(&str, &str); 3] = [
    ("zram", "Fast device (zram)"),
    ("zram-kinds", "Fast device (zram), kinds of engines and frames"),
    ("disk", "Disk"),
];
/// The order of the page: what is not named comes last.
const ORDER: [&str; 10] =
    ["zram", "zram-kinds", "disk", "uniform", "zipf:0.99", "seq", "read", "write", "mixed:95", "mixed:50"];
const BASELINE: &str = "mmap";

const COLUMNS: [&str; 17] = [
    "engine",
    "threads",
    "kops/s",
    "× mmap",
    "mean µs",
    "p50 µs",
    "p99 µs",
    "p99 × mmap",
    "p99.9 µs",
    "p99.9 × mmap",
    "max µs",
    "read MB",
    "written MB",
    "CPU s/Mop",
    "max RSS MiB",
    "shootdowns",
    "errors",
];

const INTRO: &str = "\
# `vmio-bench map` beside Linux mmap and pread

Written by `make bench-map`; not edited by hand. Figures compare only within one page: each engine has the same file,
the same memory and the same machine, one after the other, with the page cache dropped between runs. \"× mmap\" is the
figure divided by that of Linux mmap in the same run: above 1 is better for throughput, below 1 for latency.
`pread` reads and writes with O_DIRECT and keeps no cache. A dash stands where an engine cannot know the figure.";

/// Render docs/benchmarks/map.md
#[derive(Args)]
pub struct MapPage {
    /// DEVICE_BENCH[_…].json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Size of the file
    #[arg(long, default_value = "2G")]
    size: String,
    /// Cache of each engine
    #[arg(long, default_value = "512M")]
    cache: String,
    #[command(flatten)]
    common: Common,
    /// Page to write
    #[arg(long, default_value = "docs/benchmarks/map.md")]
    out: PathBuf,
}

impl MapPage {
    /// Writes it.
    pub fn render(&self) -> Result<()> {
        let all = self.read()?;
        let runs: Runs = all.iter().collect();
        let Ok(cache_bytes) = parse_size(&self.cache) else { bail!("--cache {} is no size", self.cache) };
        let sizes = format!("{}, {}", self.size, self.cache);
        let command = "`make bench-map`, which runs the commands at the end of the page";
        let wrong: u64 = runs.iter().map(|run| count(run, "verify_errors")).sum();
        let mut parts = vec![
            INTRO.to_owned(),
            machine_table(&[("file, cache", &sizes), ("command", command)])?,
            format!("Words that an engine read and that were wrong, over all runs: {wrong}."),
            "## Targets".to_owned(),
            targets_table(&target_rows(&runs, cache_bytes)),
        ];
        if let Some(misses) = miss_table(&runs) {
            parts.push("## A mean miss on the fast device, in µs".to_owned());
            parts.push(misses);
        }
        parts.extend(sections(&runs));
        parts.push(commands_section(&read_commands(self.common.commands.as_deref())?, self.common.hide.as_deref()));
        write_page(&self.out, &parts, "")
    }

    /// Every run of every file, with its device and its benchmark.
    fn read(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for path in &self.files {
            let mut names = runs::stem(path).split('_');
            let (device, bench) = (names.next().unwrap_or_default(), names.next());
            let bench = bench.with_context(|| format!("{} is not named DEVICE_BENCH.json", path.display()))?;
            let mut of_file = runs::read(path)?;
            for run in &mut of_file {
                note(run, "device", device);
                note(run, "bench", bench);
            }
            all.append(&mut of_file);
        }
        Ok(all)
    }
}

/// The different values of a key, in the order of the page.
fn ordered(runs: &Runs, key: &str) -> Vec<Value> {
    let mut values = distinct(runs, key);
    values.sort_by_key(|value| ORDER.iter().position(|known| value == known).unwrap_or(ORDER.len()));
    values
}

fn run_row(run: &Value, base: &Value) -> Vec<String> {
    let beside = |key: &str| times(ratio(of(run, key), of(base, key)));
    let figure = |key: &str| number(of(run, key));
    let counted = |key: &str| run[key].as_u64().map_or_else(|| DASH.to_owned(), whole);
    vec![
        text(run, "engine").to_owned(),
        counted("threads"),
        number(ratio(of(run, "ops_per_s"), 1e3)),
        beside("ops_per_s"),
        figure("mean_us"),
        figure("p50_us"),
        figure("p99_us"),
        beside("p99_us"),
        figure("p999_us"),
        beside("p999_us"),
        figure("max_us"),
        number(ratio(of(run, "read_bytes"), 1e6)),
        number(ratio(of(run, "write_bytes"), 1e6)),
        figure("cpu_s_per_mop"),
        mib(of(run, "max_rss_bytes")),
        counted("shootdowns"),
        counted("verify_errors"),
    ]
}

/// One table; runs are sorted by threads, engines keep their order.
fn runs_table(runs: &Runs) -> String {
    let mut sorted = runs.clone();
    sorted.sort_by_key(|run| count(run, "threads"));
    let row = |run: &&Value| {
        let base = select(runs, &[("threads", run["threads"].clone()), ("engine", json!(BASELINE))]);
        run_row(run, base.first().copied().unwrap_or(&Value::Null))
    };
    table(&COLUMNS, &sorted.iter().map(row).collect::<Vec<_>>(), &[0])
}

/// The table of a scenario of its own: a column for each name and figure that its runs have.
fn figures_table(runs: &Runs) -> String {
    let is_shown =
        |key: &str, value: &Value| !["device", "bench"].contains(&key) && (value.is_number() || value.is_string());
    let mut columns: Vec<&str> = Vec::new();
    for (key, value) in runs.iter().filter_map(|run| run.as_object()).flatten() {
        if is_shown(key, value) && !columns.contains(&key.as_str()) {
            columns.push(key);
        }
    }
    // What a row is about comes first: the names, then the figures.
    columns.sort_by_key(|key| runs.iter().all(|run| !run[*key].is_string()));
    let cell = |run: &Value, key: &str| run[key].as_str().map_or_else(|| number(of(run, key)), str::to_owned);
    let rows: Vec<_> = runs.iter().map(|run| columns.iter().map(|key| cell(run, key)).collect()).collect();
    let heads: Vec<String> = columns.iter().map(|key| key.replace('_', " ")).collect();
    table(&heads.iter().map(String::as_str).collect::<Vec<_>>(), &rows, &[0])
}

fn sections(runs: &Runs) -> Vec<String> {
    let mut parts = Vec::new();
    for device in ordered(runs, "device") {
        let title = name_in(&DEVICES, device.as_str().unwrap_or_default());
        let here = select(runs, &[("device", device.clone())]);
        let maps = select(&here, &[("bench", json!("map"))]);
        for pattern in ordered(&maps, "pattern") {
            let of_pattern = select(&maps, &[("pattern", pattern.clone())]);
            for op in ordered(&of_pattern, "op") {
                let (pattern, name) = (pattern.as_str().unwrap_or_default(), op.as_str().unwrap_or_default());
                parts.push(format!("## {title}: {pattern}, {name}"));
                parts.push(runs_table(&select(&of_pattern, &[("op", op.clone())])));
            }
        }
        for bench in ordered(&here, "bench").into_iter().filter(|bench| bench != "map") {
            parts.push(format!("## {title}: `vmio-bench {}`", bench.as_str().unwrap_or_default()));
            parts.push(figures_table(&select(&here, &[("bench", bench)])));
        }
    }
    parts
}

const MISS_PARTS: [&str; 5] = ["trap_us", "cache_us", "io_us", "install_us", "other_us"];

/// Where the time of a mean miss goes, for the runs that timed its parts; nothing if none did.
fn miss_table(runs: &Runs) -> Option<String> {
    let head = ["pattern, op", "threads", "trap", "cache", "I/O", "install", "other", "miss", "hit"];
    let ours = select(runs, &[("device", json!("zram")), ("bench", json!("map")), ("engine", json!("vmio"))]);
    let timed = ours.into_iter().filter(|run| run["stats"]["miss_parts"].is_object());
    let row = |run: &Value| {
        let (stats, parts) = (&run["stats"], &run["stats"]["miss_parts"]);
        let mut row = vec![format!("{}, {}", text(run, "pattern"), text(run, "op")), run["threads"].to_string()];
        row.extend(MISS_PARTS.map(|part| number(of(parts, part))));
        row.extend(["miss_mean_us", "hit_mean_us"].map(|mean| number(of(stats, mean))));
        row
    };
    let rows: Vec<_> = timed.map(row).collect();
    (!rows.is_empty()).then(|| table(&head, &rows, &[0]))
}

/// Runs of one benchmark on one device, of which figures are compared.
struct Set<'a>(Runs<'a>);

impl<'a> Set<'a> {
    fn of(runs: &Runs<'a>, said: &[(&str, Value)]) -> Self {
        Self(select(runs, said))
    }

    /// A figure of an engine's first run.
    fn figure(&self, engine: &str, key: &str) -> Option<f64> {
        self.0.iter().find(|run| run["engine"] == engine).and_then(|run| of(run, key))
    }

    /// An engine's figure divided by another one's.
    fn beside(&self, engine: &str, base: &str, key: &str) -> Option<f64> {
        ratio(self.figure(engine, key), self.figure(base, key))
    }

    /// An engine's beside Linux mmap's.
    fn against(&self, engine: &str, key: &str) -> Option<f64> {
        self.beside(engine, BASELINE, key)
    }
}

/// Runs of `map`.
fn maps<'a>(runs: &Runs<'a>, device: &str, pattern: &str, op: &str, threads: u32) -> Set<'a> {
    Set::of(
        runs,
        &[
            ("device", json!(device)),
            ("bench", json!("map")),
            ("pattern", json!(pattern)),
            ("op", json!(op)),
            ("threads", json!(threads)),
        ],
    )
}

type Rows = Vec<Vec<String>>;

fn map_targets(rows: &mut Rows, runs: &Runs, op: &str, throughput: [f64; 3], p99: f64, p999: f64) {
    for (threads, throughput) in [1, 2, 8].into_iter().zip(throughput) {
        let set = maps(runs, "zram", "uniform", op, threads);
        let who = format!("uniform {op}, {threads} thread{}", plural(threads.into()));
        let measured = set.against("vmio", "ops_per_s");
        rows.push(target(format!("{who}: throughput × mmap"), measured, Wanted::AtLeast(throughput)));
        rows.push(target(format!("{who}: p99 × mmap"), set.against("vmio", "p99_us"), Wanted::AtMost(p99)));
        if threads <= 2 {
            rows.push(target(format!("{who}: p99.9 × mmap"), set.against("vmio", "p999_us"), Wanted::AtMost(p999)));
        }
    }
}

fn sync_targets(rows: &mut Rows, runs: &Runs) {
    let set = Set::of(runs, &[("device", json!("zram")), ("bench", json!("sync"))]);
    for (engine, what) in [("vmio", "stores during `sync_begin`"), ("vmio-memfd", "the same with `FrameHint::Mixed`")] {
        let alone = set.figure(engine, "p999_us");
        rows.push(target_shown(format!("{what}: p99.9 µs"), alone, Wanted::AtMost(50.0), number));
        let beside = set.against(engine, "p999_us");
        rows.push(target(
            format!("{what}: p99.9 × Linux msync"),
            beside,
            Wanted::AtMost(1.0 / targets::STORES_IN_SYNC_P999),
        ));
    }
}

/// Pages evicted for each TLB shootdown, the worst over the thread counts.
fn shootdown_targets(rows: &mut Rows, runs: &Runs) {
    let ours =
        [("device", json!("zram")), ("bench", json!("map")), ("engine", json!("vmio")), ("pattern", json!("uniform"))];
    for (op, kind, wanted) in [("read", "clean", 64.0), ("write", "dirty", 16.0)] {
        let of_op = select(&select(runs, &ours), &[("op", json!(op))]);
        let a_shootdown = |run: &&Value| {
            let stats = &run["stats"];
            let shootdowns = count(stats, "shootdowns_evict") + count(stats, "shootdowns_write_back");
            ratio(count(stats, &format!("evicted_{kind}")) as f64, shootdowns as f64)
        };
        let what = format!("uniform {op}: {kind} pages evicted for each TLB shootdown");
        let found = least(of_op.iter().filter_map(a_shootdown));
        rows.push(target_shown(what, found, Wanted::AtLeast(wanted), number));
    }
}

/// Frames whose stores the kernel tracks, Linux mmap kept within the budget from outside, and scans.
fn kinds_targets(rows: &mut Rows, runs: &Runs) {
    for (pattern, wanted) in [("uniform", 1.6), ("zipf:0.99", 1.2)] {
        let set = maps(runs, "zram", pattern, "mixed:50", 2);
        for (engine, prefix) in [("vmio", ""), ("vmio-memfd", "`FrameHint::Mixed`, ")] {
            let what = format!("{prefix}{pattern}, half loads half stores, 2 threads: throughput × mmap");
            rows.push(target(what, set.against(engine, "ops_per_s"), Wanted::AtLeast(wanted)));
        }
    }
    let zipf = maps(runs, "zram", "zipf:0.99", "mixed:50", 2);
    // An engine's operations are counted over the same time as its reads.
    let misses = |engine: &str| ratio(zipf.figure(engine, "read_bytes"), zipf.figure(engine, "ops_per_s"));
    let measured = ratio(misses("vmio-memfd"), misses(BASELINE));
    rows.push(target("the same, Zipf: bytes read for an operation × mmap", measured, Wanted::AtMost(1.0)));
    let (kinds, managed) = (maps(runs, "zram-kinds", "uniform", "read", 2), "managed engine, uniform read, 2 threads");
    let measured = kinds.against("vmio-managed", "ops_per_s");
    rows.push(target(format!("{managed}: throughput × mmap"), measured, Wanted::AtLeast(1.0)));
    let measured = kinds.against("vmio-managed", "p999_us");
    rows.push(target(format!("{managed}: p99.9 × mmap"), measured, Wanted::AtMost(0.5)));
    let scan = maps(runs, "zram", "seq", "read", 2);
    let measured = scan.against("vmio", "ops_per_s");
    rows.push(target("scan, 2 threads: throughput × mmap", measured, Wanted::AtLeast(1.1)));
    let measured = scan.against("vmio", "cpu_s_per_mop");
    rows.push(target("scan, 2 threads: CPU time of an operation × mmap", measured, Wanted::AtMost(0.5)));
}

fn target_rows(runs: &Runs, cache_bytes: u64) -> Rows {
    let mut rows = Vec::new();
    let of_bench = |bench: &str| Set::of(runs, &[("device", json!("zram")), ("bench", json!(bench))]);
    let hit = of_bench("hit").0.first().copied().unwrap_or(&Value::Null);
    let measured = ratio(of(hit, "anonymous_ns"), of(hit, "vmio_ns"));
    rows.push(target("hit path: throughput × private anonymous mapping", measured, Wanted::AtLeast(targets::HITS)));
    let (loads, stores) = (targets::UNIFORM_LOADS, targets::UNIFORM_STORES);
    map_targets(&mut rows, runs, "read", [1.05, loads, loads], 1.0 / targets::UNIFORM_LOADS_P99, 1.0 / 2.0);
    map_targets(&mut rows, runs, "write", [1.4, stores, stores], 1.0 / 10.0, 1.0 / 2.0);
    sync_targets(&mut rows, runs);
    let zipf = maps(runs, "zram", "zipf:0.99", "read", 2);
    let measured = zipf.against("vmio", "ops_per_s");
    rows.push(target("Zipf 0.99 read, 2 threads: throughput × mmap", measured, Wanted::AtLeast(1.0)));
    let measured = zipf.beside("vmio", "pread", "ops_per_s");
    rows.push(target("Zipf 0.99 read, 2 threads: throughput × O_DIRECT pread", measured, Wanted::AtLeast(1.05)));
    let misses = of_bench("priority").figure("vmio", "misses");
    let what = "priority-0 range while 2 GiB stream through: misses";
    rows.push(target_shown(what, misses, Wanted::AtMost(0.0), number));
    let read = of_bench("fresh").figure("vmio", "read_bytes");
    let what = "filling a fresh 1 GiB range: bytes read";
    rows.push(target_shown(what, read, Wanted::AtMost(0.0), number));
    shootdown_targets(&mut rows, runs);
    kinds_targets(&mut rows, runs);
    let ours = select(runs, &[("device", json!("zram")), ("bench", json!("map")), ("engine", json!("vmio"))]);
    let sizes = ours.iter().filter_map(|run| of(run, "max_rss_bytes")).filter(|bytes| *bytes > 0.0);
    let measured = ratio(most(sizes), cache_bytes as f64);
    rows.push(target("memory: largest resident set ÷ budget", measured, Wanted::AtMost(1.02)));
    rows
}
