//! docs/benchmarks/commit.md, from what `vmio-bench commit --json` wrote: a file's name begins with its device, DEVICE_….json. What a store
//! does not have is null, and shows as a dash.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::part::{commands_section, machine_table, read_commands, table, targets_table};
use super::runs::{self, Runs, count, distinct, name_in, note, of, place_in, select, text};
use super::{Common, write_page};
use crate::figure::{most, number, plural, ratio, whole};

const DEVICES: [(&str, &str); 2] = [("zram", "Fast device (ext4 on zram)"), ("disk", "Disk")];
const STORES: [(&str, &str); 4] =
    [("vmio", "vmio"), ("mmap", "mmap + msync, **not atomic**"), ("sqlite", "SQLite"), ("lmdb", "LMDB")];
const BLOCKED_US: f64 = 1000.0;

const INTRO: &str = "\
# `vmio-bench commit` beside msync, SQLite and LMDB

Written by `make bench-commit`; not edited by hand. Figures compare only within one page.

**The work.** Every store holds records of 2000 bytes by number, two to a page of 4 KiB. A commit changes 128 bytes of one
record in each of N random pages and returns when they are durable; its time includes making the changes. Everything fits
the memory, was read once, and was changed for a while before. Two records a page is what makes the work the same for all:
LMDB keeps a value in a leaf of its tree only if two fit there, and puts longer ones on pages of their own, so that it
would write two pages for one. SQLite has two such rows in a leaf as well, and mappings have them at every 2048 bytes.

| store | how it commits | after a crash |
|---|---|---|
| vmio | stores to a mapping with `MappingOptions::atomic`, `Mapping::commit` | the last commit |
| mmap + msync | stores to a Linux mapping, one `msync(MS_SYNC)` of all of it | any part of what was stored: **not atomic** |
| SQLite | incremental blob writes by primary key in a transaction; WAL, `synchronous=FULL`, checkpoint each 1000 pages | the last commit |
| LMDB | `get`, change, `put` by integer key in a write transaction; default flags, durable | the last commit |

Files are written in full before: the journal of vmio and the log of SQLite do not grow while they are measured. The Linux
mapping is advised MADV_RANDOM before it is read: what read-ahead brings in large folios msync writes as a whole. With several
threads each changes pages of its own. SQLite and LMDB isolate transactions and have one writer at a time; threads that
commit to vmio share commits, which take what all have stored by then, so an application that wants isolation locks.

**Bytes** are those that the block device wrote by its own counters, file system included, and whatever else writes to that
device. They are counted from a checkpoint to a checkpoint: what a commit leaves to be brought to its place later is counted.
*Written / changed* divides them by the 128 bytes of each change.

**Accesses**: one thread commits the same N pages again and again, another loads from them and a third stores to them, each
every 100 µs. An access that takes longer stands for those, too, that would have begun meanwhile. In SQLite and LMDB a load is
a read transaction, and a store would be one more commit: they have none.

In the end everything is closed and all records are read back from the device.";

/// Render docs/benchmarks/commit.md
#[derive(Args)]
pub struct CommitPage {
    /// DEVICE_….json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// How long each run was measured
    #[arg(long, default_value = "5")]
    seconds: String,
    #[command(flatten)]
    common: Common,
    /// Page to write
    #[arg(long, default_value = "docs/benchmarks/commit.md")]
    out: PathBuf,
}

impl CommitPage {
    /// Writes it.
    pub fn render(&self) -> Result<()> {
        let all = self.read()?;
        let runs: Runs = all.iter().collect();
        let first = *runs.first().context("there are no runs")?;
        let sizes = ["size_bytes", "cache_bytes", "journal_bytes"].map(|key| size(count(first, key))).join(", ");
        let measured = format!("{} s each", self.seconds);
        let wrong: u64 = runs.iter().map(|run| count(run, "verify_errors")).sum();
        let mut parts = vec![
            INTRO.to_owned(),
            machine_table(&[("records, memory, journal", &sizes), ("measured", &measured)])?,
            format!("Records that did not hold what was committed, over all runs: {wrong}."),
            "## Targets".to_owned(),
            targets_table(&targets(&runs)),
        ];
        parts.extend(sections(&runs));
        parts.push(commands_section(&read_commands(self.common.commands.as_deref())?, self.common.hide.as_deref()));
        write_page(&self.out, &parts, "")
    }

    /// Every run of every file, by device.
    fn read(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for path in &self.files {
            let device = runs::stem(path).split('_').next().unwrap_or_default();
            let mut of_file = runs::read(path)?;
            of_file.iter_mut().for_each(|run| note(run, "device", device));
            all.append(&mut of_file);
        }
        all.sort_by_key(|run| place_in(&DEVICES, text(run, "device")));
        Ok(all)
    }
}

/// A number of bytes, as people write it: six digits of it at most.
fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1_u64 << shift) as f64;
            let digits = 5_usize.saturating_sub(value.log10().floor() as usize);
            let text = format!("{value:.digits$}");
            let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
            return format!("{text} {unit}");
        }
    }
    format!("{bytes} B")
}

