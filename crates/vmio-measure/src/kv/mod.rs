//! `vmio bench kv`: vmio-kv, and what other stores a program has, at YCSB's phases.

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
  vmio-kernel      the same over the kernel module, if it is named
LMDB, redb, fjall and RocksDB are measured beside these by vmio-bench, a program of vmio's repository:
`cargo run --release -p vmio-bench -- kv`.";

const ABOUT: &str = "\
Every phase runs in a process of its own, within a memory cgroup of --memory that holds its page
cache, too, on a cold page cache; a quarter as many operations again warm it up. Each engine's store
is loaded first, whether or not L is among the phases, which then find what those before have left.
Values cannot be compressed; every byte of what is read is looked at, and records that are not there
or not right are counted. A phase with writes has ended when its data is in its place on the device
and nothing is left to be done in the background.

Phases: L load; A 50 % reads, 50 % updates; B 95 % reads, 5 % updates; C reads; D 95 % reads of the latest,
5 % inserts; E 95 % scans of 1 to 100 records, 5 % inserts; F 50 % reads, 50 % reads with an update; G scans; U updates, evenly.

Scenarios, each on a store of its own:
  prefixes   L, C and G with keys that begin with the same 64 bytes
  deletes    deletes of the lower half of all keys, one by one, then seeks to where it began
  queue      puts behind all records, each with a look for the first one and its deletion; one thread
  mass-delete  deletes of the first half of all keys in their order, after each hundredth a seek to the first that is left; one thread
  keyspaces  L, A, C and G in 300 keyspaces (tables, column families)
  reopen     opening after a load and a clean close
  recovery   opening after kill -9 during a load: of vmio when both memtables are full

Durability: with `periodic`, a sync each second makes writes durable, for all engines; with `sync`, they are when
they return; with `none`, no more is done than the engine does by itself.

p99.99e is the latency that one operation in 10 000 exceeds, without the time in which its thread could run
and other threads had the processors: what the engine's locks and its I/O take. R is 0 for requests to the
device that follow each other, and a third for pages at random; it needs root.";

/// What the help says after the options: examples, what is measured, and which engines there are.
pub fn help(examples: &str, engines: &str) -> String {
    format!("Examples:\n  {examples}\n\n{ABOUT}\n\nEngines:\n  {engines}")
}

/// Measure vmio-kv at YCSB's phases.
#[derive(Args)]
#[command(after_help = help(EXAMPLES, ENGINES))]
pub struct KvBenchArgs {
    /// Engines; all that this program has and that need no kernel module, unless given
    #[arg(long, value_delimiter = ',', value_name = "ENGINE")]
    engines: Vec<EngineKind>,
    /// Phases of YCSB, in this order; L,A,C,E unless these or scenarios are given
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true, hide_possible_values = true)]
    phases: Vec<Phase>,
    /// What YCSB does not ask
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = true, value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
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
    /// What of it vmio-kv has for filters of leaves
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    filters: u64,
    /// Which records are used how often; that of YCSB's phase, unless given
    #[arg(long, value_enum)]
    distribution: Option<Distribution>,
    /// Of a hundred reads so many look for keys that are not there
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    absent: u32,
    /// Records of a scan, at most
    #[arg(long, value_name = "RECORDS", default_value_t = SCAN_RECORDS, value_parser = clap::value_parser!(u64).range(1..))]
    scan_records: u64,
    /// Put the records in the order of their keys (LMDB appends them), for stores that take too long otherwise
    #[arg(long, conflicts_with_all = ["absent", "scenarios"])]
    in_order: bool,
    /// When writes are durable
    #[arg(long, value_enum, default_value_t = Durability::Periodic)]
    durability: Durability,
    /// Seconds after which the operations of a phase end, done or not; what is left of its background work is still waited for
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..))]
    phase_limit: Option<u64>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Write the pages that vmio-kv touches, hits among them, to a file for each phase in this folder, for `vmio sim`; slows it down
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    page_traces: Option<PathBuf>,
    /// Write a page with charts and tables to this file; it needs nothing else
    #[arg(long, value_name = "OUT.html", value_parser = ReportFile::parse)]
    report: Option<ReportFile>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The least memory: vmio-kv works in 32 MiB, and the process has something beside.
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
        bail!("--memory {bytes}: engines work in {} at least", format_size(MEMORY_BYTES_MIN));
    }
    Ok(())
}

/// Tells what came of it.
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
        errors => bail!("{errors} records were missing or wrong: the figures are worth nothing; please report this"),
    }
}

impl KvBenchArgs {
    fn engines(&self, stores: &dyn Stores) -> anyhow::Result<Vec<EngineKind>> {
        if self.page_traces.is_some() && self.engines != [EngineKind::Vmio] {
            bail!("--page-traces is there for vmio alone, which it slows down: add --engines vmio");
        }
        if self.engines.is_empty() {
            let runs = |engine: &EngineKind| stores.check(*engine).is_ok() && !engine.needs_module();
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
        // One of them at a time is there.
        let written = std::iter::once(runner).chain(scenarios).map(Runner::written_bytes).max().unwrap_or(0);
        self.place.prepare(6 * written + (2 << 30))
    }
}
