//! `vmio bench map --quick`: the main results in less than two minutes.

use std::time::Instant;

use anyhow::bail;
use serde_json::{Value, json};
use vmio_report::output::OutputArgs;
use vmio_report::report_file::ReportFile;
use vmio_report::size::format_size;

use crate::content::PAGE_BYTES;
use crate::engines::EngineKind;
use crate::engines::vmio::Variant;
use crate::matrix::{Matrix, MatrixResult};
use crate::op::Op;
use crate::pattern::Pattern;
use crate::priority;
use crate::run_report::{self, Setting};
use crate::tables::{Style, report};
use crate::target::{Target, TargetArgs};
use crate::wrong_words::fail_on_verify_errors;

const WARM_UP_S: f64 = 1.0;
const ALL_ENGINES: [EngineKind; 3] = [EngineKind::Vmio(Variant::Plain), EngineKind::Mmap, EngineKind::Pread];

/// The data and time of the set. The defaults fit two minutes.
pub struct Scale {
    size_bytes: u64,
    cache_bytes: u64,
    measure_s: f64,
}

impl Scale {
    /// The defaults, with what the user has changed.
    pub fn new(size_bytes: Option<u64>, cache_bytes: Option<u64>, measure_s: Option<f64>) -> anyhow::Result<Self> {
        let scale = Scale {
            size_bytes: size_bytes.unwrap_or(1 << 30),
            cache_bytes: cache_bytes.unwrap_or(256 << 20),
            measure_s: measure_s.unwrap_or(3.0),
        };
        if scale.size_bytes < 2 * scale.cache_bytes {
            bail!(
                "--size {} is less than twice the cache of {}: there would be little to see",
                format_size(scale.size_bytes),
                format_size(scale.cache_bytes)
            );
        }
        Ok(scale)
    }

    /// The range with the advice to stay: a quarter of the cache.
    fn range_bytes(&self) -> u64 {
        (self.cache_bytes / 4).next_multiple_of(PAGE_BYTES)
    }
}

/// Collects the results of the parts.
struct Quick<'a> {
    scale: Scale,
    target: Target,
    output: &'a OutputArgs,
    style: Style,
    result: MatrixResult,
}

/// Runs the fixed set.
pub fn run(
    target_args: &TargetArgs,
    scale: Scale,
    output: &OutputArgs,
    report_file: Option<&ReportFile>,
    style: Style,
) -> anyhow::Result<()> {
    let start = Instant::now();
    output.text(
        "Root is used for two things: a zram device (so that the device's speed is not what you see)\n\
         and a memory cgroup (so that Linux mmap gets the same budget). Without root a file in this\n\
         folder is used, and Linux mmap is left out.\n",
    )?;
    let target_args = TargetArgs { size: Some(scale.size_bytes), ..target_args.or_fast_device() };
    let target = Target::prepare(&target_args, scale.size_bytes)?;
    output.text(&format!("Runs on {} with a cache of {}.\n", target.description(), format_size(scale.cache_bytes)))?;

    let mut quick = Quick { scale, target, output, style, result: MatrixResult::default() };
    quick.bounded_memory()?;
    let priority = quick.priority()?;
    quick.part(
        "3. The tail: while nine in ten operations take microseconds, what the unlucky ones wait is what users feel.",
        &[Pattern::Uniform],
        &[Op::Read, Op::Write],
        &[2],
    )?;
    quick.part(
        "4. Zipf 0.99: a few pages are popular, as in most stores; here a cache earns its keep.",
        &[Pattern::Zipf(0.99)],
        &[Op::Read],
        &[2],
    )?;
    quick.part(
        "5. Uniform: every page as likely as any other, the worst case for a cache; uncached pread may win.",
        &[Pattern::Uniform],
        &[Op::Read],
        &[1, 8],
    )?;
    output.text(&format!("Done in {:.0} s.", start.elapsed().as_secs_f64()))?;

    let runs = &quick.result.runs;
    let of_priority = priority.iter().map(|result| result.verify_errors);
    let verify_errors = runs.iter().map(|run| run.verify_errors).chain(of_priority).sum();
    let mut all = runs.iter().map(serde_json::to_value).collect::<Result<Vec<Value>, _>>()?;
    all.push(json!({ "scenario": "priority", "results": priority }));
    output.results(&all)?;
    if let Some(file) = report_file {
        run_report::write(
            file,
            &Setting::now(&quick.target, quick.scale.cache_bytes, quick.scale.measure_s),
            &quick.result,
        )?;
        output.text(&file.notice())?;
    }
    fail_on_verify_errors(verify_errors)
}

impl Quick<'_> {
    fn matrix(&self, patterns: &[Pattern], ops: &[Op], threads: &[u32]) -> Matrix {
        Matrix {
            engines: ALL_ENGINES.to_vec(),
            patterns: patterns.to_vec(),
            ops: ops.to_vec(),
            threads: threads.to_vec(),
            cache_bytes: self.scale.cache_bytes,
            measure_s: self.scale.measure_s,
            warm_up_s: WARM_UP_S,
            breakdown: false,
            without: Vec::new(),
        }
    }

    fn part(&mut self, sentence: &str, patterns: &[Pattern], ops: &[Op], threads: &[u32]) -> anyhow::Result<()> {
        self.output.text(sentence)?;
        let result = self.matrix(patterns, ops, threads).run(&self.target)?;
        self.output.text(&report(&result, self.style))?;
        self.result.append(result);
        Ok(())
    }

    fn bounded_memory(&mut self) -> anyhow::Result<()> {
        self.output.text(&format!(
            "1. A file four times the cache, loads and stores all over it: resident memory stays within {} and a little.",
            format_size(self.scale.cache_bytes)
        ))?;
        let mut matrix = self.matrix(&[Pattern::Uniform], &[Op::Mixed(50)], &[2]);
        matrix.engines = vec![EngineKind::Vmio(Variant::Plain)];
        let result = matrix.run(&self.target)?;
        for (run, resident) in result.runs.iter().zip(&result.resident) {
            let max_rss_bytes = run.max_rss_bytes.unwrap_or(resident.max_bytes);
            self.output.text(&format!(
                "   {:.0} thousand operations a second over {}; resident at most {} ({:.1} % of the cache), \
                 by {} samples at most {}; {} verify errors\n",
                run.ops_per_s / 1e3,
                format_size(run.size_bytes),
                format_size(max_rss_bytes),
                max_rss_bytes as f64 / self.scale.cache_bytes as f64 * 100.0,
                resident.samples,
                format_size(resident.max_bytes),
                run.verify_errors
            ))?;
        }
        self.result.append(result);
        Ok(())
    }

    fn priority(&self) -> anyhow::Result<Vec<priority::PriorityResult>> {
        self.output.text(
            "2. Priority: a range that you mark stays in memory, without a miss, while everything else streams by.",
        )?;
        let range_bytes = self.scale.range_bytes();
        let stream_bytes = self.target.size_bytes() - range_bytes;
        let (results, text) = priority::compare(&self.target, range_bytes, stream_bytes, self.scale.cache_bytes)?;
        self.output.text(&text)?;
        Ok(results)
    }
}
