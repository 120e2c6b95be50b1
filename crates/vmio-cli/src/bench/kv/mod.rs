//! `vmio bench kv`: vmio-kv beside other key-value stores at YCSB's phases.

mod measure;
mod records;
mod table;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use kv_peers::{EngineKind, Setup};
use serde::Serialize;

pub use self::measure::{KvSpec, measure};

use self::measure::KvResult;
use self::records::{KEY_BYTES_MIN, RecordShape, VALUE_BYTES_MIN};
use self::workload::{Distribution, Durability, Phase};
use super::cgroup::MemoryCgroup;
use super::child::{self, Job, Killed, Task};
use super::device_cache::drop_page_caches;
use super::output::OutputArgs;
use super::place::Place;
use super::target::{Device, TargetArgs};
use crate::size::{format_size, parse_size};

const EXAMPLES: &str = "\
Examples:
  vmio bench kv --dir /data
  vmio bench kv --device zram --engines vmio,lmdb --phases L,C --records 1000000 --memory 64M
  vmio bench kv --engines vmio,rocksdb --phases L,A,C --value-bytes 1000 --json kv.json
  vmio bench kv --phases C --distribution uniform --ops 5000000

Every phase runs in a process of its own, within a memory cgroup of --memory that holds its page
cache, too, on a cold page cache; a quarter as many operations again warm it up. Each engine's store
is loaded first, whether or not L is among the phases, which then find what those before have left.
Values cannot be compressed; every byte of what is read is looked at, and records that are not there
or not right are counted. No engine's writes are durable when they return: a sync each second makes them.
A phase with writes has ended when its data is in its place on the device and nothing is left to be
done in the background.

Engines:
  vmio             vmio-kv
  lmdb             LMDB: a transaction a write, MDB_WRITEMAP, MDB_NOSYNC
  redb             redb: a transaction a write, without durability
  fjall            fjall, without compression
  rocksdb          RocksDB tuned for the memory, without compression
  rocksdb-lz4      the same with LZ4
  rocksdb-default  RocksDB as it comes
Plain builds have vmio and lmdb. `make bench-kv`, or `cargo build --release -p vmio-cli --features
peers` where librocksdb-dev is installed, builds a command that has all.";

/// Measure vmio-kv beside RocksDB, LMDB, redb and fjall at YCSB's phases.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KvBenchArgs {
    /// Engines; all that this build has, unless given
    #[arg(long, value_delimiter = ',', value_name = "ENGINE")]
    engines: Vec<EngineKind>,
    /// Phases of YCSB, in this order; G is scans alone
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        ignore_case = true,
        hide_possible_values = true,
        default_value = "L,A,C,E"
    )]
    phases: Vec<Phase>,
    /// Records to load
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(i64::from(KEY_BYTES_MIN)..=500))]
    key_bytes: u32,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(i64::from(VALUE_BYTES_MIN)..=1 << 20))]
    value_bytes: u32,
    /// Operations of a phase after Load; as many as records, and a twentieth of that in the phases of scans, unless given
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Memory of each engine's process, page cache included
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    memory: u64,
    /// Which records are used how often; that of YCSB's phase, unless given
    #[arg(long, value_enum)]
    distribution: Option<Distribution>,
    /// When writes are durable
    #[arg(long, value_enum, default_value_t = Durability::Periodic)]
    durability: Durability,
    /// Keep the stores in a new folder in this one, and remove it afterwards
    #[arg(long, conflicts_with = "device")]
    dir: Option<PathBuf>,
    /// Set up a fast device with a file system and give it back afterwards (needs root)
    #[arg(long, value_enum)]
    device: Option<Device>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The least memory: vmio-kv works in 32 MiB, and the process has something beside.
const MEMORY_BYTES_MIN: u64 = 48 << 20;

/// What came of a phase.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Measured(Box<KvResult>),
    Failed(KvFailure),
}

/// An engine that did not get through a phase; it does none of the later ones.
#[derive(Debug, Serialize)]
struct KvFailure {
    engine: EngineKind,
    phase: Phase,
    failure: String,
}

impl Outcome {
    fn measured(&self) -> Option<&KvResult> {
        match self {
            Self::Measured(result) => Some(result),
            Self::Failed(_) => None,
        }
    }

    fn failed(&self) -> Option<&KvFailure> {
        match self {
            Self::Measured(_) => None,
            Self::Failed(failure) => Some(failure),
        }
    }
}

