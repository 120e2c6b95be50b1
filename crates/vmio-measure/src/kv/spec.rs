//! One phase of one engine: what is to be done, and what came of it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::{EngineKind, Setup};
use super::records::RecordShape;
use super::scenario::Scenario;
use super::workload::{Distribution, Durability, Phase};
use crate::child::Spec;

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvSpec {
    pub(super) engine: EngineKind,
    pub(super) setup: Setup,
    /// What it is a part of, if it is not YCSB alone.
    pub(super) scenario: Option<Scenario>,
    pub(super) phase: Phase,
    pub(super) distribution: Distribution,
    /// Of a hundred reads so many look for records that are not there.
    pub(super) absent_percent: u32,
    /// Records of a scan, at most.
    pub(super) scan_records: u64,
    /// Records that are there before; in the load phase, those to put.
    pub(super) records: u64,
    pub(super) shape: RecordShape,
    /// Operations of all threads together.
    pub(super) ops: u64,
    pub(super) threads: u32,
    pub(super) durability: Durability,
    /// When operations end though not all are done.
    pub(super) limit: Option<Duration>,
    /// Where what the device is asked for can be traced to.
    pub(super) trace: Option<PathBuf>,
}

impl Spec for KvSpec {
    const NAME: &'static str = "kv";
    type Found = KvResult;
}

/// What it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvResult {
    pub engine: EngineKind,
    pub scenario: Option<Scenario>,
    pub phase: Phase,
    pub distribution: Distribution,
    /// Of a hundred reads so many looked for records that are not there.
    pub absent_percent: u32,
    /// Records of a scan, at most.
    pub scan_records: u64,
    /// What of its memory vmio-kv had for filters of leaves.
    pub filter_bytes: u64,
    pub durability: Durability,
    #[serde(alias = "regions")]
    pub keyspaces: u32,
    /// Records that are there after.
    pub records: u64,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub prefix_bytes: u32,
    pub in_order: bool,
    pub memory_bytes: u64,
    pub threads: u32,
    /// Those that were done.
    pub ops: u64,
    /// Whether the time limit came before all that were wanted.
    pub stopped: bool,
    /// Thousands of operations per second; where there are writes, until all of them are on the device and nothing is left to
    /// be done for them.
    pub kops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    /// Without the time that threads waited for a processor; nothing where the kernel does not tell.
    pub p9999_engine_us: Option<f64>,
    pub max_engine_us: Option<f64>,
    /// The part of the time in which operations were over and their background work was not, in seconds.
    pub flush_s: f64,
    /// CPU time of all threads of the process, in seconds for a million operations.
    pub cpu_s_per_mop: f64,
    /// By the block device's counters; nothing where there is no block device.
    pub dev_read_bytes: Option<u64>,
    pub dev_reads: Option<u64>,
    pub dev_write_bytes: Option<u64>,
    pub dev_writes: Option<u64>,
    /// Average sizes of these requests.
    pub read_request_bytes: Option<f64>,
    pub write_request_bytes: Option<f64>,
    /// R of what the device was asked for, by the kernel's block trace; nothing without the right to one.
    pub randomness: Option<f64>,
    pub read_randomness: Option<f64>,
    pub write_randomness: Option<f64>,
    /// What the files take on the device, closed.
    pub space_bytes: u64,
    pub max_rss_bytes: Option<u64>,
    /// Records that were not there or not what they should be.
    pub errors: u64,
}
