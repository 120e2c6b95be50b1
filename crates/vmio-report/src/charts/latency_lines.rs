//! Latencies of a few fractions of all operations, a line for each engine.

use maud::html;

use super::Chart;
use super::axis::{Axis, format_latency, format_percentile};
use super::engine_style::EngineStyle;
use super::plot::{LegendEntry, Plot};

/// An engine's line.
pub struct LatencyLine {
    /// The engine.
    pub name: String,
    /// Its number among all engines, which gives it its style.
    pub index: usize,
    /// Fractions of the operations, rising, each with the latency that it does not exceed, in microseconds.
    pub points: Vec<(f64, f64)>,
}

/// The chart; none if there is nothing to draw.
pub fn latency_lines(title: &str, subtitle: &str, lines: &[LatencyLine]) -> Option<Chart> {
    let latencies = || lines.iter().flat_map(|line| line.points.iter().map(|(_, latency_us)| *latency_us));
    let (lowest_us, highest_us) = (latencies().fold(f64::INFINITY, f64::min), latencies().fold(0.0, f64::max));
    if highest_us == 0.0 {
        return None;
    }
    let entry = |line: &LatencyLine| LegendEntry::line(EngineStyle::numbered(line.index), line.name.clone());
    let plot =
        Plot::new(Axis::latencies(lowest_us, highest_us), Axis::percentiles(), lines.iter().map(entry).collect());
    let marks = html! {
        // The first engine comes last, so that it lies over the others.
        @for line in lines.iter().rev() {
            @let style = EngineStyle::numbered(line.index);
            path class={ "line curve " (style.class()) } data-engine=(line.name)
                d=(plot.path(line.points.iter().map(|(fraction, latency_us)| (*latency_us, *fraction)))) {
                title { (line.name) }
            }
            @for &(fraction, latency_us) in &line.points {
                @let (percentile, latency) = (format_percentile(fraction), format_latency(latency_us));
                (style.mark(
                    plot.x(latency_us),
                    plot.y(fraction),
                    &format!("{}: {percentile} % took at most {latency}", line.name),
                ))
            }
        }
    };
    Some(plot.chart(title.to_owned(), subtitle, marks))
}
