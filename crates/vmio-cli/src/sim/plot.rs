//! `--plot`: the misses of every policy against the size of the cache, in a file to look at and to pass on.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Outcome;
use crate::bench::charts::{self, Chart, MissCurve, miss_ratio_chart};

/// A file to write.
#[derive(Clone, Debug)]
pub struct PlotFile {
    path: PathBuf,
    is_svg: bool,
}

impl PlotFile {
    /// Takes a path from the command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("svg") => Ok(Self { path, is_svg: true }),
            Some("html") => Ok(Self { path, is_svg: false }),
            _ => Err(format!("{text:?} ends in neither .html nor .svg")),
        }
    }

    /// Draws the outcomes of a trace.
    pub fn write(&self, about: &str, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let chart = miss_ratio_chart("Misses by policy", about, &curves(outcomes));
        let text = if self.is_svg { drawing(&chart) } else { page(&chart, about) };
        fs::write(&self.path, text.into_string()).with_context(|| format!("cannot write {}", self.path.display()))
    }
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
            head { (PreEscaped(r#"<meta charset="utf-8"/>"#)) title { "vmio sim: " (about) } }
            body { (drawing(chart)) }
        }
    }
}
