//! Miss ratios against the size of the cache.

use maud::html;

use super::Chart;
use super::axis::{Axis, Unit, trimmed};
use super::engine_style::EngineStyle;
use super::plot::{LegendEntry, Plot};
use crate::size::format_size;

const UNITS: [Unit; 1] = [("%", 0.01)];

/// The miss ratios of one policy.
pub struct MissCurve {
    /// Its name.
    pub policy: &'static str,
    /// Sizes of the cache in bytes, rising, each with its misses per access.
    pub points: Vec<(u64, f64)>,
}

/// The chart, a line for each policy.
pub fn miss_ratio_chart(title: &str, subtitle: &str, curves: &[MissCurve]) -> Chart {
    let legend = curves
        .iter()
        .enumerate()
        .map(|(index, curve)| LegendEntry::line(EngineStyle::numbered(index), curve.policy.to_owned()));
    let mut sizes: Vec<u64> = curves.iter().flat_map(|curve| curve.points.iter().map(|(bytes, _)| *bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let largest = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, ratio)| *ratio)).fold(0.0, f64::max);
    let (y, (unit, per_unit)) = Axis::amounts("Misses", &UNITS, largest);
    let plot = Plot::new(Axis::cache_sizes(&sizes), y, legend.collect());
    let marks = html! {
        // The first policy comes last, so that it lies over the others.
        @for (index, MissCurve { policy, points }) in curves.iter().enumerate().rev() {
            @let style = EngineStyle::numbered(index);
            path class={ "line curve " (style.class()) } data-policy=(policy)
                d=(plot.path(points.iter().map(|(bytes, ratio)| (*bytes as f64, *ratio)))) {
                title { (policy) }
            }
            @for (bytes, ratio) in points {
                (style.mark(
                    plot.x(*bytes as f64),
                    plot.y(*ratio),
                    &format!("{policy}, {}: {} {unit}", format_size(*bytes), trimmed(ratio / per_unit)),
                ))
            }
        }
    };
    plot.chart(title.to_owned(), subtitle, marks)
}
