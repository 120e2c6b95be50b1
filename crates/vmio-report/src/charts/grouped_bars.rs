//! Bars in groups, with one bar for each engine in each group.

use maud::html;

use super::Chart;
use super::axis::{Axis, Unit, trimmed};
use super::coordinate::px;
use super::engine_style::EngineStyle;
use super::plot::{LegendEntry, Plot};

/// The part of the width between two groups that bars fill.
const FILLED: f64 = 0.8;
const WIDEST_BAR: f64 = 60.0;
/// The part of its place that a bar fills.
const DRAWN: f64 = 0.9;
/// Narrower bars have no number above.
const NARROWEST_LABELLED_BAR: f64 = 26.0;
/// Room for that number above the highest bar.
const HEADROOM: f64 = 1.1;

/// The data of a chart of bars.
pub struct Bars<'a> {
    /// The title of the chart.
    pub title: &'a str,
    /// The line below the title.
    pub subtitle: &'a str,
    /// The quantity on the vertical axis.
    pub what: &'a str,
    /// The units of that quantity, in rising order.
    pub units: &'a [Unit],
    /// The label of the axis of groups.
    pub groups_are: &'a str,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The names of the engines.
    pub engines: Vec<String>,
    /// Each bar's group, engine and height.
    pub bars: Vec<(usize, usize, f64)>,
}

impl Bars<'_> {
    /// Draws them.
    pub fn chart(&self) -> Chart {
        let legend = self.engines.iter().enumerate().map(|(index, name)| {
            LegendEntry::area(&format!("read {}", EngineStyle::numbered(index).class()), name.clone())
        });
        let largest = self.bars.iter().map(|(.., amount)| *amount).fold(0.0, f64::max);
        let (y, (unit, per_unit)) = Axis::amounts(self.what, self.units, largest * HEADROOM);
        let groups = Axis::named_groups(self.groups_are, self.groups.iter().cloned());
        let plot = Plot::new(groups, y, legend.collect());
        let group_width = plot.width() / self.groups.len().max(1) as f64 * FILLED;
        let width = (group_width / self.engines.len().max(1) as f64).min(WIDEST_BAR);
        let marks = html! {
            @for &(group, engine, amount) in &self.bars {
                @let left = plot.x(group as f64) + (engine as f64 - self.engines.len() as f64 / 2.0) * width;
                @let (top, bottom) = (plot.y(amount), plot.y(0.0));
                @let text = trimmed(amount / per_unit);
                rect class={ "read " (EngineStyle::numbered(engine).class()) } data-engine=(self.engines[engine])
                    x=(px(left + width * (1.0 - DRAWN) / 2.0)) y=(px(top))
                    width=(px(width * DRAWN)) height=(px(bottom - top)) {
                    title { (self.engines[engine]) ", " (self.groups[group]) ": " (text) " " (unit) }
                }
                @if width >= NARROWEST_LABELLED_BAR {
                    text class="amount" x=(px(left + width / 2.0)) y=(px(top - 5.0)) text-anchor="middle" { (text) }
                }
            }
        };
        plot.chart(self.title.to_owned(), self.subtitle, marks)
    }
}