/// Runs of one device, number of threads and number of pages.
fn commits_table(runs: &[&Value]) -> String {
    let head = [
        "store",
        "commits/s",
        "× vmio",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max ms",
        "CPU µs",
        "KiB written",
        "writes",
        "flushes",
        "written / changed",
    ];
    let ours = runs.iter().find(|run| text(run, "store") == "vmio").and_then(|run| of(run, "commits_per_s"));
    let row = |run: &&Value| {
        let each = |key: &str| ratio(of(&run["device_writes"], key), of(run, "commits"));
        vec![
            name_in(&STORES, text(run, "store")).to_owned(),
            number(of(run, "commits_per_s")),
            number(ratio(of(run, "commits_per_s"), ours)),
            number(of(run, "p50_us")),
            number(of(run, "p99_us")),
            number(of(run, "p999_us")),
            number(ratio(of(run, "max_us"), 1000.0)),
            number(of(run, "cpu_us_per_commit")),
            number(ratio(each("bytes"), 1024.0)),
            number(each("requests")),
            number(each("flushes")),
            number(of(run, "write_amplification")),
        ]
    };
    table(&head, &runs.iter().map(row).collect::<Vec<_>>(), &[0])
}

fn accesses_table(runs: &[&Value]) -> String {
    let head = ["store", "access", "p50 µs", "p99 µs", "p99.9 µs", "max ms", "commits", "commit p50 ms"];
    let mut rows = Vec::new();
    for run in runs {
        for kind in ["loads", "stores"] {
            let waits = &run[kind];
            if waits.is_null() {
                continue;
            }
            let mut row = vec![name_in(&STORES, text(run, "store")).to_owned(), kind.to_owned()];
            row.extend(["p50_us", "p99_us", "p999_us"].map(|key| number(of(waits, key))));
            row.push(number(ratio(of(waits, "max_us"), 1000.0)));
            row.push(whole(count(run, "commits")));
            row.push(number(ratio(of(run, "commit_p50_us"), 1000.0)));
            rows.push(row);
        }
    }
    table(&head, &rows, &[0, 1])
}

fn sections(runs: &Runs) -> Vec<String> {
    let mut parts = Vec::new();
    for device in distinct(runs, "device") {
        let title = name_in(&DEVICES, device.as_str().unwrap_or_default());
        let here = select(runs, &[("device", device.clone())]);
        let commits = select(&here, &[("measure", json!("commits"))]);
        for threads in distinct(&commits, "threads") {
            let of_threads = select(&commits, &[("threads", threads.clone())]);
            parts.push(format!("## {title}: {threads} thread{}", plural(threads.as_u64().unwrap_or_default())));
            for pages in distinct(&commits, "pages") {
                let s = plural(pages.as_u64().unwrap_or_default());
                parts.push(format!("{pages} page{s} a commit; figures without a unit of time are for one commit:"));
                parts.push(commits_table(&select(&of_threads, &[("pages", pages)])));
            }
        }
        let accesses = select(&here, &[("measure", json!("accesses"))]);
        for pages in distinct(&accesses, "pages") {
            parts.push(format!("## {title}: accesses to {pages} pages while they are committed"));
            let of_pages = select(&accesses, &[("pages", pages)]);
            parts.push(accesses_table(&of_pages));
            let ours = select(&of_pages, &[("store", json!("vmio"))]);
            if let Some(held) = most(ours.iter().filter_map(|run| of(run, "stores_held_us_max"))) {
                let held = number(held);
                parts.push(format!(
                    "The longest that a commit of vmio kept all stores waiting, by its own count: {held} µs."
                ));
            }
        }
    }
    parts
}

fn targets(runs: &Runs) -> Vec<Vec<String>> {
    let verdict = |is_met: bool| if is_met { "met" } else { "**missed**" }.to_owned();
    let mut rows = Vec::new();
    for device in distinct(runs, "device") {
        let title = name_in(&DEVICES, device.as_str().unwrap_or_default());
        let here = select(runs, &[("device", device.clone())]);
        let of_one_thread = select(&here, &[("measure", json!("commits")), ("threads", json!(1))]);
        for pages in distinct(&of_one_thread, "pages") {
            let rate = |store: &str| {
                let found = select(&of_one_thread, &[("pages", pages.clone()), ("store", json!(store))]);
                found.last().and_then(|run| of(run, "commits_per_s"))
            };
            if let Some(beside) = ratio(rate("vmio"), rate("lmdb")) {
                let s = plural(pages.as_u64().unwrap_or_default());
                let what = format!("{title}: commits of {pages} page{s} a second, × LMDB");
                rows.push(vec![what, "≥ 1".to_owned(), number(beside), verdict(beside >= 1.0)]);
            }
        }
        for run in select(&here, &[("measure", json!("accesses")), ("store", json!("vmio"))]) {
            for kind in ["loads", "stores"] {
                let waited = of(&run[kind], "p999_us").unwrap_or(f64::INFINITY);
                let what = format!("{title}: {kind} beside commits of {} pages, p99.9 µs", run["pages"]);
                rows.push(vec![what, format!("≤ {BLOCKED_US}"), number(waited), verdict(waited <= BLOCKED_US)]);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_as_people_write_them() {
        let said = [500, 1 << 10, 3 << 19, 256 << 20, (1 << 30) + (1 << 20)].map(super::size);
        assert_eq!(said, ["500 B", "1 KiB", "1.5 MiB", "256 MiB", "1.00098 GiB"]);
    }
}
