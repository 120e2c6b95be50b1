//! The measurements of this crate, each in a process of its own.

use std::path::PathBuf;

use serde::Deserialize;
use vmio::{FrameHint, MappingOptions};

use crate::engines::EngineKind;
use crate::engines::mmap::LinuxMapping;
use crate::engines::pread::PreadEngine;
use crate::engines::vmio::{Variant, VmioEngine};
use crate::kv::{self, CrashSpec, KvSpec, ReopenSpec, Stores};
use crate::priority::{self, PrioritySpec};
use crate::spec::{MeasuredRun, RunSpec};
use crate::worker;

/// The measurements of a child process, by the names of their specs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// A run of `bench map`.
    Map(RunSpec),
    /// One side of `bench priority`.
    Priority(PrioritySpec),
    /// One phase of one engine of `bench kv`.
    Kv(KvSpec),
    /// A load of `bench kv` in which the process is killed.
    KvCrash(CrashSpec),
    /// Opening a store of `bench kv` again.
    KvReopen(ReopenSpec),
}

impl Job {
    /// Does it in this process, which has entered the cgroup if there is one. Returns the result as JSON.
    pub fn measure(&self, cgroup: Option<PathBuf>, stores: &dyn Stores) -> anyhow::Result<String> {
        let result = match self {
            Job::Map(spec) => serde_json::to_string(&run_map(spec, cgroup)?),
            Job::Priority(spec) => serde_json::to_string(&priority::measure(spec)?),
            Job::Kv(spec) => serde_json::to_string(&kv::measure(spec, stores)?),
            Job::KvCrash(spec) => serde_json::to_string(&kv::load_and_crash(spec, stores)?),
            Job::KvReopen(spec) => serde_json::to_string(&kv::reopen(spec, stores)?),
        };
        Ok(result?)
    }
}

fn run_map(spec: &RunSpec, cgroup: Option<PathBuf>) -> anyhow::Result<MeasuredRun> {
    let write = spec.op.writes();
    match spec.engine {
        EngineKind::Vmio(variant) => {
            let engine = open(variant, spec)?;
            engine.advise_pattern(spec.pattern)?;
            worker::measure(engine, spec)
        }
        EngineKind::Mmap => {
            let engine = LinuxMapping::of_file(&spec.path, spec.size_bytes, write)?.with_cgroup(cgroup);
            engine.advise_pattern(spec.pattern)?;
            worker::measure(engine, spec)
        }
        EngineKind::Pread => worker::measure(PreadEngine::open(&spec.path, write)?, spec),
    }
}

/// Opens a file through a cache of a variant. A plain cache gets huge pages for loads in sequence.
fn open(variant: Variant, spec: &RunSpec) -> anyhow::Result<VmioEngine> {
    let scans = variant == Variant::Plain && !spec.pattern.is_random() && !spec.op.writes();
    let frames = if scans { FrameHint::Stream } else { FrameHint::Auto };
    let times_misses = spec.breakdown && !matches!(variant, Variant::Managed | Variant::Kernel);
    let mut cache = variant.builder().capacity(spec.cache_bytes).measure_misses(times_misses);
    for feature in &spec.without {
        cache = cache.without(feature.parse().map_err(anyhow::Error::msg)?);
    }
    let options = MappingOptions::new().frames(frames).unit(variant.unit());
    VmioEngine::open_through(cache, options, &spec.path, spec.op.writes())
}
