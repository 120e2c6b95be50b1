//! The results as text: a table for each phase, each engine compared with vmio.

use vmio_report::table::Table;

use super::engine::EngineKind;
use super::reopen::ReopenResult;
use super::runner::{KvFailure, Outcome};
use super::scenario::Scenario;
use super::spec::KvResult;
use super::workload::{Phase, SCAN_RECORDS};

const HEADER: [&str; 17] = [
    "engine",
    "kops/s",
    "vmio is",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "p99.99 µs",
    "p99.99e µs",
    "max ms",
    "flush s",
    "CPU s/Mop",
    "read MiB",
    "written MiB",
    "R",
    "space MiB",
    "RSS MiB",
    "wrong",
];

const REOPEN_HEADER: [&str; 10] = [
    "engine",
    "records",
    "open ms",
    "first read µs",
    "replayed",
    "of log MiB",
    "lost",
    "read MiB",
    "space MiB",
    "wrong",
];

/// A table with its title.
pub(super) struct Section {
    pub title: String,
    pub table: Table,
    /// Remarks below the table, one a line.
    pub remarks: Vec<String>,
}

/// One for each phase, and one for each scenario of opening.
pub(super) fn sections(outcomes: &[Outcome]) -> Vec<Section> {
    let mut sections = Vec::new();
    for (scenario, phase) in measured_phases(outcomes) {
        let is_of = |run: &&KvResult| (run.scenario, run.phase) == (scenario, phase);
        let measured: Vec<_> = outcomes.iter().filter_map(Outcome::measured).filter(is_of).collect();
        let ours = measured.iter().find(|run| run.engine == EngineKind::Vmio);
        let mut table = Table::new(&HEADER);
        measured.iter().for_each(|run| table.row(row(run, ours.map(|ours| ours.kops))));
        let stopped = measured.iter().filter(|run| run.stopped);
        let remarks = stopped.map(|run| format!("{}: the time limit came after {} operations", run.engine, run.ops));
        let what = measured.first().map_or_else(String::new, |run| {
            let absent = match run.absent_percent {
                0 => String::new(),
                percent => format!(", {percent} % of the reads absent"),
            };
            let scans = match run.scan_records {
                records if run.phase.scans() && records != SCAN_RECORDS => {
                    format!(", scans of {records} records at most")
                }
                _ => String::new(),
            };
            format!("{}{absent}{scans}", run.distribution.name())
        });
        sections.push(Section {
            title: format!("{}, {what}", phase_name(scenario, phase)),
            table,
            remarks: remarks.collect(),
        });
    }
    for scenario in [Scenario::Reopen, Scenario::Recovery] {
        let is_of = |run: &&ReopenResult| run.scenario == Some(scenario);
        let mut reopened = outcomes.iter().filter_map(Outcome::reopened).filter(is_of).peekable();
        if reopened.peek().is_some() {
            let mut table = Table::new(&REOPEN_HEADER);
            reopened.for_each(|run| table.row(reopen_row(run)));
            sections.push(Section { title: scenario.name().to_owned(), table, remarks: Vec::new() });
        }
    }
    sections
}

/// The phase, with its scenario.
pub(super) fn phase_name(scenario: Option<Scenario>, phase: Phase) -> String {
    scenario.map_or_else(|| phase.to_string(), |scenario| format!("{} {phase}", scenario.name()))
}

/// The engines that failed, one a line.
pub(super) fn failures(outcomes: &[Outcome]) -> Vec<String> {
    let failed = outcomes.iter().filter_map(Outcome::failed);
    let line = |KvFailure { engine, scenario, phase, failure }: &KvFailure| {
        format!("{engine} has not done {}: {failure}", phase_name(*scenario, *phase))
    };
    failed.map(line).collect()
}

/// All sections as text.
pub(super) fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for Section { title, table, remarks } in sections(outcomes) {
        text.push_str(&format!("{title}\n{}\n", table.text()));
        remarks.iter().for_each(|remark| text.push_str(&format!("{remark}\n\n")));
    }
    failures(outcomes).iter().for_each(|failure| text.push_str(&format!("{failure}\n")));
    text + NOTE
}

/// In the order of the first run of each.
pub(super) fn measured_phases(outcomes: &[Outcome]) -> Vec<(Option<Scenario>, Phase)> {
    let mut phases = Vec::new();
    for run in outcomes.iter().filter_map(Outcome::measured) {
        if !phases.contains(&(run.scenario, run.phase)) {
            phases.push((run.scenario, run.phase));
        }
    }
    phases
}

pub(super) const NOTE: &str = "vmio is: so many times as fast. kops/s of phases with writes: until all are in their place on the device, and\n\
    background work has ended (flush s of the time). Read and written: by the block device's counters.\n";

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), mebibytes)
}

fn reopen_row(run: &ReopenResult) -> Vec<String> {
    vec![
        run.engine.to_string(),
        run.records.to_string(),
        format!("{:.1}", run.open_s * 1e3),
        format!("{:.0}", run.first_read_us),
        run.replayed_records.map_or_else(|| "-".to_owned(), |records| records.to_string()),
        known(run.replayed_log_bytes),
        run.lost_records.to_string(),
        known(run.dev_read_bytes),
        mebibytes(run.space_bytes),
        run.errors.to_string(),
    ]
}

fn row(run: &KvResult, ours: Option<f64>) -> Vec<String> {
    vec![
        run.engine.to_string(),
        format!("{:.1}", run.kops),
        ours.map_or_else(|| "-".to_owned(), |ours| format!("{:.2}x", ours / run.kops)),
        format!("{:.1}", run.p50_us),
        format!("{:.1}", run.p99_us),
        format!("{:.0}", run.p999_us),
        format!("{:.0}", run.p9999_us),
        run.p9999_engine_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}")),
        format!("{:.1}", run.max_us / 1e3),
        format!("{:.2}", run.flush_s),
        format!("{:.2}", run.cpu_s_per_mop),
        known(run.dev_read_bytes),
        known(run.dev_write_bytes),
        run.randomness.map_or_else(|| "-".to_owned(), |randomness| format!("{randomness:.4}")),
        mebibytes(run.space_bytes),
        known(run.max_rss_bytes),
        run.errors.to_string(),
    ]
}
