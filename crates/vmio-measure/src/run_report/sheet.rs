//! The charts alone, as one drawing.

use maud::{Markup, PreEscaped, html};
use vmio_report::charts;

use super::Setting;
use crate::matrix::MatrixResult;
use crate::run_charts::RunGroup;

const COLUMNS: usize = 2;
const HEAD: u32 = 76;

/// A document in SVG with all charts, two in a row; each pattern and operation begins a row.
pub fn sheet(setting: &Setting, result: &MatrixResult) -> Markup {
    let subtitle = setting.sizes();
    let groups: Vec<_> = RunGroup::all(result).iter().map(|group| group.charts(&subtitle)).collect();
    let rows: Vec<_> = groups.iter().flat_map(|charts| charts.chunks(COLUMNS)).collect();
    let (chart_width, chart_height) = (charts::WIDTH as u32, charts::HEIGHT as u32);
    let width = chart_width * COLUMNS as u32;
    let height = HEAD + chart_height * rows.len() as u32;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" width=(width) height=(height)
            viewBox={ "0 0 " (width) " " (height) } {
            style { (PreEscaped(charts::style_sheet())) }
            rect class="paper" width=(width) height=(height) {}
            text class="title" x="20" y="34" { "vmio bench map" }
            text class="subtitle" x="20" y="56" {
                @let here = &setting.surroundings;
                (here.processor) ", " (here.memory) " of memory, " (here.kernel) "; " (setting.target) "; " (here.date)
            }
            @for (row, charts) in (0..).zip(rows) {
                @for (column, chart) in (0..).zip(charts) {
                    g transform={ "translate(" (chart_width * column) " " (HEAD + chart_height * row) ")" } {
                        (chart.drawing)
                    }
                }
            }
        }
    }
}
