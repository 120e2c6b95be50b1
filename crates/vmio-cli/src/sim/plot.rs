//! `--report`: the misses of every policy against the size of the cache, in a file to look at and to pass on.

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use vmio_report::charts::{self, Chart, MissCurve, miss_ratio_chart};
use vmio_report::page::META;
use vmio_report::report_file::ReportFile;

use super::outcome::Outcome;

/// Parses a path of the command line.
pub fn parse_file(text: &str) -> Result<ReportFile, String> {
    let file = ReportFile::parse(text)?;
    match file.is_svg() || file.path().extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html")) {
        true => Ok(file),
        false => Err(format!("{text:?} ends in neither .html nor .svg: name a file such as misses.html")),
    }
}

/// Draws the outcomes of a trace.
pub fn write(file: &ReportFile, about: &str, outcomes: &[Outcome], inputs: &[&Path]) -> anyhow::Result<()> {
    let chart = miss_ratio_chart("Misses by policy", about, &curves(outcomes));
    let text = if file.is_svg() { drawing(&chart) } else { page(&chart, about) };
    file.write_text_from(&text.into_string(), inputs)
}

fn curves(outcomes: &[Outcome]) -> Vec<MissCurve> {
    let mut curves: Vec<MissCurve> = Vec::new();
    for outcome in outcomes {
        let point = (outcome.cache_bytes, outcome.miss_ratio);
        match curves.iter_mut().find(|curve| curve.policy == outcome.policy) {
            Some(curve) => curve.points.push(point),
            None => curves.push(MissCurve { policy: outcome.policy, points: vec![point] }),
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by_key(|(bytes, _)| *bytes));
    curves
}

fn drawing(chart: &Chart) -> Markup {
    let (width, height) = (charts::WIDTH, charts::HEIGHT);
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" width=(width) height=(height)
            viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(chart.title) {
            style { (PreEscaped(charts::style_sheet())) }
            (chart.drawing)
        }
    }
}

fn page(chart: &Chart, about: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            // Closed as XML wants it, so that programs too can read the page.
            head { (PreEscaped(META)) title { "vmio sim: " (about) } }
            body { (drawing(chart)) }
        }
    }
}
