//! Charts of the results of `bench map`, in SVG.

pub mod axis;
mod bytes_moved;
mod engine_style;
pub mod grouped_bars;
mod latency;
pub mod latency_lines;
pub mod miss_ratio;
pub mod plot;
mod throughput;

use maud::{Markup, html};

use super::engines::EngineKind;
use super::latency_curve::LatencyCurve;
use super::matrix::MatrixResult;
use super::op::Op;
use super::pattern::Pattern;
use super::spec::RunResult;
pub use engine_style::EngineStyle;
pub use miss_ratio::{MissCurve, miss_ratio_chart};
pub use plot::{HEIGHT, WIDTH};

/// A drawing of [`WIDTH`] by [`HEIGHT`].
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Elements of SVG, coloured by [`style_sheet`].
    pub drawing: Markup,
}

/// The runs of one pattern and operation, by rising number of threads.
pub struct RunGroup {
    pattern: Pattern,
    op: Op,
    /// The results with their latencies.
    pub runs: Vec<(RunResult, LatencyCurve)>,
}

impl RunGroup {
    /// All runs, in groups in the order in which their first ran.
    pub fn all(result: &MatrixResult) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (run, curve) in result.runs.iter().zip(&result.curves) {
            let known = groups.iter_mut().find(|group| group.pattern == run.pattern && group.op == run.op);
            let run_and_curve = (run.clone(), curve.clone());
            match known {
                Some(group) => group.runs.push(run_and_curve),
                None => groups.push(Self { pattern: run.pattern, op: run.op, runs: vec![run_and_curve] }),
            }
        }
        for group in &mut groups {
            group.runs.sort_by_key(|(run, _)| run.threads);
        }
        groups
    }

    /// The pattern and the operation.
    pub fn heading(&self) -> String {
        format!("{} {}", self.pattern, self.op)
    }

    /// The charts, each with a line below its title that says what all have in common.
    pub fn charts(&self, subtitle: &str) -> Vec<Chart> {
        let mut charts = latency::charts(self, subtitle);
        charts.push(throughput::chart(self, subtitle));
        charts.push(bytes_moved::chart(self, subtitle));
        charts
    }

    fn engines(&self) -> Vec<EngineKind> {
        let mut engines = Vec::new();
        for (run, _) in &self.runs {
            if !engines.contains(&run.engine) {
                engines.push(run.engine);
            }
        }
        engines
    }

    fn threads(&self) -> Vec<u32> {
        let mut threads: Vec<u32> = self.runs.iter().map(|(run, _)| run.threads).collect();
        threads.dedup();
        threads
    }
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

/// The rules that charts are drawn by, for white and for black paper.
pub fn style_sheet() -> String {
    format!(
        "{}{}@media (prefers-color-scheme: dark) {{\n{}{}}}\n",
        include_str!("charts.css"),
        EngineStyle::rules(false),
        include_str!("charts_dark.css"),
        EngineStyle::rules(true)
    )
}
