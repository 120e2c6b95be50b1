//! The results for people: a table a phase, each engine beside vmio.

use kv_peers::EngineKind;

use super::measure::KvResult;
use super::workload::Phase;
use super::{KvFailure, Outcome};
use crate::bench::table::Table;

const HEADER: [&str; 15] = [
    "engine",
    "kops/s",
    "vmio is",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "p99.99 µs",
    "max ms",
    "flush s",
    "CPU s/Mop",
    "read MiB",
    "written MiB",
    "space MiB",
    "RSS MiB",
    "wrong",
];

/// A table for each phase.
pub(super) fn text(phases: &[Phase], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for &phase in phases {
        let measured: Vec<_> = outcomes.iter().filter_map(Outcome::measured).filter(|run| run.phase == phase).collect();
        let ours = measured.iter().find(|run| run.engine == EngineKind::Vmio);
        let mut table = Table::new(&HEADER);
        measured.iter().for_each(|run| table.row(row(run, ours.map(|ours| ours.kops))));
        let what = measured.first().map_or("", |run| run.distribution.name());
        text.push_str(&format!("{phase}, {what}\n{}\n", table.text()));
    }
    for KvFailure { engine, phase, failure } in outcomes.iter().filter_map(Outcome::failed) {
        text.push_str(&format!("{engine} has not done {phase}: {failure}\n"));
    }
    text + NOTE
}

const NOTE: &str = "vmio is: so many times as fast. kops/s of phases with writes: until all are in their place on the device, and\n\
    background work has ended (flush s of the time). Read and written: by the block device's counters.\n";

fn row(run: &KvResult, ours: Option<f64>) -> Vec<String> {
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), mebibytes);
    vec![
        run.engine.to_string(),
        format!("{:.1}", run.kops),
        ours.map_or_else(|| "-".to_owned(), |ours| format!("{:.2}x", ours / run.kops)),
        format!("{:.1}", run.p50_us),
        format!("{:.1}", run.p99_us),
        format!("{:.0}", run.p999_us),
        format!("{:.0}", run.p9999_us),
        format!("{:.1}", run.max_us / 1e3),
        format!("{:.2}", run.flush_s),
        format!("{:.2}", run.cpu_s_per_mop),
        known(run.dev_read_bytes),
        known(run.dev_write_bytes),
        mebibytes(run.space_bytes),
        known(run.max_rss_bytes),
        run.errors.to_string(),
    ]
}
