//! The latencies of all operations, as a cumulative distribution with a long tail.

use maud::html;
use vmio_report::charts::Chart;
use vmio_report::charts::axis::{Axis, format_latency, format_percentile};
use vmio_report::charts::plot::{LegendEntry, Plot};
use vmio_report::latency_curve::LatencyCurve;

use super::{RunGroup, style_of};
use crate::spec::{RunResult, threads_label};

/// A chart for each number of threads, over the same latencies, so that they compare.
pub fn charts(group: &RunGroup, subtitle: &str) -> Vec<Chart> {
    let points = || group.runs.iter().flat_map(|(_, curve)| curve.points());
    let lowest_us = points().map(|point| point.latency_us).fold(f64::INFINITY, f64::min);
    let highest_us = points().map(|point| point.latency_us).fold(0.0, f64::max);
    if highest_us == 0.0 {
        return Vec::new();
    }
    group.threads().into_iter().map(|threads| chart(group, threads, (lowest_us, highest_us), subtitle)).collect()
}

fn chart(group: &RunGroup, threads: u32, (lowest_us, highest_us): (f64, f64), subtitle: &str) -> Chart {
    let runs: Vec<_> = group.runs.iter().filter(|(run, _)| run.threads == threads).collect();
    let legend = runs.iter().map(|(run, _)| LegendEntry::line(style_of(run.engine), run.engine.to_string())).collect();
    let plot = Plot::new(Axis::latencies(lowest_us, highest_us), Axis::percentiles(), legend);
    let marks = html! {
        // The first engine comes last, so that it lies over the others.
        @for (run, curve) in runs.iter().rev() {
            @let style = style_of(run.engine);
            path class={ "line curve " (style.class()) } data-engine=(run.engine.to_string())
                d=(plot.path(curve.points().iter().map(|point| (point.latency_us, point.fraction)))) {
                title { (summary(run, curve)) }
            }
            @for point in curve.marked().filter(|point| point.fraction > 0.0) {
                @let (percentile, latency) = (format_percentile(point.fraction), format_latency(point.latency_us));
                (style.mark(
                    plot.x(point.latency_us),
                    plot.y(point.fraction),
                    &format!("{}: {percentile} % took at most {latency}", run.engine),
                ))
            }
        }
    };
    plot.chart(format!("Latency: {}, {}", group.heading(), threads_label(threads)), subtitle, marks)
}

fn summary(run: &RunResult, curve: &LatencyCurve) -> String {
    format!(
        "{}: p50 {}, p99 {}, p99.9 {}, longest {}, of {} operations",
        run.engine,
        format_latency(run.p50_us),
        format_latency(run.p99_us),
        format_latency(run.p999_us),
        format_latency(run.max_us),
        curve.operations
    )
}
