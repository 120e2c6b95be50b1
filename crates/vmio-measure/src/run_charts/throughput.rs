//! Throughput against the number of threads.

use maud::html;
use vmio_report::charts::Chart;
use vmio_report::charts::axis::{Axis, Unit, trimmed};
use vmio_report::charts::plot::{LegendEntry, Plot};

use super::{RunGroup, style_of};
use crate::spec::threads_label;

const UNITS: [Unit; 3] = [("operations/s", 1.0), ("thousand operations/s", 1e3), ("million operations/s", 1e6)];

/// The chart, a line for each engine.
pub fn chart(group: &RunGroup, subtitle: &str) -> Chart {
    let engines = group.engines();
    let legend = engines.iter().map(|engine| LegendEntry::line(style_of(*engine), engine.to_string())).collect();
    let largest = group.runs.iter().map(|(run, _)| run.ops_per_s).fold(0.0, f64::max);
    let (y, (unit, per_unit)) = Axis::amounts("Throughput", &UNITS, largest);
    let plot = Plot::new(Axis::threads(&group.threads()), y, legend);
    let marks = html! {
        @for &engine in engines.iter().rev() {
            @let style = style_of(engine);
            @let runs: Vec<_> = group.runs.iter().map(|(run, _)| run).filter(|run| run.engine == engine).collect();
            path class={ "line curve " (style.class()) } data-engine=(engine.to_string())
                d=(plot.path(runs.iter().map(|run| (f64::from(run.threads), run.ops_per_s)))) {
                title { (engine.to_string()) }
            }
            @for run in runs {
                @let amount = trimmed(run.ops_per_s / per_unit);
                (style.mark(
                    plot.x(f64::from(run.threads)),
                    plot.y(run.ops_per_s),
                    &format!("{engine}, {}: {amount} {unit}", threads_label(run.threads)),
                ))
            }
        }
    };
    plot.chart(format!("Throughput: {}", group.heading()), subtitle, marks)
}
