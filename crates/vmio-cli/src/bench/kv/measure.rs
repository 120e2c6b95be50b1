//! One phase of one engine, in a process of its own.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, anyhow};
use hdrhistogram::Histogram;
use kv_peers::{Engine, EngineKind, Setup};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::records::{RecordBuffer, RecordShape, ValuePool, sum};
use super::workload::{Distribution, Durability, Inserts, Operation, Operations, Phase};
use crate::bench::device_counters::DeviceCounters;
use crate::bench::process::{self, Usage};
use crate::bench::worker::new_histogram;

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvSpec {
    pub engine: EngineKind,
    pub setup: Setup,
    pub phase: Phase,
    pub distribution: Distribution,
    /// Records that are there before; in the load phase, those to put.
    pub records: u64,
    pub shape: RecordShape,
    /// Operations of all threads together.
    pub ops: u64,
    pub threads: u32,
    pub durability: Durability,
}

/// What it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvResult {
    pub engine: EngineKind,
    pub phase: Phase,
    pub distribution: Distribution,
    /// Records that are there after.
    pub records: u64,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub memory_bytes: u64,
    pub threads: u32,
    pub ops: u64,
    /// Thousands of operations per second; where there are writes, until all of them are on the device and nothing is left to
    /// be done for them.
    pub kops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    /// The part of the time in which operations were over and their background work was not, in seconds.
    pub flush_s: f64,
    /// CPU time of all threads of the process, in seconds for a million operations.
    pub cpu_s_per_mop: f64,
    /// By the block device's counters; nothing where there is no block device.
    pub dev_read_bytes: Option<u64>,
    pub dev_reads: Option<u64>,
    pub dev_write_bytes: Option<u64>,
    pub dev_writes: Option<u64>,
    /// What the files take on the device, closed.
    pub space_bytes: u64,
    pub max_rss_bytes: Option<u64>,
    /// Records that were not there or not what they should be.
    pub errors: u64,
}

/// One in so many operations is done before, without being counted.
const WARM_UP_PART: u64 = 4;
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the store, runs the phase, and closes it.
pub fn measure(spec: &KvSpec) -> anyhow::Result<KvResult> {
    let engine = spec.engine.open(&spec.setup).with_context(|| format!("cannot open {}", spec.engine))?;
    let is_load = spec.phase == Phase::L;
    let inserts = Inserts::new(if is_load { 0 } else { spec.records }, spec.threads);
    let pool = ValuePool::new(spec.shape);
    let mut clients = (0..spec.threads)
        .map(|thread| Client::new(engine.as_ref(), spec, &pool, &inserts, thread))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if !is_load {
        run(&mut clients, spec, spec.ops / WARM_UP_PART)?;
        clients.iter_mut().for_each(Client::forget);
        if spec.phase.writes() {
            // What is owed to the device for these is not owed by what is measured.
            engine.flush()?;
        }
    }
    let (device, usage, start) = (DeviceCounters::now(&spec.setup.folder)?, Usage::now()?, Instant::now());
    run(&mut clients, spec, if is_load { spec.records } else { spec.ops })?;
    let operated = start.elapsed();
    if spec.phase.writes() {
        engine.flush()?;
    }
    let (elapsed, cpu_s) = (start.elapsed(), Usage::now()?.since(&usage).cpu_s);
    let mut latencies = new_histogram()?;
    clients.iter().try_for_each(|client| latencies.add(&client.latencies))?;
    let errors = clients.iter().map(|client| client.errors).sum();
    std::hint::black_box(clients.iter().fold(0_u64, |sum, client| sum.wrapping_add(client.seen)));
    drop(clients);
    engine.close()?;
    let device = DeviceCounters::now(&spec.setup.folder)?.zip(device).map(|(now, before)| now.since(&before));
    let ops = latencies.len();
    let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(KvResult {
        engine: spec.engine,
        phase: spec.phase,
        distribution: spec.distribution,
        records: inserts.records(),
        key_bytes: spec.shape.key_bytes,
        value_bytes: spec.shape.value_bytes,
        memory_bytes: spec.setup.memory_bytes,
        threads: spec.threads,
        ops,
        kops: ops as f64 / elapsed.as_secs_f64() / 1e3,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        p999_us: microseconds(0.999),
        p9999_us: microseconds(0.9999),
        max_us: latencies.max() as f64 / 1e3,
        flush_s: (elapsed - operated).as_secs_f64(),
        cpu_s_per_mop: cpu_s * 1e6 / ops as f64,
        dev_read_bytes: device.map(|device| device.read_bytes),
        dev_reads: device.map(|device| device.read_requests),
        dev_write_bytes: device.map(|device| device.writes.bytes),
        dev_writes: device.map(|device| device.writes.requests),
        space_bytes: allocated_bytes(&spec.setup.folder)?,
        max_rss_bytes: process::max_rss_bytes(),
        errors,
    })
}

