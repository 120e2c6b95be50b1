//! docs/benchmarks/kv.md, from what `vmio-bench kv --json` wrote: a file is named DEVICE_SET.json, and has a run for each phase of each
//! engine, of one set of records and memory, or for each scenario; DEVICE_SET.command has the command that wrote it. What stands in the
//! page from a heading on is written by hand, and kept.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::part::{commands_section, machine_table, table};
use super::runs::{self, Runs, count, distinct, name_in, note, of, place_in, says, select, text};
use super::write_page;
use crate::figure::{DASH, MIB, mib, number, ratio, times, whole};

const DEVICES: [(&str, &str); 2] = [("zram", "Fast device (ext4 on zram)"), ("disk", "Disk")];
const PHASES: [(&str, &str); 13] = [
    ("L", "Load: each record is put once"),
    ("A", "A: 50 % reads, 50 % updates"),
    ("B", "B: 95 % reads, 5 % updates"),
    ("C", "C: reads"),
    ("D", "D: 95 % reads of the latest, 5 % inserts"),
    ("E", "E: 95 % scans of 1 to 100 records, 5 % inserts"),
    ("F", "F: 50 % reads, 50 % reads with an update"),
    ("G", "G: scans of 1 to 100 records"),
    ("U", "U: updates alone"),
    ("delete", "deletes of the lower half of all keys, one by one"),
    ("seek", "seeks to the first key, where that half was"),
    ("queue", "puts behind all records, each with a look for the first and its deletion"),
    ("mass-delete", "deletes of the first half of all keys, a seek to the first that is left after each hundredth"),
];
const SCENARIOS: [(&str, &str); 7] = [
    ("prefixes", "Keys that share their first 64 bytes"),
    ("deletes", "Deletes, then seeks"),
    ("queue", "A queue, one thread"),
    ("mass-delete", "Deletes in the order of the keys, and seeks between, one thread"),
    ("keyspaces", "300 keyspaces: tables of redb, keyspaces of fjall, column families of RocksDB, databases of LMDB"),
    ("reopen", "Opening after a clean close"),
    ("recovery", "Opening after kill -9 during a load"),
];
const VMIO: &str = "vmio";
/// From here on the page is written by hand.
const PROFILE: &str = "## What the profile says";

const INTRO: &str = "\
# `vmio-bench kv`: vmio-kv beside other key-value stores

Written by `make bench-kv` down to the heading \"What the profile says\". Figures compare only within one table. [How it is
measured](kv-method.md), at length.

**The work** is YCSB's. Keys have 24 bytes, `user` and a hash; values cannot be compressed, and every byte that is read is looked
at and belongs to a record whose presence and value are checked. Phases run one after the other on the same store, each in a
process of its own within a memory cgroup, page cache included, and on a cold page cache; a quarter as many operations again
warm it up. Zipf's exponent is 0.99; popular records are neither neighbours by key nor in the order of their writing.

**Writes** are durable within a second for all engines, unless a command says otherwise: the benchmark syncs each second. A phase
with writes has ended when all is in its place on the device (memtables written, the rest synced) and nothing is
left to be done in the background; that time counts. *Read* and *written* are by the block device's counters, file system
included; *w. amp.* are bytes written for each byte of keys and values put. *Space* is what the files take, closed. CPU time is the
process's: what the kernel's own threads write back for LMDB is not in it.

**p99.99e** is the latency that one operation in 10,000 exceeds without the time that its thread waited for a processor: by
`schedstat`, for operations of 20 µs and more. That is time in which the thread could run and others did, those of its own engine
included. What it slept on locks and for I/O is left in: it is what the engine's stalls take.

**R** is how random the requests to the device are, reads and writes together: the distance of each from the end of the one
before, and its length, by the length, by the device's. It is near 0 for requests that follow each other and a third for pages at
random. Requests are as the file system makes them, before any are merged; *KiB a read* and *KiB a write* are averages after that.

A phase marked † was stopped by its time limit: its figures are of the operations done by then.

| engine | how it is set |
|---|---|
| vmio | the memory less a tenth, and less 16 MiB at least, `Durability::None` with `Db::sync` each second |
| LMDB | a transaction a write; `MDB_WRITEMAP`, `MDB_NOSYNC` and `mdb_env_sync` each second; no read-ahead where data are larger than half the memory. A power cut may damage the file |
| redb | a transaction a write with `Durability::None`, a durable one each second; a cache of a quarter of the memory. It needs more than 64 MiB: with less it is killed where records are updated |
| fjall | journal in the page cache, `persist` each second; a cache of a third of the memory, a memtable of an eighth; no compression |
| RocksDB | two write buffers of an eighth of the memory each, a block cache of a third with filters (10 bits) and indexes, dynamic levels, no compression, two arenas of the allocator; log in the page cache, `FlushWAL(sync)` each second. The same with LZ4; and as it comes |";

