//! The common parts of all charts: title, legend, axes with their grid, and the area for the marks.

use maud::{Markup, html};

use super::Chart;
use super::axis::Axis;
use super::coordinate::px;
use super::engine_style::EngineStyle;

/// The size of every chart.
pub const WIDTH: f64 = 680.0;
/// The size of every chart.
pub const HEIGHT: f64 = 420.0;

const LEFT: f64 = 74.0;
const RIGHT: f64 = WIDTH - 30.0;
const BOTTOM: f64 = HEIGHT - 52.0;
const LEGEND_TOP: f64 = 66.0;
const LEGEND_ROW: f64 = 20.0;
/// A letter's mean width, generously: nothing here can measure text.
const LETTER: f64 = 8.2;

/// The area of a chart inside its axes.
pub struct Plot {
    x: Axis,
    y: Axis,
    legend: Vec<LegendEntry>,
    top: f64,
}

/// An entry of the legend.
pub struct LegendEntry {
    /// Its mark, 22 wide around the height 0.
    pub sample: Markup,
    /// Its text.
    pub name: String,
}

impl LegendEntry {
    const SAMPLE_WIDTH: f64 = 30.0;

    /// A line with the engine's mark.
    pub fn line(style: EngineStyle, name: String) -> Self {
        let sample = html! {
            path class={ "line " (style.class()) } d="M0 0H22" {}
            (style.mark(11.0, 0.0, &name))
        };
        Self { sample, name }
    }

    /// A filled box.
    pub fn area(class: &str, name: String) -> Self {
        let sample = html! { rect class=(class) x="5" y="-6" width="14" height="12" {} };
        Self { sample, name }
    }

    fn width(&self) -> f64 {
        Self::SAMPLE_WIDTH + self.name.chars().count() as f64 * LETTER + 20.0
    }
}

impl Plot {
    /// The area between two axes, under a legend as high as its entries need.
    pub fn new(x: Axis, y: Axis, legend: Vec<LegendEntry>) -> Self {
        let rows = legend_places(&legend).last().map_or(0.0, |(_, row)| row + 1.0);
        Self { x, y, legend, top: LEGEND_TOP + rows * LEGEND_ROW }
    }

    /// The horizontal place of a value.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (RIGHT - LEFT)
    }

    /// The vertical place of a value.
    pub fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.place(value) * (BOTTOM - self.top)
    }

    /// The width of the area.
    pub fn width(&self) -> f64 {
        RIGHT - LEFT
    }

    /// A path through points of the area.
    pub fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let step =
            |(index, (x, y))| format!("{}{} {}", if index == 0 { "M" } else { "L" }, px(self.x(x)), px(self.y(y)));
        points.enumerate().map(step).collect()
    }

    /// The chart with these marks.
    pub fn chart(self, title: String, subtitle: &str, marks: Markup) -> Chart {
        let drawing = html! {
            rect class="paper" width=(px(WIDTH)) height=(px(HEIGHT)) {}
            text class="title" x="20" y="30" { (title) }
            text class="subtitle" x="20" y="49" { (subtitle) }
            @for (entry, (x, row)) in self.legend.iter().zip(legend_places(&self.legend)) {
                g transform={ "translate(" (px(x)) " " (px(LEGEND_TOP + row * LEGEND_ROW)) ")" } {
                    (entry.sample)
                    text class="legend" x=(px(LegendEntry::SAMPLE_WIDTH)) y="4.5" { (entry.name) }
                }
            }
            (self.grid())
            (marks)
        };
        Chart { title, drawing }
    }

    fn grid(&self) -> Markup {
        let (middle_x, middle_y) = (px((LEFT + RIGHT) / 2.0), px((self.top + BOTTOM) / 2.0));
        html! {
            @for tick in &self.x.ticks {
                @let x = px(self.x(tick.value));
                @if self.x.has_grid {
                    path class=(if tick.label.is_some() { "grid" } else { "grid minor" })
                        d={ "M" (x) " " (px(self.top)) "V" (px(BOTTOM)) } {}
                }
                @if let Some(label) = &tick.label {
                    text class="tick" x=(x) y=(px(BOTTOM + 18.0)) text-anchor="middle" { (label) }
                }
            }
            @for tick in &self.y.ticks {
                @let y = self.y(tick.value);
                path class="grid" d={ "M" (px(LEFT)) " " (px(y)) "H" (px(RIGHT)) } {}
                @if let Some(label) = &tick.label {
                    text class="tick" x=(px(LEFT - 8.0)) y=(px(y + 4.0)) text-anchor="end" { (label) }
                }
            }
            path class="axis" d={ "M" (px(LEFT)) " " (px(self.top)) "V" (px(BOTTOM)) "H" (px(RIGHT)) } {}
            text class="label" x=(middle_x) y=(px(HEIGHT - 14.0)) text-anchor="middle" { (self.x.label) }
            text class="label" transform={ "translate(20 " (middle_y) ") rotate(-90)" } text-anchor="middle" {
                (self.y.label)
            }
        }
    }
}

/// The left end and the row of every entry: as many to a row as fit.
fn legend_places(legend: &[LegendEntry]) -> Vec<(f64, f64)> {
    let (mut x, mut row) = (LEFT, 0.0);
    let mut places = Vec::new();
    for entry in legend {
        if x > LEFT && x + entry.width() > RIGHT {
            (x, row) = (LEFT, row + 1.0);
        }
        places.push((x, row));
        x += entry.width();
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_legend_takes_more_rows_and_stays_inside() {
        let entry = |index: u32| LegendEntry::area("read", format!("an engine with a name {index}"));
        let legend: Vec<_> = (0..9).map(entry).collect();
        let places = legend_places(&legend);
        assert!(places.iter().zip(&legend).all(|((x, _), entry)| x + entry.width() <= RIGHT));
        assert!(places.last().is_some_and(|(_, row)| *row >= 2.0));
        let short = Plot::new(Axis::threads(&[1, 2]), Axis::percentiles(), Vec::new());
        let long = Plot::new(Axis::threads(&[1, 2]), Axis::percentiles(), legend);
        assert!(long.top > short.top);
        assert_eq!(long.y(0.0), BOTTOM);
    }
}
