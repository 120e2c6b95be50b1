//! `vmio-bench hit`: what a load of a resident page costs beside private anonymous memory.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};
use vmio_measure::child::Spec;
use vmio_measure::content::{PAGE_BYTES, WORD_BYTES, mix64};
use vmio_measure::engines::mmap::LinuxMapping;
use vmio_measure::engines::pointer::PointerAccess;
use vmio_measure::engines::vmio::{Variant, VmioEngine};
use vmio_measure::median::median;
use vmio_measure::side::run_side;
use vmio_measure::target::{Target, TargetArgs};
use vmio_report::output::OutputArgs;
use vmio_report::size::format_size;

const EXAMPLES: &str = "\
Examples:
  vmio-bench hit
  vmio-bench hit --dir /data --size 1G --json -

Loads at random from a range that is fully resident, in turns with loads from private memory of
small pages: the ratio should be 1.00, for a hit runs no instruction of ours.";

/// Measure a hit beside private anonymous memory.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct HitArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Rounds of each
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the child does.
#[derive(Debug, Serialize, Deserialize)]
pub struct HitSpec {
    path: PathBuf,
    size_bytes: u64,
    rounds: u32,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct HitResult {
    size_bytes: u64,
    loads_per_round: u64,
    rounds: u32,
    vmio_ns: f64,
    anonymous_ns: f64,
    /// The median over the rounds of vmio's time by private memory's.
    ratio: f64,
    /// Misses while measuring; anything but 0 means that these were not hits.
    misses: u64,
}

const DEFAULT_SIZE_BYTES: u64 = 256 << 20;
const LOADS_PER_ROUND: u64 = 1 << 21;

impl Spec for HitSpec {
    const NAME: &'static str = "hit";
    type Found = HitResult;
}

/// Runs `vmio-bench hit`.
pub fn run(args: &HitArgs) -> anyhow::Result<()> {
    let target = Target::prepare(&args.target.or_fast_device(), DEFAULT_SIZE_BYTES)?;
    let spec = HitSpec { path: target.path().to_owned(), size_bytes: target.size_bytes(), rounds: args.rounds };
    let result = run_side("loads of resident pages", &target, &spec)?;
    args.output.text(&format!(
        "a load from {} of resident pages: vmio {:.1} ns, private memory {:.1} ns, ratio {:.3}  ({} misses)",
        format_size(result.size_bytes),
        result.vmio_ns,
        result.anonymous_ns,
        result.ratio,
        result.misses
    ))?;
    args.output.results(&[result])
}

/// The child's side.
pub fn measure(spec: &HitSpec) -> anyhow::Result<HitResult> {
    // A quarter more than the range: nothing is evicted.
    let cache_bytes = spec.size_bytes / 4 * 5 + (16 << 20);
    let engine = VmioEngine::open(Variant::Plain, &spec.path, cache_bytes, false)?;
    let private = LinuxMapping::anonymous(spec.size_bytes)?;
    let (ours, theirs) = (engine.pointer(), private.pointer());
    for offset in (0..spec.size_bytes).step_by(PAGE_BYTES as usize) {
        black_box(ours.load_word(offset));
        theirs.store_word(offset, mix64(offset));
    }
    let words = spec.size_bytes / WORD_BYTES;
    let misses = engine.cache_stats().load_misses;
    let mut rounds = Vec::new();
    for round in 0..spec.rounds {
        // Whoever goes first may find the caches in another state: take turns.
        let (first, second) = if round % 2 == 0 { (&ours, &theirs) } else { (&theirs, &ours) };
        let first_ns = load_time_ns(first, words, round);
        let second_ns = load_time_ns(second, words, round);
        rounds.push(if round % 2 == 0 { (first_ns, second_ns) } else { (second_ns, first_ns) });
    }
    let misses = engine.cache_stats().load_misses - misses;
    if rounds.is_empty() {
        bail!("nothing was measured");
    }
    Ok(HitResult {
        size_bytes: spec.size_bytes,
        loads_per_round: LOADS_PER_ROUND,
        rounds: spec.rounds,
        vmio_ns: median(rounds.iter().map(|round| round.0)),
        anonymous_ns: median(rounds.iter().map(|round| round.1)),
        ratio: median(rounds.iter().map(|round| round.0 / round.1)),
        misses,
    })
}

/// The mean time of a load at random.
pub fn load_time_ns(access: &PointerAccess<'_>, words: u64, round: u32) -> f64 {
    let mut state = mix64(u64::from(round));
    let mut sum = 0_u64;
    let start = Instant::now();
    for _ in 0..LOADS_PER_ROUND {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = ((u128::from(state) * u128::from(words)) >> 64) as u64;
        sum = sum.wrapping_add(access.load_word(word * WORD_BYTES));
    }
    black_box(sum);
    start.elapsed().as_nanos() as f64 / LOADS_PER_ROUND as f64
}