/// Render docs/benchmarks/kv.md
#[derive(Args)]
pub struct KvPage {
    /// DEVICE_SET.json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Path in the commands that the page shows as DIR
    #[arg(long, value_name = "DIR")]
    hide: Option<String>,
    /// Page to write
    #[arg(long, default_value = "docs/benchmarks/kv.md")]
    out: PathBuf,
}

impl KvPage {
    /// Writes it.
    pub fn render(&self) -> Result<()> {
        let all = self.read()?;
        let runs: Runs = all.iter().collect();
        let wrong: u64 = runs.iter().map(|run| count(run, "errors")).sum();
        let mut parts = vec![
            INTRO.to_owned(),
            machine_table(&[("command", "`make bench-kv`, which runs the commands at the end of the tables")])?,
            format!("Records that were missing or wrong, over all runs: {wrong}."),
            "## Beside what is wanted".to_owned(),
            "The aims are set for 512 MiB of memory and up to 50 million records.".to_owned(),
        ];
        let sets = sets(&runs);
        for set in &sets {
            parts.push(format!("{}:", set.title));
            parts.push(table(&["what", "wanted", "measured", "verdict"], &set.verdicts(), &[0, 3]));
        }
        sets.iter().for_each(|set| set.sections(&mut parts));
        scenario_sections(&runs, &mut parts);
        let failed = runs.iter().filter(|run| !run["failure"].is_null());
        let failed: Vec<_> = failed.map(|run| format!("- {}: {}", text(run, "set"), text(run, "failure"))).collect();
        if !failed.is_empty() {
            parts.push("## What was not done".to_owned());
            parts.push(failed.join("\n"));
        }
        parts.push(commands_section(&self.commands()?, self.hide.as_deref()));
        let before = fs::read_to_string(&self.out).unwrap_or_default();
        let by_hand = before.find(PROFILE).map_or_else(String::new, |at| format!("\n{}", &before[at..]));
        write_page(&self.out, &parts, &by_hand)
    }

    /// Every run, with its device and its set, in the order of the page.
    fn read(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for path in &self.files {
            let set = runs::stem(path);
            let device = set.split('_').next().unwrap_or_default();
            ensure!(place_in(&DEVICES, device) < DEVICES.len(), "{} begins with no device", path.display());
            let mut of_file = runs::read(path)?;
            for run in &mut of_file {
                note(run, "device", device);
                note(run, "set", set);
                // Results of earlier versions have this name.
                if run["scenario"] == "regions" {
                    note(run, "scenario", "keyspaces");
                }
            }
            all.append(&mut of_file);
        }
        let place = |run: &Value| {
            let (device, set) = (place_in(&DEVICES, text(run, "device")), text(run, "set").to_owned());
            (device, set, place_in(&PHASES, text(run, "phase")))
        };
        all.sort_by_cached_key(place);
        Ok(all)
    }

    fn commands(&self) -> Result<Vec<String>> {
        let read = |path: &PathBuf| {
            let path = path.with_extension("command");
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.trim().to_owned())
        };
        self.files.iter().map(read).collect()
    }
}

/// The runs of YCSB's phases of one set, and what they have in common.
struct Set<'a> {
    runs: Runs<'a>,
    /// Of keys and values.
    data_bytes: u64,
    title: String,
}

fn sets<'a>(runs: &Runs<'a>) -> Vec<Set<'a>> {
    let mut sets = Vec::new();
    for name in distinct(runs, "set") {
        let of_set = measured(runs, &[("set", name), ("scenario", Value::Null)]);
        let Some(&first) = of_set.first() else { continue };
        let loads = measured(&of_set, &[("phase", json!("L"))]);
        let counted = if loads.is_empty() { &of_set } else { &loads };
        let loaded = counted.iter().map(|run| count(run, "records")).max().unwrap_or_default();
        let (key_bytes, value_bytes) = (count(first, "key_bytes"), count(first, "value_bytes"));
        let shape = format!("{} records of {key_bytes} + {value_bytes} bytes", whole(loaded));
        let device = name_in(&DEVICES, text(first, "device"));
        let title = format!("{device}: {shape}, {} MiB of memory", count(first, "memory_bytes") >> 20);
        sets.push(Set { runs: of_set, data_bytes: loaded * (key_bytes + value_bytes), title });
    }
    sets
}