/// Has all clients do their share of so many operations, and makes their writes durable meanwhile.
fn run(clients: &mut [Client<'_>], spec: &KvSpec, ops: u64) -> anyhow::Result<()> {
    let Some(first) = clients.first() else { return Ok(()) };
    let engine = first.engine;
    let share = ops.div_ceil(u64::from(spec.threads));
    thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let syncing = (spec.durability == Durability::Periodic && spec.phase.writes()).then(|| {
            scope.spawn(move || {
                while ended.recv_timeout(SYNC_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    engine.sync()?;
                }
                anyhow::Ok(())
            })
        });
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || client.operate(share))).collect();
        let panicked = |_| anyhow!("a thread of the benchmark panicked");
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(panicked)?).collect();
        drop(running);
        outcomes.into_iter().collect::<anyhow::Result<()>>()?;
        syncing.map_or(Ok(()), |syncing| syncing.join().map_err(panicked)?)
    })
}

/// A thread that uses the store.
struct Client<'a> {
    engine: &'a dyn Engine,
    operations: Operations<'a>,
    inserts: &'a Inserts,
    thread: u32,
    record: RecordBuffer<'a>,
    random: SmallRng,
    latencies: Histogram<u64>,
    errors: u64,
    /// A sum of all that was read.
    seen: u64,
}

impl<'a> Client<'a> {
    fn new(
        engine: &'a dyn Engine,
        spec: &KvSpec,
        pool: &'a ValuePool,
        inserts: &'a Inserts,
        thread: u32,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            engine,
            operations: Operations::new(spec.phase, spec.distribution, inserts, thread)?,
            inserts,
            thread,
            record: RecordBuffer::new(pool, spec.shape),
            random: SmallRng::seed_from_u64(u64::from(thread) << 8 | spec.phase as u64),
            latencies: new_histogram()?,
            errors: 0,
            seen: 0,
        })
    }

    /// Forgets the latencies, not the errors.
    fn forget(&mut self) {
        self.latencies.reset();
    }

    fn operate(&mut self, count: u64) -> anyhow::Result<()> {
        for _ in 0..count {
            let operation = self.operations.next(&mut self.random);
            let start = Instant::now();
            match operation {
                Operation::Read(number) => self.read(number)?,
                Operation::Update(number) => self.put(number)?,
                Operation::Insert(number) => {
                    self.put(number)?;
                    self.inserts.done(self.thread);
                }
                Operation::ReadUpdate(number) => {
                    self.read(number)?;
                    self.put(number)?;
                }
                Operation::Scan(number, records) => self.scan(number, records)?,
            }
            self.latencies.saturating_record((start.elapsed().as_nanos() as u64).max(1));
        }
        Ok(())
    }

    fn put(&mut self, number: u64) -> anyhow::Result<()> {
        let (key, value) = self.record.record(number, &mut self.random);
        self.engine.put(key, value)
    }

    fn read(&mut self, number: u64) -> anyhow::Result<()> {
        self.record.key(number);
        let (record, mut seen, mut is_right) = (&self.record, 0, false);
        self.engine.get(record.last_key(), &mut |value| {
            seen = sum(value);
            is_right = record.is_value_of(record.last_key(), value);
        })?;
        self.note(seen, is_right);
        Ok(())
    }

    fn scan(&mut self, number: u64, records: usize) -> anyhow::Result<()> {
        self.record.key(number);
        let (record, mut seen, mut is_right) = (&self.record, 0_u64, true);
        let mut begins_right = false;
        let mut is_first = true;
        self.engine.scan(record.last_key(), records, &mut |key, value| {
            seen = seen.wrapping_add(sum(value));
            is_right &= record.is_value_of(key, value);
            if is_first {
                begins_right = key == record.last_key();
            }
            is_first = false;
        })?;
        self.note(seen, is_right && begins_right);
        Ok(())
    }

    fn note(&mut self, seen: u64, is_right: bool) {
        self.seen = self.seen.wrapping_add(seen);
        self.errors += u64::from(!is_right);
    }
}

/// Bytes that the files of a folder take.
fn allocated_bytes(folder: &Path) -> anyhow::Result<u64> {
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
