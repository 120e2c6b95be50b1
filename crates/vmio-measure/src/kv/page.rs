//! `--report`: the results as one page with charts, without other files.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use vmio_report::charts::axis::Unit;
use vmio_report::charts::grouped_bars::Bars;
use vmio_report::charts::latency_lines::{LatencyLine, latency_lines};
use vmio_report::charts::{self, Chart, figure};
use vmio_report::page::{META, PAGE_STYLE, fact_list};
use vmio_report::size::format_size;
use vmio_report::surroundings::Surroundings;

use super::runner::{Outcome, Runner};
use super::scenario::Scenario;
use super::spec::KvResult;
use super::table::{self, Section};
use super::workload::Phase;

const OPERATIONS: &[Unit] = &[("operations/s", 1.0), ("thousand operations/s", 1e3), ("million operations/s", 1e6)];
const TIMES: &[Unit] = &[("bytes a byte", 1.0)];
const BYTES: &[Unit] = &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];

/// The page.
pub fn page(runner: &Runner, place: &str, outcomes: &[Outcome]) -> Markup {
    let here = Surroundings::now();
    let shape = runner.shape;
    let data = format_size(runner.records * shape.bytes());
    let records = format!("{} of {} + {} bytes, {data}", runner.records, shape.key_bytes, shape.value_bytes);
    let memory = format_size(runner.memory_bytes);
    let (threads, durability) = (runner.threads.to_string(), format!("{:?}", runner.durability).to_lowercase());
    let more = [
        ("Records", records.as_str()),
        ("Stores", place),
        ("Memory of each engine", &memory),
        ("Threads", &threads),
        ("Durability", &durability),
    ];
    let errors: u64 = outcomes.iter().map(Outcome::errors).sum();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(META))
                title { "vmio bench kv, " (here.date) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(charts::style_sheet())) }
            }
            body {
                h1 { "vmio bench kv" }
                (fact_list(&here, &more))
                p class=[(errors > 0).then_some("warning")] { "Records that were missing or wrong: " (errors) "." }
                @for failure in table::failures(outcomes) { p class="warning" { (failure) } }
                div class="charts" { @for chart in overview(outcomes, &records) { (figure(&chart)) } }
                h2 { "Latencies" }
                div class="charts" { @for chart in latencies(outcomes, &records) { (figure(&chart)) } }
                @for Section { title, table, remarks } in table::sections(outcomes) {
                    section {
                        h2 { (title) }
                        div class="wide" { (table.html()) }
                        @for remark in remarks { p { (remark) } }
                    }
                }
                footer { (table::NOTE) "Written by vmio " (env!("CARGO_PKG_VERSION")) "." }
            }
        }
    }
}

/// The engines, in the order of their runs: each has the same colour in all charts.
fn engines(outcomes: &[Outcome]) -> Vec<String> {
    let mut engines = Vec::new();
    for run in outcomes.iter().filter_map(Outcome::measured) {
        let name = run.engine.to_string();
        if !engines.contains(&name) {
            engines.push(name);
        }
    }
    engines
}

/// The measure that a chart shows of each run.
struct Measure {
    title: &'static str,
    what: &'static str,
    units: &'static [Unit],
    value: fn(&KvResult) -> Option<f64>,
}

const MEASURES: [Measure; 5] = [
    Measure { title: "Throughput", what: "Throughput", units: OPERATIONS, value: |run| Some(run.kops * 1e3) },
    Measure {
        title: "Write amplification",
        what: "Written for each byte put",
        units: TIMES,
        value: |run| run.dev_write_bytes.filter(|_| put_bytes(run) > 0.0).map(|bytes| bytes as f64 / put_bytes(run)),
    },
    Measure {
        title: "Read from the device",
        what: "Read",
        units: BYTES,
        value: |run| run.dev_read_bytes.map(|bytes| bytes as f64),
    },
    Measure { title: "Space", what: "Files, closed", units: BYTES, value: |run| Some(run.space_bytes as f64) },
    Measure {
        title: "Memory",
        what: "Resident at most",
        units: BYTES,
        value: |run| run.max_rss_bytes.map(|bytes| bytes as f64),
    },
];

/// A chart for each measure, by phase.
fn overview(outcomes: &[Outcome], subtitle: &str) -> Vec<Chart> {
    MEASURES.iter().filter_map(|measure| bars(outcomes, measure, subtitle)).collect()
}

/// A chart of the runs that have a value; `None` if no run has one.
fn bars(outcomes: &[Outcome], measure: &Measure, subtitle: &str) -> Option<Chart> {
    let Measure { title, what, units, value } = *measure;
    let engines = engines(outcomes);
    let runs = || outcomes.iter().filter_map(Outcome::measured);
    let mut phases = table::measured_phases(outcomes);
    phases.retain(|&of| runs().any(|run| is_of(run, of) && value(run).is_some()));
    let bar = |run: &KvResult| {
        let group = phases.iter().position(|&of| is_of(run, of))?;
        let engine = engines.iter().position(|name| *name == run.engine.name())?;
        Some((group, engine, value(run)?))
    };
    let bars: Vec<_> = runs().filter_map(bar).collect();
    let groups = phases.iter().map(|&(scenario, phase)| table::phase_name(scenario, phase)).collect();
    let chart = Bars { title, subtitle, what, units, groups_are: "Phase", groups, engines, bars };
    (!chart.bars.is_empty()).then(|| chart.chart())
}

fn is_of(run: &KvResult, (scenario, phase): (Option<Scenario>, Phase)) -> bool {
    (run.scenario, run.phase) == (scenario, phase)
}

/// About how many bytes of keys and values a phase puts.
fn put_bytes(run: &KvResult) -> f64 {
    let record_bytes = run.prefix_bytes + run.key_bytes + run.value_bytes;
    run.ops as f64 * run.phase.puts() * f64::from(record_bytes)
}

/// A chart for each phase.
fn latencies(outcomes: &[Outcome], subtitle: &str) -> Vec<Chart> {
    let engines = engines(outcomes);
    let chart = |(scenario, phase)| {
        let runs = outcomes.iter().filter_map(Outcome::measured).filter(|run| is_of(run, (scenario, phase)));
        let line = |run: &KvResult| LatencyLine {
            name: run.engine.to_string(),
            index: engines.iter().position(|name| *name == run.engine.name()).unwrap_or_default(),
            points: vec![(0.5, run.p50_us), (0.99, run.p99_us), (0.999, run.p999_us), (0.9999, run.p9999_us)],
        };
        let lines: Vec<_> = runs.map(line).collect();
        latency_lines(&format!("Latency: {}", table::phase_name(scenario, phase)), subtitle, &lines)
    };
    table::measured_phases(outcomes).into_iter().filter_map(chart).collect()
}