fn measured<'a>(runs: &[&'a Value], said: &[(&str, Value)]) -> Runs<'a> {
    runs.iter().copied().filter(|run| !run["kops"].is_null() && says(run, said)).collect()
}

/// Bytes of keys and values that the phase puts, about.
fn put_bytes(run: &Value) -> f64 {
    let puts = match text(run, "phase") {
        "L" => 1.0,
        "A" | "F" => 0.5,
        "B" | "D" | "E" => 0.05,
        _ => 0.0,
    };
    let record_bytes = count(run, "prefix_bytes") + count(run, "key_bytes") + count(run, "value_bytes");
    puts * count(run, "ops") as f64 * record_bytes as f64
}

fn runs_table(runs: &[&Value]) -> String {
    let ours = runs.iter().find(|run| text(run, "engine") == VMIO).and_then(|run| of(run, "kops"));
    let head = [
        "engine",
        "kops/s",
        "vmio is",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "p99.99 µs",
        "p99.99e µs",
        "max ms",
        "CPU s/Mop",
        "read MiB",
        "KiB a read",
        "written MiB",
        "KiB a write",
        "w. amp.",
        "R",
        "space MiB",
        "RSS MiB",
    ];
    let row = |run: &&Value| {
        let engine = text(run, "engine");
        let kib = |key: &str| number(ratio(of(run, key), 1024.0));
        let vmio_is = ratio(ours, of(run, "kops")).filter(|_| engine != VMIO);
        let mut row = vec![
            format!("{engine}{}", if run["stopped"] == true { " †" } else { "" }),
            number(of(run, "kops")),
            vmio_is.map_or_else(String::new, |ratio| format!("{}×", times(ratio))),
        ];
        let quantiles = ["p50_us", "p99_us", "p999_us", "p9999_us", "p9999_engine_us"];
        row.extend(quantiles.map(|key| number(of(run, key))));
        row.extend([
            number(ratio(of(run, "max_us"), 1e3)),
            number(of(run, "cpu_s_per_mop")),
            mib(of(run, "dev_read_bytes")),
            kib("read_request_bytes"),
            mib(of(run, "dev_write_bytes")),
            kib("write_request_bytes"),
            number(ratio(of(run, "dev_write_bytes"), put_bytes(run))),
            of(run, "randomness").map_or_else(|| DASH.to_owned(), |randomness| format!("{randomness:.4}")),
            mib(of(run, "space_bytes")),
            mib(of(run, "max_rss_bytes")),
        ]);
        row
    };
    table(&head, &runs.iter().map(row).collect::<Vec<_>>(), &[0])
}

fn reopen_table(runs: &[&Value]) -> String {
    let head = [
        "engine",
        "records put",
        "memtables",
        "open ms",
        "first read µs",
        "replayed",
        "MiB of log",
        "lost",
        "read MiB",
        "space MiB",
    ];
    let row = |run: &&Value| {
        vec![
            text(run, "engine").to_owned(),
            whole(count(run, "records")),
            of(run, "memory_fill").map_or_else(String::new, |fill| format!("{:.0} % full", 100.0 * fill)),
            number(of(run, "open_s").map(|seconds| seconds * 1e3)),
            number(of(run, "first_read_us")),
            run["replayed_records"].as_u64().map_or_else(String::new, whole),
            mib(of(run, "replayed_log_bytes")),
            whole(count(run, "lost_records")),
            mib(of(run, "dev_read_bytes")),
            mib(of(run, "space_bytes")),
        ]
    };
    table(&head, &runs.iter().map(row).collect::<Vec<_>>(), &[0])
}

/// A phase's name with what is said of it, and its table.
fn phase_sections(runs: &Runs, is_distribution_said: bool, parts: &mut Vec<String>) {
    for phase in distinct(&measured(runs, &[]), "phase") {
        let of_phase = measured(runs, &[("phase", phase.clone())]);
        let Some(first) = of_phase.first() else { continue };
        let name = name_in(&PHASES, phase.as_str().unwrap_or_default());
        let ops = whole(count(first, "ops"));
        let distribution =
            if is_distribution_said { format!(" {},", text(first, "distribution")) } else { String::new() };
        parts.push(format!("**{name}**;{distribution} {ops} operations"));
        parts.push(runs_table(&of_phase));
    }
}

