//! One run of `vmio bench map`: its parameters and its result.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vmio_report::latency_curve::LatencyCurve;

use crate::child::Spec;
use crate::engines::EngineKind;
use crate::op::Op;
use crate::pattern::Pattern;

/// The parameters of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunSpec {
    /// The engine.
    pub engine: EngineKind,
    /// The pattern of pages.
    pub pattern: Pattern,
    /// The kind of operations.
    pub op: Op,
    /// The number of threads.
    pub threads: u32,
    /// The file or device.
    pub path: PathBuf,
    /// The bytes of it to use.
    pub size_bytes: u64,
    /// The memory budget.
    pub cache_bytes: u64,
    /// The seconds to measure.
    pub measure_s: f64,
    /// The least seconds to warm up.
    pub warm_up_s: f64,
    /// Whether to time the parts of every miss.
    pub breakdown: bool,
    /// Features of the kernel that vmio does without, by name.
    pub without: Vec<String>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Spec for RunSpec {
    const NAME: &'static str = "map";
    type Found = MeasuredRun;
}

impl RunSpec {
    /// The parameters that runs of different engines have in common.
    pub fn label(&self) -> String {
        format!("{} {}, {}", self.pattern, self.op, threads_label(self.threads))
    }
}

/// `1 thread`, `2 threads`.
pub fn threads_label(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// The output of a run's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct MeasuredRun {
    /// The result to publish.
    pub result: RunResult,
    /// The latencies of all operations, for charts.
    pub curve: LatencyCurve,
}

/// The result of one run. Null where an engine cannot know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// The engine.
    pub engine: EngineKind,
    /// The pattern of pages.
    pub pattern: Pattern,
    /// The kind of operations.
    pub op: Op,
    /// The number of threads.
    pub threads: u32,
    /// Features of the kernel that vmio did without, by name.
    pub without: Vec<String>,
    /// The file's size.
    pub size_bytes: u64,
    /// The memory budget.
    pub cache_bytes: u64,
    /// Operations per second of all threads together.
    pub ops_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// The latency that one operation in 100 exceeds.
    pub p99_us: f64,
    /// The latency that one operation in 1000 exceeds.
    pub p999_us: f64,
    /// The worst latency.
    pub max_us: f64,
    /// Device bytes read while measuring, by the kernel's count for the process.
    pub read_bytes: u64,
    /// Device bytes written while measuring, by the kernel's count for the process.
    pub write_bytes: u64,
    /// CPU seconds per million operations.
    pub cpu_s_per_mop: f64,
    /// The largest resident set of the process.
    pub max_rss_bytes: Option<u64>,
    /// TLB shootdowns the engine asked for.
    pub shootdowns: Option<u64>,
    /// Words with a wrong value, while running and in the file afterwards.
    pub verify_errors: u64,
    /// The cache's counts while measuring.
    pub stats: Option<CacheReport>,
}

/// The cache's counts while measuring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheReport {
    /// The part of all operations that found their page.
    pub hit_ratio: f64,
    /// Loads that had to wait for a page.
    pub load_misses: u64,
    /// Stores that had to wait for a page.
    pub store_misses: u64,
    /// Stores to resident clean pages.
    pub write_protect_faults: u64,
    /// Misses that found another thread already reading the page.
    pub fault_waits: u64,
    /// Pages read before an access asked for them.
    pub read_ahead_pages: u64,
    /// Evicted pages that needed no write.
    pub evicted_clean: u64,
    /// Evicted pages that had been written.
    pub evicted_dirty: u64,
    /// Misses that had to evict by themselves.
    pub direct_reclaims: u64,
    /// Bytes the cache read.
    pub read_bytes: u64,
    /// Reads the cache made.
    pub reads: u64,
    /// Bytes the cache wrote.
    pub written_bytes: u64,
    /// Writes the cache made.
    pub writes: u64,
    /// Writes made by throttled writers.
    pub helped_writes: u64,
    /// TLB shootdowns of eviction.
    pub shootdowns_evict: u64,
    /// TLB shootdowns of write-back.
    pub shootdowns_write_back: u64,
    /// TLB shootdowns of stores.
    pub shootdowns_store: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Mean latency of the fastest operations, in the number of the hits.
    pub hit_mean_us: Option<f64>,
    /// Mean latency of the other operations.
    pub miss_mean_us: Option<f64>,
    /// The parts of a miss.
    pub miss_parts: Option<MissParts>,
}

/// The parts of a mean miss's time, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MissParts {
    /// Into the kernel, to the handler and back; with more threads than cores, also the wait for a core.
    pub trap_us: f64,
    /// Getting a place in the cache.
    pub cache_us: f64,
    /// Reading the page.
    pub io_us: f64,
    /// Putting the page into the page table.
    pub install_us: f64,
    /// Everything else in the handler.
    pub other_us: f64,
}
