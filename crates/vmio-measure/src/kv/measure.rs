//! One phase of one engine, in a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::engine::{EngineKind, Setup, Stores};
use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::client::{Client, Tally, run};
use super::records::{RecordShape, ValuePool};
use super::scenario::Scenario;
use super::workload::{Distribution, Durability, Inserts, Phase};
use crate::block_trace::BlockTrace;
use crate::device_counters::DeviceCounters;
use crate::process::{self, Usage};

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

/// What it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvResult {
    pub engine: EngineKind,
    pub scenario: Option<Scenario>,
    pub phase: Phase,
    pub distribution: Distribution,
    /// Of a hundred reads so many looked for records that are not there.
    pub absent_percent: u32,
    /// What of its memory vmio-kv had for filters of leaves.
    pub filter_bytes: u64,
    pub durability: Durability,
    pub regions: u32,
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

/// One in so many operations is done before, without being counted.
const WARM_UP_PART: u64 = 4;

/// Opens the store, runs the phase, and closes it.
pub fn measure(spec: &KvSpec, stores: &dyn Stores) -> anyhow::Result<KvResult> {
    let engine = stores.open(spec.engine, &spec.setup).with_context(|| format!("cannot open {}", spec.engine))?;
    let is_load = spec.phase == Phase::L;
    let inserts = Inserts::new(if is_load { 0 } else { spec.records }, spec.threads);
    let pool = ValuePool::new(spec.shape);
    let mut clients = (0..spec.threads)
        .map(|thread| Client::new(engine.as_ref(), spec, &pool, &inserts, thread))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if spec.phase.warms_up() {
        let limit = spec.limit.map(|limit| Instant::now() + limit / WARM_UP_PART as u32);
        run(&mut clients, spec, spec.ops / WARM_UP_PART, limit)?;
        clients.iter_mut().for_each(Client::forget);
        if spec.phase.writes() {
            // What is owed to the device for these is not owed by what is measured.
            engine.flush()?;
        }
    }
    let device = DeviceCounters::now(&spec.setup.folder)?;
    // Where there is no block device, there is nothing to trace.
    let trace = spec.trace.as_ref().and_then(|buffers| BlockTrace::start(buffers, &spec.setup.folder).ok());
    let (usage, start) = (Usage::now()?, Instant::now());
    run(&mut clients, spec, spec.ops, spec.limit.map(|limit| start + limit))?;
    if is_load {
        clients.iter_mut().try_for_each(|client| client.catch_up(&inserts))?;
    }
    let operated = start.elapsed();
    if spec.phase.writes() {
        engine.flush()?;
    }
    let (elapsed, cpu_s) = (start.elapsed(), Usage::now()?.since(&usage).cpu_s);
    let mut tally = Tally::new()?;
    clients.iter().try_for_each(|client| tally.add(&client.tally))?;
    drop(clients);
    engine.close()?;
    let device = DeviceCounters::now(&spec.setup.folder)?.zip(device).map(|(now, before)| now.since(&before));
    let randomness = trace.and_then(|trace| trace.finish().ok()).unwrap_or_default();
    let ops = tally.latencies.len();
    let microseconds = |quantile| tally.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let engine_us =
        |quantile| tally.engine_latencies.as_ref().map(|latencies| latencies.value_at_quantile(quantile) as f64 / 1e3);
    let average = |bytes: u64, requests: u64| (requests > 0).then(|| bytes as f64 / requests as f64);
    Ok(KvResult {
        engine: spec.engine,
        scenario: spec.scenario,
        phase: spec.phase,
        distribution: spec.distribution,
        absent_percent: spec.absent_percent,
        filter_bytes: spec.setup.filter_bytes,
        durability: spec.durability,
        regions: spec.setup.regions,
        records: inserts.records(),
        key_bytes: spec.shape.key_bytes,
        value_bytes: spec.shape.value_bytes,
        prefix_bytes: spec.shape.prefix_bytes,
        in_order: spec.shape.in_order,
        memory_bytes: spec.setup.memory_bytes,
        threads: spec.threads,
        ops,
        stopped: tally.is_stopped,
        kops: ops as f64 / elapsed.as_secs_f64() / 1e3,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        p999_us: microseconds(0.999),
        p9999_us: microseconds(0.9999),
        max_us: microseconds(1.0),
        p9999_engine_us: engine_us(0.9999),
        max_engine_us: engine_us(1.0),
        flush_s: (elapsed - operated).as_secs_f64(),
        cpu_s_per_mop: cpu_s * 1e6 / ops.max(1) as f64,
        dev_read_bytes: device.map(|device| device.read_bytes),
        dev_reads: device.map(|device| device.read_requests),
        dev_write_bytes: device.map(|device| device.writes.bytes),
        dev_writes: device.map(|device| device.writes.requests),
        read_request_bytes: device.and_then(|device| average(device.read_bytes, device.read_requests)),
        write_request_bytes: device.and_then(|device| average(device.writes.bytes, device.writes.requests)),
        randomness: randomness.all,
        read_randomness: randomness.reads,
        write_randomness: randomness.writes,
        space_bytes: allocated_bytes(&spec.setup.folder)?,
        max_rss_bytes: process::max_rss_bytes(),
        errors: tally.errors,
    })
}

/// Bytes that the files of a folder take.
pub fn allocated_bytes(folder: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK_BYTES: u64 = 512;
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += metadata.blocks() * BLOCK_BYTES;
        if metadata.is_dir() {
            bytes += allocated_bytes(&entry.path())?;
        }
    }
    Ok(bytes)
}
