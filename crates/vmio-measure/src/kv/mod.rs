//! `vmio bench kv`: vmio-kv and the other stores of a program at YCSB's phases.

mod client;
mod engine;
mod measure;
mod own;
mod own_engine;
mod page;
mod page_trace;
mod records;
mod reopen;
mod run_delay;
mod runner;
mod scenario;
mod scenario_runs;
mod spec;
mod table;
mod workload;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use vmio_report::output::OutputArgs;
use vmio_report::report_file::ReportFile;
use vmio_report::size::{format_size, parse_size};

use self::records::{KEY_BYTES_MIN, RecordShape, VALUE_BYTES_MIN};
use self::runner::{Outcome, Runner};
use self::scenario::Scenario;
use self::workload::{Distribution, Durability, Phase, SCAN_RECORDS};
use crate::block_trace::TraceBuffers;
use crate::place::{Place, PlaceArgs};

pub use self::engine::{Engine, EngineKind, Keyspace, Replayed, Setup, Stores};
pub use self::measure::measure;
pub use self::own::{OwnBenchArgs, run_own};
pub use self::own_engine::{MeasuredByVmioBench, OwnStores};
pub use self::reopen::{CrashSpec, ReopenSpec, load_and_crash, reopen};
pub use self::spec::KvSpec;

const EXAMPLES: &str = "\
  vmio bench kv --dir /data
  vmio bench kv --device zram --phases L,C --records 1000000 --memory 64M
  vmio bench kv --phases L,A,C --value-bytes 1000 --json kv.json
  vmio bench kv --phases C --distribution uniform --ops 5000000
  vmio bench kv --phases C --absent 50 --filters 4M
  vmio bench kv --phases G --key-bytes 20 --value-bytes 8 --scan-records 1000000 --ops 20
  vmio bench kv --dir /data --durability sync --records 100000 --phases L,A
  vmio bench kv --dir /data --report kv.html
  vmio bench kv --scenarios reopen,recovery --records 1000000
  vmio bench kv --engines vmio --phases L,A,E --threads 1 --page-traces .  then vmio sim --trace A.pages --cache 10%";

const ENGINES: &str = "\
  vmio             vmio-kv
  vmio-reader-thread, vmio-kernel, vmio-ring0
                   vmio-kv with another engine: reader threads, the kernel module, guest mode at ring 0; only if named
vmio-bench, a program of vmio's repository, measures LMDB, redb, fjall and RocksDB as well:
`cargo run --release -p vmio-bench -- kv`.";

const ABOUT: &str = "\
Every phase runs in its own process, in a memory cgroup of --memory that includes its page cache, and begins
with a cold page cache. A warm-up of a quarter as many operations comes first. Each engine's store is loaded
first, whether or not L is among the phases; each phase finds what the phases before have left. Values cannot be
compressed. Every byte read is looked at, and missing or wrong records are counted. A phase with writes ends
when its data is in its place on the device and no background work is left.

Phases: L load; A 50 % reads, 50 % updates; B 95 % reads, 5 % updates; C reads; D 95 % reads of the latest,
5 % inserts; E 95 % scans of 1 to 100 records, 5 % inserts; F 50 % reads, 50 % reads with an update; G scans; U updates, evenly.

Scenarios, each on a new store:
  prefixes   L, C and G with keys that begin with the same 64 bytes
  deletes    deletes of the lower half of all keys, one by one, then seeks to its beginning
  queue      puts after all records, each with a look for the first record and its deletion; one thread
  mass-delete  deletes of the first half of all keys in order, after each hundredth a seek to the first remaining key; one thread
  keyspaces  L, A, C and G in 300 keyspaces (tables, column families)
  reopen     opening after a load and a clean close
  recovery   opening after kill -9 during a load: for vmio when both memtables are full

Durability: with `periodic`, a sync each second makes writes durable, for all engines; with `sync`, writes are durable
when they return; with `none`, the engine alone decides.

p99.99e is the latency that one operation in 10 000 exceeds, without the time in which its thread was ready
but other threads had the processors: it is the time for the engine's locks and its I/O. R is 0 for sequential requests
to the device, and a third for random pages; it needs root.";

/// The text after the options: examples, an explanation of the figures, and the engines.
pub fn help(examples: &str, engines: &str) -> String {
    format!("Examples:\n  {examples}\n\n{ABOUT}\n\nEngines:\n  {engines}")
}

