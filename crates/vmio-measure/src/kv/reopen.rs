//! Opens a store again: after a close, and after its process was killed during a load.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};

use super::client::{Client, run};
use super::engine::{Engine, EngineKind, Stores};
use super::measure::allocated_bytes;
use super::records::{RecordBuffer, ValuePool};
use super::scenario::Scenario;
use super::spec::KvSpec;
use super::workload::{Durability, Inserts};
use crate::child::Spec;
use crate::device_counters::DeviceCounters;
use crate::process;

/// A load that does not end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CrashSpec {
    /// The load.
    pub load: KvSpec,
    /// The file that records the state at the kill.
    pub note: PathBuf,
}

impl Spec for CrashSpec {
    const NAME: &'static str = "kvcrash";
    type Found = ();
}

/// The state of a load when its process was killed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Crash {
    /// Records put so far.
    pub records: u64,
    /// Records that a sync, or their own writes, had made durable.
    pub durable_records: u64,
    /// How full its memtables were.
    pub memory_fill: Option<f64>,
}

/// Memtables fuller than this count as full. An engine that reports their fill is full when its writers wait.
const FULL: f64 = 0.9;
const LOOK: Duration = Duration::from_micros(200);
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Loads records, and kills this process: once memtables are full and at least half of all records are there; if the engine does not report
/// the fill, at three quarters of the records; in any case when all are there.
pub fn load_and_crash(spec: &CrashSpec, stores: &dyn Stores) -> anyhow::Result<()> {
    // The thread below syncs, and remembers the records that are durable by then.
    let load = KvSpec { durability: Durability::None, ..spec.load.clone() };
    let durability = spec.load.durability;
    let engine = stores.open(load.engine, &load.setup).with_context(|| format!("cannot open {}", load.engine))?;
    let engine: &dyn Engine = engine.as_ref();
    let inserts = Inserts::new(0, load.threads);
    let pool = ValuePool::new(load.shape);
    let clients: anyhow::Result<Vec<_>> =
        (0..load.threads).map(|thread| Client::new(engine, &load, &pool, &inserts, thread)).collect();
    let mut clients = clients?;
    thread::scope(|scope| {
        let (loading, loaded) = mpsc::channel::<()>();
        let load = &load;
        let loader = scope.spawn(move || {
            let outcome = run(&mut clients, load, load.ops, None);
            drop(loading);
            outcome
        });
        let (mut durable_records, mut synced) = (0, Instant::now());
        while loaded.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let (records, memory_fill) = (inserts.records(), engine.memory_fill());
            let is_due = memory_fill
                .map_or(records >= load.ops / 4 * 3, |memory_fill| memory_fill >= FULL && records >= load.ops / 2);
            if durability == Durability::Sync {
                durable_records = records;
            }
            if is_due {
                Crash { records, durable_records, memory_fill }.happen(&spec.note)?;
            }
            if durability == Durability::Periodic && synced.elapsed() >= SYNC_INTERVAL {
                engine.sync()?;
                (durable_records, synced) = (records, Instant::now());
            }
        }
        loader.join().map_err(|_| anyhow!("a thread of the benchmark panicked"))??;
        let records = inserts.records();
        if durability == Durability::Sync {
            durable_records = records;
        }
        Crash { records, durable_records, memory_fill: engine.memory_fill() }.happen(&spec.note)
    })
}

impl Crash {
    /// Records the state, and kills this process.
    fn happen(self, note: &Path) -> anyhow::Result<()> {
        fs::write(note, serde_json::to_string(&self)?).with_context(|| format!("cannot write {}", note.display()))?;
        // SAFETY: sends a signal to this process, and touches no memory.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        Ok(())
    }

    /// The recorded state; `None` if the process did not get so far.
    pub fn noted(note: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(note).ok()?).ok()
    }
}

/// A second opening of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReopenSpec {
    /// How the store was loaded.
    pub load: KvSpec,
    /// Records that the load put.
    pub records: u64,
    /// Records that must be there.
    pub durable_records: u64,
    /// How full the memtables were when the process was killed.
    pub memory_fill: Option<f64>,
}

