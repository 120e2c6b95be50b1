//! Measures one phase of one engine, in its own process.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;

use super::client::{Client, Tally, run};
use super::engine::Stores;
use super::records::ValuePool;
use super::spec::{KvResult, KvSpec};
use super::workload::{Inserts, Phase};
use crate::block_trace::BlockTrace;
use crate::device_counters::DeviceCounters;
use crate::process::{self, Usage};

/// The warm-up is this fraction of the operations.
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
            // Device work of the warm-up does not count.
            engine.flush()?;
        }
    }
    let device = DeviceCounters::now(&spec.setup.folder)?;
    // Without a block device there is nothing to trace.
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
        scan_records: spec.scan_records,
        filter_bytes: spec.setup.filter_bytes,
        durability: spec.durability,
        keyspaces: spec.setup.keyspaces,
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