/// Measure vmio-kv at YCSB's phases.
#[derive(Args)]
#[command(after_help = help(EXAMPLES, ENGINES))]
pub struct KvBenchArgs {
    /// Engines. Default: vmio-kv with the engine that it chooses, and all other stores of this program
    #[arg(long, value_delimiter = ',', value_name = "ENGINE")]
    engines: Vec<EngineKind>,
    /// Phases of YCSB, in this order. Default without scenarios: L,A,C,E
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true, hide_possible_values = true)]
    phases: Vec<Phase>,
    /// Scenarios beyond YCSB
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = true, value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
    /// Records to load
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Bytes per key
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(i64::from(KEY_BYTES_MIN)..=500))]
    key_bytes: u32,
    /// Bytes per value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(i64::from(VALUE_BYTES_MIN)..=1 << 20))]
    value_bytes: u32,
    /// Operations of a phase after the load. Default: the number of records, and a twentieth of that in phases of scans
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Memory of each engine's process, page cache included
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    memory: u64,
    /// The part of the memory for vmio-kv's leaf filters
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    filters: u64,
    /// Distribution of the operations over the records. Default: that of YCSB's phase
    #[arg(long, value_enum)]
    distribution: Option<Distribution>,
    /// Percentage of reads that look for absent keys
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    absent: u32,
    /// Records of a scan, at most
    #[arg(long, value_name = "RECORDS", default_value_t = SCAN_RECORDS, value_parser = clap::value_parser!(u64).range(1..))]
    scan_records: u64,
    /// Put the records in key order (LMDB appends them), for stores that take too long otherwise
    #[arg(long, conflicts_with_all = ["absent", "scenarios"])]
    in_order: bool,
    /// When writes are durable
    #[arg(long, value_enum, default_value_t = Durability::Periodic)]
    durability: Durability,
    /// Time limit for the operations of a phase, in seconds; its background work is waited for in any case
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..))]
    phase_limit: Option<u64>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Write the pages that vmio-kv touches, cached ones too, to a file for each phase in this folder, for `vmio sim`; slows vmio-kv down
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    page_traces: Option<PathBuf>,
    /// Write a page with charts and tables to this file; it needs no other files
    #[arg(long, value_name = "OUT.html", value_parser = ReportFile::parse)]
    report: Option<ReportFile>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The least memory: vmio-kv needs 32 MiB, and the process some more.
const MEMORY_BYTES_MIN: u64 = 48 << 20;

/// Runs `vmio bench kv` on stores that the program has.
pub fn run(args: &KvBenchArgs, stores: &dyn Stores) -> anyhow::Result<()> {
    check_memory(args.memory)?;
    let engines = args.engines(stores)?;
    let runner = args.runner();
    let scenarios: Vec<_> = args.scenarios.iter().map(|&scenario| runner.for_scenario(scenario)).collect();
    let place = args.place(&runner, &scenarios)?;
    let mut outcomes = Vec::new();
    for &engine in &engines {
        if !runner.phases.is_empty() {
            runner.run_engine(engine, &place, &mut outcomes)?;
        }
        for scenario in &scenarios {
            scenario.run_scenario(engine, &place, &mut outcomes)?;
        }
    }
    if let Some(file) = &args.report {
        file.write_text(&page::page(&runner, place.description(), &outcomes).into_string())?;
        runner.output.text(&file.notice())?;
    }
    finish(&runner, &place, &outcomes)
}

fn check_memory(bytes: u64) -> anyhow::Result<()> {
    if bytes < MEMORY_BYTES_MIN {
        bail!("--memory {bytes}: engines need at least {}", format_size(MEMORY_BYTES_MIN));
    }
    Ok(())
}

/// Prints the results.
fn finish(runner: &Runner, place: &Place, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let Runner { records, shape, memory_bytes, threads, .. } = runner;
    runner.output.text(&format!(
        "{records} records of {} + {} bytes ({}{}) in a folder of {}, {} of memory, {threads} threads\n\n{}",
        shape.key_bytes,
        shape.value_bytes,
        format_size(records * shape.bytes()),
        if shape.in_order { ", put in the order of their keys" } else { "" },
        place.description(),
        format_size(*memory_bytes),
        table::text(outcomes)
    ))?;
    runner.output.results(outcomes)?;
    match outcomes.iter().map(Outcome::errors).sum::<u64>() {
        0 => Ok(()),
        errors => bail!("{errors} records were missing or wrong: the figures are invalid; please report this"),
    }
}

impl KvBenchArgs {
    fn engines(&self, stores: &dyn Stores) -> anyhow::Result<Vec<EngineKind>> {
        if self.page_traces.is_some() && self.engines != [EngineKind::Vmio] {
            bail!("--page-traces works for vmio alone, and slows it down: add --engines vmio");
        }
        if self.engines.is_empty() {
            let runs = |engine: &EngineKind| stores.check(*engine).is_ok() && !engine.is_asked_for();
            return Ok(EngineKind::ALL.into_iter().filter(runs).collect());
        }
        self.engines.iter().try_for_each(|engine| stores.check(*engine))?;
        Ok(self.engines.clone())
    }

    fn runner(&self) -> Runner {
        let phases = match self.phases.is_empty() && self.scenarios.is_empty() {
            true => vec![Phase::L, Phase::A, Phase::C, Phase::E],
            false => self.phases.clone(),
        };
        Runner {
            scenario: None,
            phases,
            records: self.records,
            shape: RecordShape {
                key_bytes: self.key_bytes,
                value_bytes: self.value_bytes,
                prefix_bytes: 0,
                in_order: self.in_order,
            },
            keyspaces: 1,
            ops: self.ops,
            threads: self.threads,
            memory_bytes: self.memory,
            filter_bytes: self.filters,
            distribution: self.distribution,
            absent_percent: self.absent,
            scan_records: self.scan_records,
            durability: self.durability,
            limit: self.phase_limit.map(Duration::from_secs),
            trace: TraceBuffers::create().map(Rc::new).ok(),
            page_traces: self.page_traces.clone(),
            output: self.output.clone(),
        }
    }

    fn place(&self, runner: &Runner, scenarios: &[Runner]) -> anyhow::Result<Place> {
        // One store exists at a time.
        let written = std::iter::once(runner).chain(scenarios).map(Runner::written_bytes).max().unwrap_or(0);
        self.place.prepare(6 * written + (2 << 30))
    }
}
