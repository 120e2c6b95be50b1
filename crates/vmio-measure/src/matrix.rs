//! The runs of `vmio bench map`: every engine, pattern, operation and number of threads.

use vmio_report::latency_curve::LatencyCurve;

use crate::cgroup::MemoryCgroup;
use crate::child::{self, Killed, ResidentRange};
use crate::device_cache::drop_page_cache;
use crate::engines::EngineKind;
use crate::engines::vmio::Variant;
use crate::op::Op;
use crate::pattern::Pattern;
use crate::spec::{MeasuredRun, RunResult, RunSpec};
use crate::target::Target;

/// The parameters of the runs, of which there is one for each combination.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The engines.
    pub engines: Vec<EngineKind>,
    /// The patterns of pages.
    pub patterns: Vec<Pattern>,
    /// The kinds of operations.
    pub ops: Vec<Op>,
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// The memory budget.
    pub cache_bytes: u64,
    /// The seconds to measure each.
    pub measure_s: f64,
    /// The least seconds to warm up before each.
    pub warm_up_s: f64,
    /// Whether to time the parts of misses.
    pub breakdown: bool,
    /// Features of the kernel that vmio does without.
    pub without: Vec<String>,
}

/// The results in the order of the runs, and the reason for a gap in them.
#[derive(Default)]
pub struct MatrixResult {
    /// The result of each run.
    pub runs: Vec<RunResult>,
    /// The latencies of each run.
    pub curves: Vec<LatencyCurve>,
    /// The resident memory of each run, sampled from outside.
    pub resident: Vec<ResidentRange>,
    /// The reason why a column is missing.
    pub left_out: Option<String>,
}

impl MatrixResult {
    /// Adds the runs of another matrix to these.
    pub fn append(&mut self, mut other: Self) {
        self.runs.append(&mut other.runs);
        self.curves.append(&mut other.curves);
        self.resident.append(&mut other.resident);
        if let Some(why) = other.left_out {
            self.leave_out(why);
        }
    }

    /// Notes why a run is missing, once for each reason.
    fn leave_out(&mut self, why: String) {
        match &mut self.left_out {
            Some(reasons) if reasons.contains(&why) => {}
            Some(reasons) => {
                reasons.push('\n');
                reasons.push_str(&why);
            }
            None => self.left_out = Some(why),
        }
    }
}

impl Matrix {
    /// Runs everything.
    pub fn run(&self, target: &Target) -> anyhow::Result<MatrixResult> {
        let mut result = MatrixResult::default();
        let specs = self.specs(target);
        for (index, spec) in specs.iter().enumerate() {
            let cgroup = match spec.engine {
                EngineKind::Mmap | EngineKind::Vmio(Variant::Managed) => match MemoryCgroup::create(spec.cache_bytes) {
                    Ok(cgroup) => Some(cgroup),
                    Err(error) => {
                        let who = if spec.engine == EngineKind::Mmap { "Linux mmap" } else { "vmio-managed" };
                        result.leave_out(format!(
                            "{who} is left out: it needs a memory cgroup for a budget of its own, and {error:#}"
                        ));
                        continue;
                    }
                },
                EngineKind::Vmio(_) | EngineKind::Pread => None,
            };
            drop_page_cache(target.path())?;
            let what = format!("run {} of {}: {}, {}", index + 1, specs.len(), spec.engine, spec.label());
            let (MeasuredRun { result: mut run, curve }, resident) = match child::run(&what, cgroup.as_ref(), spec) {
                // The peer's end is a result as well, and no reason to lose the others.
                Err(error) if spec.engine == EngineKind::Mmap && error.is::<Killed>() => {
                    result.leave_out(format!("left out: {error}"));
                    continue;
                }
                outcome => outcome?,
            };
            if spec.op.writes() {
                run.verify_errors += target.count_invalid_in_sample(spec.seed)?;
            }
            result.runs.push(run);
            result.curves.push(curve);
            result.resident.push(resident);
        }
        Ok(result)
    }

    fn specs(&self, target: &Target) -> Vec<RunSpec> {
        let mut specs = Vec::new();
        for &pattern in &self.patterns {
            for &op in &self.ops {
                for &threads in &self.threads {
                    for &engine in &self.engines {
                        specs.push(RunSpec {
                            engine,
                            pattern,
                            op,
                            threads,
                            path: target.path().to_owned(),
                            size_bytes: target.size_bytes(),
                            cache_bytes: self.cache_bytes,
                            measure_s: self.measure_s,
                            warm_up_s: self.warm_up_s,
                            breakdown: self.breakdown && engine.is_vmio(),
                            without: self.without.clone(),
                            seed: 0x5eed,
                        });
                    }
                }
            }
        }
        specs
    }
}
