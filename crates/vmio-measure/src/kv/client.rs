//! The threads that use a store, and the times of their operations.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::engine::{Engine, Keyspace};
use anyhow::anyhow;
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::records::{RecordBuffer, ValuePool, sum};
use super::run_delay::RunDelay;
use super::spec::KvSpec;
use super::workload::{Durability, Inserts, Operation, Operations};
use crate::worker::new_histogram;

const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// From this length of an operation on, the thread's wait for a processor is measured: that costs a microsecond, and no shorter wait
/// matters.
const SLOW_NS: u64 = 20_000;
/// The wait is also measured once in this many operations, so that short waits do not add up.
const OPERATIONS_A_LOOK: u64 = 256;

/// Runs a number of operations on all clients, or fewer if the time runs out, and makes their writes durable meanwhile.
pub fn run(clients: &mut [Client<'_>], spec: &KvSpec, ops: u64, deadline: Option<Instant>) -> anyhow::Result<()> {
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
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || client.operate(share, deadline))).collect();
        let panicked = |_| anyhow!("a thread of the benchmark panicked");
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(panicked)?).collect();
        drop(running);
        outcomes.into_iter().collect::<anyhow::Result<()>>()?;
        syncing.map_or(Ok(()), |syncing| syncing.join().map_err(panicked)?)
    })
}

/// A thread that uses the store.
pub struct Client<'a> {
    engine: &'a dyn Engine,
    keyspaces: u64,
    operations: Operations<'a>,
    inserts: &'a Inserts,
    thread: u32,
    record: RecordBuffer<'a>,
    random: SmallRng,
    /// The client's results.
    pub tally: Tally,
}

/// Results of clients.
pub struct Tally {
    /// The latencies of all operations, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// The same without the threads' waits for a processor; `None` if the kernel does not count them.
    pub engine_latencies: Option<Histogram<u64>>,
    /// Records that were missing or wrong.
    pub errors: u64,
    /// Whether the time ran out.
    pub is_stopped: bool,
    /// A sum of all bytes read.
    seen: u64,
}

impl Tally {
    /// No results yet.
    pub fn new() -> anyhow::Result<Self> {
        let engine_latencies = Some(new_histogram()?);
        Ok(Self { latencies: new_histogram()?, engine_latencies, errors: 0, is_stopped: false, seen: 0 })
    }

    /// Adds the results of another client.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.latencies.add(&other.latencies)?;
        match (&mut self.engine_latencies, &other.engine_latencies) {
            (Some(all), Some(others)) => all.add(others)?,
            _ => self.engine_latencies = None,
        }
        self.errors += other.errors;
        self.is_stopped |= other.is_stopped;
        // Keeps the compiler from leaving out the reads.
        self.seen = std::hint::black_box(self.seen.wrapping_add(other.seen));
        Ok(())
    }

    fn note(&mut self, seen: u64, is_right: bool) {
        self.seen = self.seen.wrapping_add(seen);
        self.errors += u64::from(!is_right);
    }
}

