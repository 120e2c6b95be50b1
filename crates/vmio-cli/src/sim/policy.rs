//! The policies for replaying a trace: vmio's own, and simulated ones.

use std::collections::HashSet;

use anyhow::Context;
use clap::ValueEnum;
use vmio::backing::NullBacking;
use vmio::{Access, Advice, Cache, Engine, EvictionPolicy, FrameHint, Mapping, MappingOptions};
use vmio_report::size::format_size;

use super::formats::PAGE_BYTES;
use super::replacement::{Arc, Clock, Lru, Optimum, Replacement, S3Fifo};
use super::trace::Trace;

/// The memory that a cache of two workers takes beside its pages.
const OVERHEAD_BYTES: u64 = 5 << 20;
/// The pages of a span have page tables and page words of their own, which take at most `TABLE_BYTES`.
const SPAN_BYTES: u64 = 2 << 20;
const TABLE_BYTES: u64 = 2 * PAGE_BYTES;

/// The result of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Misses {
    /// Accesses that had to read.
    pub misses: usize,
    /// Accesses of inactive pages: in memory, but unmapped.
    pub minor_faults: usize,
}

/// A way to choose which page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// vmio's default: S3-FIFO by pages that come back
    Auto,
    /// The same over FrameHint::Mixed, which deactivates pages span by span and sees touches of inactive pages
    AutoMixed,
    /// vmio's FIFO with further rounds for pages that come back
    KeepRefaulted,
    /// The same over FrameHint::Mixed
    Mixed,
    /// vmio's FIFO
    Fifo,
    /// The same over FrameHint::Mixed: second chance
    SecondChance,
    /// vmio's S3-FIFO over FrameHint::Mixed, which deactivates pages one by one
    VmioS3FifoMixed,
    /// Least recently used
    Lru,
    /// FIFO with a second chance
    Clock,
    /// Adaptive replacement cache
    Arc,
    /// A small FIFO queue, a main one, and ghosts
    S3Fifo,
    /// The best possible, which knows the future
    Optimum,
}

impl Policy {
    /// The policy's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "vmio s3-fifo (the default)",
            Self::AutoMixed => "vmio s3-fifo, mixed (the default)",
            Self::KeepRefaulted => "vmio keep-refaulted",
            Self::Mixed => "vmio keep-refaulted, mixed",
            Self::Fifo => "vmio fifo",
            Self::SecondChance => "vmio fifo, mixed (second chance)",
            Self::VmioS3FifoMixed => "vmio s3-fifo by page, mixed",
            Self::Lru => "LRU",
            Self::Clock => "CLOCK",
            Self::Arc => "ARC",
            Self::S3Fifo => "S3-FIFO",
            Self::Optimum => "optimum (Belady)",
        }
    }

    /// Replays a trace with a cache that has `bytes` for pages.
    pub fn replay(self, trace: &Trace, bytes: u64) -> anyhow::Result<Misses> {
        let (capacity, pages) = ((bytes / PAGE_BYTES) as usize, trace.pages.len());
        match self {
            Self::Auto => replay(trace, EvictionPolicy::Auto, FrameHint::ReadMostly, bytes),
            Self::AutoMixed => replay(trace, EvictionPolicy::Auto, FrameHint::Mixed, bytes),
            Self::KeepRefaulted => replay(trace, EvictionPolicy::KeepRefaulted, FrameHint::ReadMostly, bytes),
            Self::Mixed => replay(trace, EvictionPolicy::KeepRefaulted, FrameHint::Mixed, bytes),
            Self::Fifo => replay(trace, EvictionPolicy::Fifo, FrameHint::ReadMostly, bytes),
            Self::SecondChance => replay(trace, EvictionPolicy::Fifo, FrameHint::Mixed, bytes),
            Self::VmioS3FifoMixed => replay(trace, EvictionPolicy::S3Fifo, FrameHint::Mixed, bytes),
            Self::Lru => Ok(simulate(trace, Lru::new(capacity))),
            Self::Clock => Ok(simulate(trace, Clock::new(capacity, pages))),
            Self::Arc => Ok(simulate(trace, Arc::new(capacity))),
            Self::S3Fifo => Ok(simulate(trace, S3Fifo::new(capacity, pages))),
            Self::Optimum => Ok(simulate(trace, Optimum::new(capacity, pages, &trace.accesses))),
        }
    }
}

fn simulate(trace: &Trace, mut cache: impl Replacement) -> Misses {
    let misses = trace.accesses.iter().enumerate().filter(|(time, page)| !cache.access(**page, *time)).count();
    Misses { misses, minor_faults: 0 }
}

/// Replays a trace through vmio itself.
fn replay(trace: &Trace, policy: EvictionPolicy, frames: FrameHint, bytes: u64) -> anyhow::Result<Misses> {
    let len = trace.offsets().max().unwrap_or(0).saturating_add(PAGE_BYTES);
    let spans = trace.offsets().map(|offset| offset / SPAN_BYTES).collect::<HashSet<_>>().len() as u64;
    let capacity = OVERHEAD_BYTES + spans * TABLE_BYTES + bytes;
    let cache = Cache::builder().engine(Engine::Sigbus).policy(policy).workers(2).capacity(capacity).build();
    let cache = cache.context("cannot build the cache (`vmio doctor` says what is missing)")?;
    let options = MappingOptions::new().access(Access::ReadOnly).frames(frames);
    let mapping = Mapping::open(&cache, NullBacking::new(len), options)
        .with_context(|| format!("cannot map {}: are these page numbers?", format_size(len)))?;
    // The other policies get no advice about coming accesses either.
    mapping.advise(0..len, Advice::Random)?;
    for offset in trace.offsets() {
        // Like a load, but without the trap.
        mapping.ensure(offset..offset + 1)?;
    }
    let stats = cache.stats();
    Ok(Misses { misses: stats.load_misses as usize, minor_faults: stats.minor_faults as usize })
}