/// Runs `vmio bench kv`.
pub fn run(args: &KvBenchArgs) -> anyhow::Result<()> {
    if args.memory < MEMORY_BYTES_MIN {
        bail!("--memory {}: engines work in {} at least", args.memory, format_size(MEMORY_BYTES_MIN));
    }
    let engines = args.engines()?;
    let place = args.place()?;
    let mut outcomes = Vec::new();
    for engine in engines {
        let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
        args.measure_engine(engine, folder.path(), &mut outcomes)?;
    }
    let shape = args.shape();
    args.output.text(&format!(
        "{} records of {} + {} bytes ({}) in a folder of {}, {} of memory, {} threads\n\n{}",
        args.records,
        shape.key_bytes,
        shape.value_bytes,
        format_size(args.records * shape.bytes()),
        place.description(),
        format_size(args.memory),
        args.threads,
        table::text(&args.phases, &outcomes)
    ));
    args.output.results(&outcomes)?;
    match outcomes.iter().filter_map(Outcome::measured).map(|result| result.errors).sum::<u64>() {
        0 => Ok(()),
        errors => bail!("{errors} records were missing or wrong: the figures are worth nothing; please report this"),
    }
}

impl KvBenchArgs {
    fn engines(&self) -> anyhow::Result<Vec<EngineKind>> {
        if self.engines.is_empty() {
            return Ok(EngineKind::ALL.into_iter().filter(|engine| engine.missing_feature().is_none()).collect());
        }
        if let Some(engine) = self.engines.iter().find(|engine| engine.missing_feature().is_some()) {
            bail!(
                "this vmio was built without {engine}: run `make bench-kv`, or install librocksdb-dev and build by \
                 `cargo build --release -p vmio-cli --features peers`"
            );
        }
        Ok(self.engines.clone())
    }

    fn shape(&self) -> RecordShape {
        RecordShape { key_bytes: self.key_bytes, value_bytes: self.value_bytes }
    }

    fn ops(&self, phase: Phase) -> u64 {
        const RECORDS_A_SCAN: u64 = 20;
        let records = if phase.scans() { self.records.div_ceil(RECORDS_A_SCAN) } else { self.records };
        self.ops.unwrap_or(records)
    }

    /// About how many bytes of keys and values all phases write, those before they are measured included.
    fn written_bytes(&self) -> u64 {
        let ops: u64 = self.phases.iter().filter(|phase| phase.writes()).map(|&phase| self.ops(phase)).sum();
        (self.records + ops + ops / 4) * self.shape().bytes()
    }

    fn place(&self) -> anyhow::Result<Place> {
        let target =
            TargetArgs { dir: self.dir.clone(), device: self.device, ..TargetArgs::default() }.or_fast_device();
        match target.device {
            // Takes memory only for what is written.
            Some(Device::Zram) => Place::on_zram(6 * self.written_bytes() + (2 << 30)),
            None => Place::in_dir(target.dir.as_deref().unwrap_or(Path::new("."))),
        }
    }

    /// Loads a store and runs the phases on it.
    fn measure_engine(&self, engine: EngineKind, folder: &Path, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
        let later = self.phases.iter().filter(|&&phase| phase != Phase::L);
        let mut records = self.records;
        for &phase in std::iter::once(&Phase::L).chain(later) {
            let setup = Setup {
                folder: folder.to_owned(),
                memory_bytes: self.memory,
                data_bytes: self.records * self.shape().bytes(),
                written_bytes: self.written_bytes(),
            };
            let spec = KvSpec {
                engine,
                setup,
                phase,
                distribution: self.distribution.unwrap_or_else(|| phase.default_distribution()),
                records,
                shape: self.shape(),
                ops: self.ops(phase),
                threads: self.threads,
                durability: self.durability,
            };
            match self.measure_phase(spec) {
                Ok(result) => {
                    records = result.records;
                    if phase != Phase::L || self.phases.contains(&phase) {
                        outcomes.push(Outcome::Measured(Box::new(result)));
                    }
                }
                // Not everybody does everything in little memory: that is a result.
                Err(error) if error.is::<Killed>() => {
                    outcomes.push(Outcome::Failed(KvFailure { engine, phase, failure: format!("{error:#}") }));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn measure_phase(&self, spec: KvSpec) -> anyhow::Result<KvResult> {
        let what = format!("kv: {}, {}", spec.engine, spec.phase);
        let cgroup = MemoryCgroup::create(self.memory)
            .inspect_err(|error| self.output.text(&format!("{what}: its memory is not limited: {error:#}")))
            .ok();
        // So that every phase reads from the device what it begins with.
        drop_page_caches(&spec.setup.folder)?;
        let task = Task { cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()), job: Job::Kv(spec) };
        Ok(child::run(&what, &task)?.0)
    }
}
