//! Charts of the results of `bench map`.

mod bytes_moved;
mod latency;
mod throughput;

use vmio_report::charts::{Chart, EngineStyle};
use vmio_report::latency_curve::LatencyCurve;

use crate::engines::EngineKind;
use crate::matrix::MatrixResult;
use crate::op::Op;
use crate::pattern::Pattern;
use crate::spec::RunResult;

/// The runs of one pattern and operation, by rising number of threads.
pub struct RunGroup {
    pattern: Pattern,
    op: Op,
    /// The results with their latencies.
    pub runs: Vec<(RunResult, LatencyCurve)>,
}

impl RunGroup {
    /// All runs, in groups in the order of their first runs.
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

/// The look of an engine, which is the same in every chart and report.
fn style_of(engine: EngineKind) -> EngineStyle {
    EngineStyle::numbered(EngineKind::all().position(|other| other == engine).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_engines_have_one_colour() {
        let colours: BTreeSet<_> = EngineKind::all().map(|engine| style_of(engine).class()).collect();
        assert_eq!(colours.len(), EngineKind::all().count(), "{colours:?}");
    }
}
