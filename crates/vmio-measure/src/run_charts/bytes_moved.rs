//! The bytes that went to and from the device, for each operation. Engines that do more operations in the same time move more, so totals
//! would not compare.

use maud::{Markup, html};
use vmio_report::charts::Chart;
use vmio_report::charts::axis::{Axis, Unit, trimmed};
use vmio_report::charts::coordinate::px;
use vmio_report::charts::plot::{LegendEntry, Plot};
use vmio_report::latency_curve::LatencyCurve;
use vmio_report::size::format_size;

use super::{RunGroup, style_of};
use crate::spec::{RunResult, threads_label};

const UNITS: [Unit; 3] = [("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)];
/// The part of the width between two groups that bars fill.
const FILLED: f64 = 0.76;
const WIDEST_BAR: f64 = 72.0;
/// The part of its place that a bar fills.
const DRAWN: f64 = 0.92;
/// Narrower bars have no number above.
const NARROWEST_LABELLED_BAR: f64 = 32.0;
/// Room for that number above the highest bar.
const HEADROOM: f64 = 1.1;

/// The chart: for each number of threads a bar for each engine, with bytes read below and bytes written above.
pub fn chart(group: &RunGroup, subtitle: &str) -> Chart {
    let (engines, threads) = (group.engines(), group.threads());
    let mut legend: Vec<_> = engines
        .iter()
        .map(|engine| LegendEntry::area(&format!("read {}", style_of(*engine).class()), engine.to_string()))
        .collect();
    legend.push(LegendEntry::area("read", "read".to_owned()));
    legend.push(LegendEntry::area("written", "written".to_owned()));
    let largest = group.runs.iter().map(|(run, curve)| Moved::of(run, curve).total()).fold(0.0, f64::max);
    let (y, unit) = Axis::amounts("Device bytes for each operation", &UNITS, largest * HEADROOM);
    let plot = Plot::new(Axis::groups(&threads), y, legend);
    let group_width = plot.width() / threads.len().max(1) as f64 * FILLED;
    let width = (group_width / engines.len().max(1) as f64).min(WIDEST_BAR);
    let marks = html! {
        @for (run, curve) in &group.runs {
            @let group_index = threads.iter().position(|count| *count == run.threads).unwrap_or(0);
            @let bar_index = engines.iter().position(|engine| *engine == run.engine).unwrap_or(0);
            @let left = plot.x(group_index as f64) + (bar_index as f64 - engines.len() as f64 / 2.0) * width;
            (bar(&plot, unit, run, &Moved::of(run, curve), (left, width)))
        }
    };
    plot.chart(format!("Bytes moved: {}", group.heading()), subtitle, marks)
}

/// Bytes for each operation.
struct Moved {
    read: f64,
    written: f64,
}

impl Moved {
    fn of(run: &RunResult, curve: &LatencyCurve) -> Self {
        let operations = curve.operations.max(1) as f64;
        Self { read: run.read_bytes as f64 / operations, written: run.write_bytes as f64 / operations }
    }

    fn total(&self) -> f64 {
        self.read + self.written
    }
}

fn bar(plot: &Plot, (unit, per_unit): Unit, run: &RunResult, moved: &Moved, (left, width): (f64, f64)) -> Markup {
    let class = style_of(run.engine).class();
    let [bottom, middle, top] = [0.0, moved.read, moved.total()].map(|bytes| plot.y(bytes));
    let title = |what: &str, bytes: f64, all_bytes: u64| {
        let amount = trimmed(bytes / per_unit);
        let threads = threads_label(run.threads);
        format!(
            "{}, {threads}: {what} {amount} {unit} for each operation, {} in all",
            run.engine,
            format_size(all_bytes)
        )
    };
    let (x, drawn_width) = (px(left + width * (1.0 - DRAWN) / 2.0), px(width * DRAWN));
    html! {
        rect class={ "read " (class) } data-engine=(run.engine.to_string())
            x=(x) y=(px(middle)) width=(drawn_width) height=(px(bottom - middle)) {
            title { (title("read", moved.read, run.read_bytes)) }
        }
        rect class={ "written " (class) } data-engine=(run.engine.to_string())
            x=(x) y=(px(top)) width=(drawn_width) height=(px(middle - top)) {
            title { (title("written", moved.written, run.write_bytes)) }
        }
        @if width >= NARROWEST_LABELLED_BAR {
            text class="amount" x=(px(left + width / 2.0)) y=(px(top - 5.0)) text-anchor="middle" {
                (format!("{:.2}", moved.total() / per_unit))
            }
        }
    }
}
