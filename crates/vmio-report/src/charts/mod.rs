//! Charts in SVG.

pub mod axis;
pub mod coordinate;
mod engine_style;
pub mod grouped_bars;
pub mod latency_lines;
mod miss_ratio;
pub mod plot;

use maud::{Markup, html};

pub use engine_style::EngineStyle;
pub use miss_ratio::{MissCurve, miss_ratio_chart};
pub use plot::{HEIGHT, WIDTH};

/// A drawing of [`WIDTH`] by [`HEIGHT`].
pub struct Chart {
    /// The title of the chart.
    pub title: String,
    /// Elements of SVG, coloured by [`style_sheet`].
    pub drawing: Markup,
}

/// A chart to put into a page.
pub fn figure(chart: &Chart) -> Markup {
    let size = format!("0 0 {WIDTH} {HEIGHT}");
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox=(size) role="img" aria-label=(chart.title) {
            (chart.drawing)
        }
    }
}

/// The style rules of charts, for white and for black paper.
pub fn style_sheet() -> String {
    format!(
        "{}{}@media (prefers-color-scheme: dark) {{\n{}{}}}\n",
        include_str!("charts.css"),
        EngineStyle::rules(false),
        include_str!("charts_dark.css"),
        EngineStyle::rules(true)
    )
}
