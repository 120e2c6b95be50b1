//! docs/benchmarks/units.md, from what `vmio-bench units --json` wrote: a file is named DEVICE.json, and has a run for each kind of unit at
//! each kind of work.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::part::{Wanted, commands_section, machine_table, read_commands, table, target, targets_table};
use super::runs::{self, Runs, count, distinct, name_in, of, select, text};
use super::{Common, write_page};
use crate::figure::{least, number, ratio, whole};

const DEVICES: [(&str, &str); 2] = [("zram", "Fast device (zram)"), ("disk", "Disk")];
const DYNAMIC: &str = "dynamic";
/// What dynamic units may take more than the better of the others.
const MARGIN: f64 = 1.1;

const INTRO: &str = "\
# `vmio-bench units`: units of 4 KiB, of 2 MiB, and dynamic ones

Written by `make bench-units`; not edited by hand. Each kind of unit does the same loads of a cold file through a cache of its
own: at random, page after page (a scan of the file), and mixed (the scan, with a load at random after every 16 pages).
\"4K\" is `Advice::Random`, \"4K, read-ahead\" a mapping without any hint, \"2M\" `FrameHint::Stream`, \"dynamic\"
`FrameHint::Dynamic`. \"read ÷ used\" are the bytes read by those of the pages loaded from, a page for each load. Then
half a cache is filled with the same pattern, and hits at random in it are timed: there huge pages spare the TLB.";

/// Render docs/benchmarks/units.md
#[derive(Args)]
pub struct UnitsPage {
    /// DEVICE.json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Size of the file
    #[arg(long, default_value = "2G")]
    size: String,
    /// Cache of each kind
    #[arg(long, default_value = "512M")]
    cache: String,
    #[command(flatten)]
    common: Common,
    /// Page to write
    #[arg(long, default_value = "docs/benchmarks/units.md")]
    out: PathBuf,
}

impl UnitsPage {
    /// Writes it.
    pub fn render(&self) -> Result<()> {
        let read = |path: &PathBuf| Ok((runs::stem(path).to_owned(), runs::read(path)?));
        let devices: Vec<(String, Vec<Value>)> = self.files.iter().map(read).collect::<Result<_>>()?;
        let devices: Vec<(&str, Runs)> =
            devices.iter().map(|(device, runs)| (device.as_str(), runs.iter().collect())).collect();
        let sizes = format!("{}, {}", self.size, self.cache);
        let command = "`make bench-units`, which runs the commands at the end of the page";
        let verdicts: Vec<_> = devices.iter().flat_map(|(device, runs)| verdicts(device, runs)).collect();
        let mut parts = vec![
            INTRO.to_owned(),
            machine_table(&[("file, cache", &sizes), ("command", command)])?,
            "## Dynamic units beside the best of the others".to_owned(),
            targets_table(&verdicts),
        ];
        for (device, runs) in &devices {
            for work in distinct(runs, "work") {
                parts.push(format!("## {}: {}", name_in(&DEVICES, device), work.as_str().unwrap_or_default()));
                parts.push(units_table(&select(runs, &[("work", work)])));
            }
        }
        parts.push(commands_section(&read_commands(self.common.commands.as_deref())?, self.common.hide.as_deref()));
        write_page(&self.out, &parts, "")
    }
}

fn units_table(runs: &[&Value]) -> String {
    let head =
        ["unit", "ns a load", "CPU ns a load", "faults", "huge pages", "read MB", "read ÷ used", "ns a hit", "errors"];
    let row = |run: &&Value| {
        vec![
            text(run, "units").to_owned(),
            number(of(run, "load_ns")),
            number(of(run, "cpu_ns")),
            whole(count(run, "faults")),
            whole(count(run, "huge_pages")),
            number(ratio(of(run, "read_bytes"), 1e6)),
            format!("{:.2}", of(run, "amplification").unwrap_or(f64::NAN)),
            number(of(run, "hit_ns")),
            whole(count(run, "verify_errors") + count(run, "hit_misses")),
        ]
    };
    table(&head, &runs.iter().map(row).collect::<Vec<_>>(), &[0])
}

/// Dynamic units beside the best of the others.
fn verdicts(device: &str, runs: &Runs) -> Vec<Vec<String>> {
    let measures = [("load_ns", "time of a load"), ("amplification", "bytes read"), ("hit_ns", "time of a hit")];
    let mut rows = Vec::new();
    for work in distinct(runs, "work") {
        let of_work = select(runs, &[("work", work.clone())]);
        for (key, what) in measures {
            let is_dynamic = |run: &&&Value| text(run, "units") == DYNAMIC;
            let fixed = least(of_work.iter().filter(|run| !is_dynamic(run)).filter_map(|run| of(run, key)));
            let dynamic = of_work.iter().find(is_dynamic).and_then(|run| of(run, key));
            let work = work.as_str().unwrap_or_default();
            let what = format!("{device}, {work}: {what} × the best fixed choice");
            rows.push(target(what, ratio(dynamic, fixed), Wanted::AtMost(MARGIN)));
        }
    }
    rows
}