/// The scenarios, each with its phases or its table of opening.
fn scenario_sections(runs: &Runs, parts: &mut Vec<String>) {
    for (name, title) in SCENARIOS {
        let of_scenario = select(runs, &[("scenario", json!(name)), ("failure", Value::Null)]);
        for set in distinct(&of_scenario, "set") {
            let here = select(&of_scenario, &[("set", set)]);
            let Some(first) = here.first() else { continue };
            parts.push(format!("## {title}"));
            parts.push(format!(
                "{}; {} records of {} + {} bytes at most, {} MiB of memory, {} threads.",
                name_in(&DEVICES, text(first, "device")),
                whole(count(first, "records")),
                first["key_bytes"],
                first["value_bytes"],
                count(first, "memory_bytes") >> 20,
                first["threads"]
            ));
            phase_sections(&here, false, parts);
            let opened: Runs = here.into_iter().filter(|run| !run["open_s"].is_null()).collect();
            if !opened.is_empty() {
                parts.push(reopen_table(&opened));
            }
        }
    }
}

/// A row of what is wanted.
fn verdict(what: impl Into<String>, value: f64, bound: f64, at_most: bool) -> Vec<String> {
    let holds = if at_most { value <= bound } else { value >= bound };
    let verdict = if holds { "met" } else { "**missed**" };
    vec![what.into(), format!("{} {bound}", if at_most { "≤" } else { "≥" }), times(value), verdict.to_owned()]
}

impl<'a> Set<'a> {
    /// An engine's run of a phase, the last one.
    fn run(&self, engine: &str, phase: &str) -> Option<&'a Value> {
        measured(&self.runs, &[("engine", json!(engine)), ("phase", json!(phase))]).last().copied()
    }

    fn sections(&self, parts: &mut Vec<String>) {
        parts.push(format!("## {}", self.title));
        let threads = self.runs.first().map_or(&Value::Null, |run| &run["threads"]);
        let data_mib = self.data_bytes as f64 / MIB;
        parts.push(format!("{data_mib:.0} MiB of keys and values, {threads} threads."));
        phase_sections(&self.runs, true, parts);
    }

    /// What is wanted of vmio beside the others.
    fn verdicts(&self) -> Vec<Vec<String>> {
        let Some(first) = self.runs.first() else { return Vec::new() };
        let is_in_memory = 3 * self.data_bytes <= count(first, "memory_bytes");
        let beside = |ours: &Value, other: &Value, key: &str| ratio(of(ours, key), of(other, key));
        let mut rows = Vec::new();
        for (phase, wanted) in [("L", 1.5), ("A", 1.3)] {
            let others = measured(&self.runs, &[("phase", json!(phase))]).into_iter();
            let others =
                others.filter(|run| text(run, "engine") != VMIO).filter_map(|run| Some((of(run, "kops")?, run)));
            let best = others.reduce(|best, other| if other.0 > best.0 { other } else { best });
            let ours = self.run(VMIO, phase).filter(|_| !is_in_memory);
            if let Some((ours, (kops, best))) = ours.zip(best)
                && let Some(value) = ratio(of(ours, "kops"), kops)
            {
                rows.push(verdict(
                    format!("{phase}, × the best other ({})", text(best, "engine")),
                    value,
                    wanted,
                    false,
                ));
            }
        }
        let load = self.run(VMIO, "L");
        if let Some((load, rocksdb)) = load.zip(self.run("rocksdb", "L")).filter(|_| !is_in_memory)
            && let Some(amplification) =
                ratio(of(load, "dev_write_bytes"), put_bytes(load)).filter(|ratio| *ratio > 0.0)
            && let Some(cpu) = beside(load, rocksdb, "cpu_s_per_mop")
        {
            rows.push(verdict("Load, CPU beside RocksDB's", cpu, 0.333, true));
            rows.push(verdict("Load, bytes written for each byte put", amplification, 2.0, true));
        }
        if let Some(of_engine_us) = load.and_then(|load| of(load, "p9999_engine_us")) {
            let what = "Load, p99.99 without waits for a processor, ms";
            rows.push(verdict(what, of_engine_us / 1e3, 1.0, true));
        }
        let beyond = if count(first, "value_bytes") >= 1000 { 1.2 } else { 1.0 };
        let (lmdb, rocksdb) = if is_in_memory { (0.6, 3.0) } else { (beyond, 1.0) };
        for (other, name, wanted) in [("lmdb", "LMDB", lmdb), ("rocksdb", "RocksDB", rocksdb)] {
            if let Some((reads, others)) = self.run(VMIO, "C").zip(self.run(other, "C"))
                && let Some(value) = beside(reads, others, "kops")
            {
                rows.push(verdict(format!("C, × {name}"), value, wanted, false));
            }
        }
        rows
    }
}