impl Spec for ReopenSpec {
    const NAME: &'static str = "kvreopen";
    type Found = ReopenResult;
}

/// Result of a second opening.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReopenResult {
    pub engine: EngineKind,
    pub scenario: Option<Scenario>,
    pub durability: Durability,
    /// Records that the load put.
    pub records: u64,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub memory_bytes: u64,
    pub threads: u32,
    /// How full the memtables were when the process was killed, if the engine reports it.
    pub memory_fill: Option<f64>,
    /// Seconds until the store was open.
    pub open_s: f64,
    /// Time of the first read after that.
    pub first_read_us: f64,
    /// The log that opening has read, if the engine reports it.
    pub replayed_records: Option<u64>,
    pub replayed_log_bytes: Option<u64>,
    /// Records whose put had returned and that are not there: none of them was durable.
    pub lost_records: u64,
    /// The bytes that the device read for opening and for that read.
    pub dev_read_bytes: Option<u64>,
    pub dev_write_bytes: Option<u64>,
    pub space_bytes: u64,
    pub max_rss_bytes: Option<u64>,
    /// Records that were wrong, or missing though durable: among ten thousand durable ones, and among all others.
    pub errors: u64,
}

/// About this many of the durable records are checked.
const LOOKED_FOR: u64 = 10_000;

/// Opens the store, and checks its records.
pub fn reopen(spec: &ReopenSpec, stores: &dyn Stores) -> anyhow::Result<ReopenResult> {
    let ReopenSpec { load, records, durable_records, memory_fill } = spec;
    let before = DeviceCounters::now(&load.setup.folder)?;
    let start = Instant::now();
    let engine = stores.open(load.engine, &load.setup).with_context(|| format!("cannot open {} again", load.engine))?;
    let open_s = start.elapsed().as_secs_f64();
    let max_rss_bytes = process::max_rss_bytes();
    let pool = ValuePool::new(load.shape);
    let mut record = RecordBuffer::new(&pool, load.shape);
    let read = |record: &mut RecordBuffer<'_>, number| -> anyhow::Result<Option<bool>> {
        record.key(number);
        let mut is_right = None;
        let (record, keyspace) = (&*record, engine.keyspace((number % u64::from(load.setup.keyspaces)) as u32));
        keyspace.get(record.last_key(), &mut |value| is_right = Some(record.is_value_of(record.last_key(), value)))?;
        Ok(is_right)
    };
    let start = Instant::now();
    read(&mut record, 0)?;
    let first_read_us = start.elapsed().as_secs_f64() * 1e6;
    let device = DeviceCounters::now(&load.setup.folder)?.zip(before).map(|(now, before)| now.since(&before));
    let (mut errors, mut lost_records) = (0, 0);
    for number in (0..*durable_records).step_by((durable_records / LOOKED_FOR).max(1) as usize) {
        errors += u64::from(read(&mut record, number)? != Some(true));
    }
    for number in *durable_records..*records {
        match read(&mut record, number)? {
            Some(is_right) => errors += u64::from(!is_right),
            None => lost_records += 1,
        }
    }
    let replayed = engine.replayed();
    engine.close()?;
    Ok(ReopenResult {
        engine: load.engine,
        scenario: load.scenario,
        durability: load.durability,
        records: *records,
        key_bytes: load.shape.key_bytes,
        value_bytes: load.shape.value_bytes,
        memory_bytes: load.setup.memory_bytes,
        threads: load.threads,
        memory_fill: *memory_fill,
        open_s,
        first_read_us,
        replayed_records: replayed.map(|replayed| replayed.records),
        replayed_log_bytes: replayed.map(|replayed| replayed.log_bytes),
        lost_records,
        dev_read_bytes: device.map(|device| device.read_bytes),
        dev_write_bytes: device.map(|device| device.writes.bytes),
        space_bytes: allocated_bytes(&load.setup.folder)?,
        max_rss_bytes,
        errors,
    })
}