impl<'a> Client<'a> {
    /// One of the threads of a phase.
    pub fn new(
        engine: &'a dyn Engine,
        spec: &KvSpec,
        pool: &'a ValuePool,
        inserts: &'a Inserts,
        thread: u32,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            engine,
            keyspaces: u64::from(spec.setup.keyspaces),
            operations: Operations::new(spec.phase, spec.distribution, inserts, thread)?
                .with_absent(spec.absent_percent)
                .with_scans_of(spec.scan_records),
            inserts,
            thread,
            record: RecordBuffer::new(pool, spec.shape),
            random: SmallRng::seed_from_u64(u64::from(thread) << 8 | spec.phase as u64),
            tally: Tally::new()?,
        })
    }

    /// Forgets the latencies, not the errors.
    pub fn forget(&mut self) {
        self.tally.latencies.reset();
        if let Some(latencies) = &mut self.tally.engine_latencies {
            latencies.reset();
        }
        self.tally.is_stopped = false;
    }

    /// Inserts the missing records after a time limit has stopped all clients.
    pub fn catch_up(&mut self, inserts: &Inserts) -> anyhow::Result<()> {
        inserts.missing(self.thread).try_for_each(|number| self.perform(Operation::Insert(number)))
    }

    fn operate(&mut self, count: u64, deadline: Option<Instant>) -> anyhow::Result<()> {
        let mut delay = RunDelay::of_this_thread();
        for done in 0..count {
            let Some(operation) = self.operations.next(&mut self.random) else { break };
            let start = Instant::now();
            self.perform(operation)?;
            let end = Instant::now();
            self.record_latency(((end - start).as_nanos() as u64).max(1), done, &mut delay);
            if deadline.is_some_and(|deadline| end >= deadline) {
                self.tally.is_stopped = done + 1 < count;
                break;
            }
        }
        Ok(())
    }

    fn record_latency(&mut self, latency_ns: u64, done: u64, delay: &mut RunDelay) {
        self.tally.latencies.saturating_record(latency_ns);
        let is_slow = latency_ns >= SLOW_NS;
        let mut engine_ns = latency_ns;
        if is_slow || done.is_multiple_of(OPERATIONS_A_LOOK) {
            match delay.since_last_ns() {
                Some(delay_ns) if is_slow => engine_ns = latency_ns.saturating_sub(delay_ns).max(1),
                Some(_) => {}
                None => self.tally.engine_latencies = None,
            }
        }
        if let Some(latencies) = &mut self.tally.engine_latencies {
            latencies.saturating_record(engine_ns);
        }
    }

    fn perform(&mut self, operation: Operation) -> anyhow::Result<()> {
        match operation {
            Operation::Read(number) => self.read(number),
            Operation::ReadAbsent(number) => self.read_absent(number),
            Operation::Update(number) => self.put(number),
            Operation::Insert(number) => {
                self.put(number)?;
                self.inserts.done(self.thread);
                Ok(())
            }
            Operation::ReadUpdate(number) => {
                self.read(number)?;
                self.put(number)
            }
            Operation::Scan(number, records) => self.scan(number, records),
            Operation::Delete(number) => {
                self.record.key(number);
                self.keyspace(number).delete(self.record.last_key())
            }
            Operation::Seek => self.seek(),
            Operation::SeekTo(number) => self.seek_to(number),
            Operation::Turn(first) => {
                self.perform(Operation::Insert(self.inserts.records()))?;
                self.seek_to(first)?;
                self.perform(Operation::Delete(first))
            }
        }
    }

    fn keyspace(&self, number: u64) -> &'a dyn Keyspace {
        self.engine.keyspace((number % self.keyspaces) as u32)
    }

    fn put(&mut self, number: u64) -> anyhow::Result<()> {
        let keyspace = self.keyspace(number);
        let (key, value) = self.record.record(number, &mut self.random);
        keyspace.put(key, value)
    }

    fn read(&mut self, number: u64) -> anyhow::Result<()> {
        self.record.key(number);
        let (record, mut seen, mut is_right) = (&self.record, 0, false);
        self.keyspace(number).get(record.last_key(), &mut |value| {
            seen = sum(value);
            is_right = record.is_value_of(record.last_key(), value);
        })?;
        self.tally.note(seen, is_right);
        Ok(())
    }

    fn read_absent(&mut self, number: u64) -> anyhow::Result<()> {
        self.record.key(number);
        let is_there = self.keyspace(number).get(self.record.last_key(), &mut |_| {})?;
        self.tally.note(0, !is_there);
        Ok(())
    }

    fn scan(&mut self, number: u64, records: usize) -> anyhow::Result<()> {
        self.record.key(number);
        let (record, mut seen, mut is_right) = (&self.record, 0_u64, true);
        let mut begins_right = false;
        let mut is_first = true;
        self.keyspace(number).scan(record.last_key(), records, &mut |key, value| {
            seen = seen.wrapping_add(sum(value));
            is_right &= record.is_value_of(key, value);
            if is_first {
                begins_right = key == record.last_key();
            }
            is_first = false;
        })?;
        self.tally.note(seen, is_right && begins_right);
        Ok(())
    }

    fn seek(&mut self) -> anyhow::Result<()> {
        self.record.first_key();
        let (record, mut seen, mut is_right) = (&self.record, 0_u64, false);
        self.keyspace(0).scan(record.last_key(), 1, &mut |key, value| {
            seen = sum(value);
            is_right = record.is_in_upper_half(key) && record.is_value_of(key, value);
        })?;
        self.tally.note(seen, is_right);
        Ok(())
    }

    /// Seeks to the first record that exists, which must be this one.
    fn seek_to(&mut self, number: u64) -> anyhow::Result<()> {
        let first = self.record.first_key().to_vec();
        self.record.key(number);
        let (record, mut seen, mut is_right) = (&self.record, 0_u64, false);
        self.keyspace(0).scan(&first, 1, &mut |key, value| {
            seen = sum(value);
            is_right = key == record.last_key() && record.is_value_of(key, value);
        })?;
        self.tally.note(seen, is_right);
        Ok(())
    }
}
