//! The charts of a cache over time.

use maud::html;
use vmio_report::charts::axis::{Axis, Unit, trimmed};
use vmio_report::charts::plot::{LegendEntry, Plot};
use vmio_report::charts::{Chart, EngineStyle};

use super::heat_map::heat_map;
use super::miss_log::{Kind, MappingLog, MissLog};
use super::series::{Point, Series};
use super::units::{BYTES, COUNTS, NUMBERS, RANDOMNESS, RATES, SECONDS};

/// A line of a chart, without points that have no measurement.
struct Curve {
    name: &'static str,
    value: fn(&Point) -> Option<f64>,
}

/// A line in the drawing: seconds and values.
struct Line {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// Every chart of a cache.
pub fn charts(series: &Series) -> Vec<Chart> {
    let points = series.points();
    let end = points.last().map_or(0.0, |point| point.at);
    let amounts = |title: &str, units: &[Unit], curves: &[Curve]| {
        let largest = values(&points, curves).fold(0.0, f64::max);
        chart(title, Axis::amounts(title, units, largest).0, &points, curves)
    };
    let latencies = latency_curves();
    let lowest = values(&points, &latencies).fold(f64::INFINITY, f64::min);
    let highest = values(&points, &latencies).fold(0.0, f64::max);
    let mut charts = vec![
        amounts("Pages", &COUNTS, &page_curves()),
        amounts("Bytes moved", &RATES, &byte_curves()),
        amounts("Memory", &BYTES, &memory_curves()),
        amounts("Size of requests", &BYTES, &size_curves()),
        amounts("Under way", &NUMBERS, &depth_curves()),
    ];
    if highest > 0.0 {
        charts.insert(2, chart("Latency of misses", Axis::latencies(lowest, highest), &points, &latencies));
    }
    if let Some(log) = &series.misses {
        for (index, mapping) in log.mappings.iter().enumerate() {
            let title = |what: &str| match log.mappings.len() {
                1 => what.to_owned(),
                _ => format!("{what}, mapping {}", index + 1),
            };
            charts.push(heat_map(title("Where misses were"), log, mapping, end));
            charts.push(randomness(&title("Randomness of misses"), log, mapping, end));
        }
    }
    charts
}

/// The metric R of the misses of a mapping.
fn randomness(title: &str, log: &MissLog, mapping: &MappingLog, end: f64) -> Chart {
    const ANYWHERE: f64 = 1.0 / 3.0;
    let kinds = [("all", Kind::All), ("loads", Kind::Loads), ("stores", Kind::Stores)];
    let lines = kinds.map(|(name, kind)| {
        let known = log.periods().zip(mapping.randomness(kind)).filter_map(|(period, value)| Some((period, value?)));
        Line { name, points: known.flat_map(|((begin, end), value)| [(begin, value), (end, value)]).collect() }
    });
    let largest = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(ANYWHERE, f64::max);
    line_chart(title, Axis::amounts("R", &RANDOMNESS, largest).0, end, &lines)
}

fn page_curves() -> [Curve; 3] {
    [
        Curve { name: "misses", value: |point| Some(point.interval.misses_per_s) },
        Curve { name: "minor faults", value: |point| Some(point.interval.minor_faults_per_s) },
        Curve { name: "evictions", value: |point| Some(point.interval.evictions_per_s) },
    ]
}

fn byte_curves() -> [Curve; 2] {
    [
        Curve { name: "read", value: |point| Some(point.interval.read_bytes_per_s) },
        Curve { name: "written", value: |point| Some(point.interval.written_bytes_per_s) },
    ]
}

fn memory_curves() -> [Curve; 4] {
    [
        Curve { name: "resident", value: |point| Some(bytes(point.now.stats.resident_pages)) },
        Curve { name: "dirty", value: |point| Some(bytes(point.now.stats.dirty_pages)) },
        Curve { name: "pinned", value: |point| Some(bytes(point.now.stats.pinned_pages)) },
        Curve { name: "page tables", value: |point| Some(bytes(point.now.stats.table_pages)) },
    ]
}

fn size_curves() -> [Curve; 2] {
    [
        Curve { name: "read", value: |point| mean(point.interval.read_bytes_per_s, point.interval.reads_per_s) },
        Curve { name: "written", value: |point| mean(point.interval.written_bytes_per_s, point.interval.writes_per_s) },
    ]
}

fn depth_curves() -> [Curve; 2] {
    [
        Curve { name: "misses", value: |point| Some(point.interval.misses_under_way) },
        Curve { name: "writes", value: |point| Some(point.interval.writes_under_way) },
    ]
}

/// In microseconds.
fn latency_curves() -> [Curve; 3] {
    [
        Curve { name: "p50", value: |point| quantile_us(point, 0.5) },
        Curve { name: "p99", value: |point| quantile_us(point, 0.99) },
        Curve { name: "p99.9", value: |point| quantile_us(point, 0.999) },
    ]
}

fn quantile_us(point: &Point, share: f64) -> Option<f64> {
    point.interval.miss.quantile_ns(share).map(|ns| ns as f64 / 1e3)
}

fn mean(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count)
}

fn bytes(pages: u64) -> f64 {
    pages as f64 * vmio::PAGE_BYTES as f64
}

fn values<'a>(points: &'a [Point], curves: &'a [Curve]) -> impl Iterator<Item = f64> {
    curves.iter().flat_map(move |curve| points.iter().filter_map(curve.value))
}

/// The curves over time.
fn chart(title: &str, y: Axis, points: &[Point], curves: &[Curve]) -> Chart {
    let end = points.last().map_or(0.0, |point| point.at);
    let line = |curve: &Curve| {
        let known = points.iter().filter_map(|point| Some((point, (curve.value)(point)?)));
        // From the beginning of the first interval on, so that a single one is visible.
        let begin = known.clone().take(1).map(|(point, value)| (point.at - point.interval.seconds, value));
        Line { name: curve.name, points: begin.chain(known.map(|(point, value)| (point.at, value))).collect() }
    };
    line_chart(title, y, end, &curves.iter().map(line).collect::<Vec<_>>())
}

/// Lines over time.
fn line_chart(title: &str, y: Axis, end: f64, lines: &[Line]) -> Chart {
    let style = |index| EngineStyle::numbered(index);
    let legend = |(index, line): (usize, &Line)| LegendEntry::line(style(index), line.name.to_owned());
    let plot = Plot::new(Axis::amounts("Time", &SECONDS, end).0, y, lines.iter().enumerate().map(legend).collect());
    let marks = html! {
        // The first line is drawn last, above the others.
        @for (index, Line { name, points }) in lines.iter().enumerate().rev() {
            @if let Some((_, last)) = points.last() {
                path class={ "line curve " (style(index).class()) } data-curve=(name)
                    d=(plot.path(points.iter().copied())) {
                    title { (name) ", at the end " (trimmed(*last)) }
                }
            }
        }
    };
    plot.chart(title.to_owned(), "", marks)
}
