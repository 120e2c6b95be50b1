//! One phase of one engine: its parameters and its result.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::{EngineKind, Setup};
use super::records::RecordShape;
use super::scenario::Scenario;
use super::workload::{Distribution, Durability, Phase};
use crate::child::Spec;

/// The parameters for the child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvSpec {
    pub(super) engine: EngineKind,
    pub(super) setup: Setup,
    /// The scenario, if it is not YCSB alone.
    pub(super) scenario: Option<Scenario>,
    pub(super) phase: Phase,
    pub(super) distribution: Distribution,
    /// Percentage of reads that look for absent records.
    pub(super) absent_percent: u32,
    /// Records of a scan, at most.
    pub(super) scan_records: u64,
    /// Records in the store before the phase; in the load phase, the records to put.
    pub(super) records: u64,
    pub(super) shape: RecordShape,
    /// Operations of all threads together.
    pub(super) ops: u64,
    pub(super) threads: u32,
    pub(super) durability: Durability,
    /// Time at which the operations end, complete or not.
    pub(super) limit: Option<Duration>,
    /// Buffers for a trace of the device's requests.
    pub(super) trace: Option<PathBuf>,
}

impl Spec for KvSpec {
    const NAME: &'static str = "kv";
    type Found = KvResult;
}

/// The child's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvResult {
    pub engine: EngineKind,
    pub scenario: Option<Scenario>,
    pub phase: Phase,
    pub distribution: Distribution,
    /// Percentage of reads that looked for absent records.
    pub absent_percent: u32,
    /// Records of a scan, at most.
    pub scan_records: u64,
    /// The part of its memory that vmio-kv had for leaf filters.
    pub filter_bytes: u64,
    pub durability: Durability,
    #[serde(alias = "regions")]
    pub keyspaces: u32,
    /// Records in the store after the phase.
    pub records: u64,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub prefix_bytes: u32,
    pub in_order: bool,
    pub memory_bytes: u64,
    pub threads: u32,
    /// Completed operations.
    pub ops: u64,
    /// Whether the time limit came before the last operation.
    pub stopped: bool,
    /// Thousands of operations per second. With writes, the time includes all work until they are on the device and nothing is left to do.
    pub kops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    /// Without threads' waits for a processor; `None` if the kernel does not count them.
    pub p9999_engine_us: Option<f64>,
    pub max_engine_us: Option<f64>,
    /// Seconds after the last operation in which background work went on.
    pub flush_s: f64,
    /// CPU time of all threads of the process, in seconds for a million operations.
    pub cpu_s_per_mop: f64,
    /// From the block device's counters; `None` without a block device.
    pub dev_read_bytes: Option<u64>,
    pub dev_reads: Option<u64>,
    pub dev_write_bytes: Option<u64>,
    pub dev_writes: Option<u64>,
    /// Average sizes of these requests.
    pub read_request_bytes: Option<f64>,
    pub write_request_bytes: Option<f64>,
    /// R of the device's requests, from the kernel's block trace; `None` without permission for one.
    pub randomness: Option<f64>,
    pub read_randomness: Option<f64>,
    pub write_randomness: Option<f64>,
    /// Bytes of the closed store's files on the device.
    pub space_bytes: u64,
    pub max_rss_bytes: Option<u64>,
    /// Records that were missing or wrong.
    pub errors: u64,
}
