//! `vmio bench`: memory-mapped I/O measured beside what Linux offers, every run in a process of
//! its own.

mod block_trace;
mod break_even;
mod cgroup;
mod child;
pub mod content;
mod device_cache;
mod device_counters;
mod engines;
mod fast_device;
pub mod kv;
mod map;
mod matrix;
mod median;
mod op;
pub mod pattern;
mod place;
mod process;
mod quick;
mod report;
mod run_charts;
mod run_report;
mod scatter;
mod scenarios;
mod spec;
mod swap;
mod target;
mod trace_page;
mod worker;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  vmio bench map --quick                               everything below, in under two minutes
  vmio bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8
  vmio bench map --quick --report map.html             charts and tables in one page
  vmio bench hit                                       what a hit costs beside private memory
  vmio bench priority --device zram                    a range that a scan does not push out
  vmio bench fresh --dir /data                         filling a file without reading it first
  vmio bench sync --json sync.json                     stores while a sync runs over their pages
  vmio bench fetch --dir /data                         misses that do not wait, beside mmap with advice
  vmio bench commit --dir /data                        atomic commits beside msync, SQLite and LMDB
  vmio bench units --dir /data                         units of 4 KiB, 2 MiB and dynamic ones
  vmio bench posix --dir /data                         reads and writes by calls, plain and under vmio run --mode
  vmio bench heap                                      a program that outgrows memory: its heap in a file, or swap
  vmio bench kv --dir /data --records 1000000          vmio-kv beside other key-value stores";

/// Measure memory-mapped I/O beside Linux mmap and pread.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    Map(Box<map::MapArgs>),
    Hit(scenarios::hit::HitArgs),
    Priority(scenarios::priority::PriorityArgs),
    Fresh(scenarios::fresh::FreshArgs),
    Sync(scenarios::sync::SyncArgs),
    Fetch(scenarios::fetch::FetchArgs),
    Commit(scenarios::commit::CommitArgs),
    Units(scenarios::units::UnitsArgs),
    Posix(scenarios::posix::PosixArgs),
    Programs(scenarios::programs::ProgramsArgs),
    Heap(scenarios::heap::HeapArgs),
    Kv(Box<kv::KvBenchArgs>),
    /// Run one measurement and print its result (what the other commands start as a process)
    #[command(hide = true)]
    Child {
        /// The task, as JSON
        task: String,
    },
}

/// Runs `vmio bench`.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    match args.command {
        BenchCommand::Map(args) => map::run(&args),
        BenchCommand::Hit(args) => scenarios::hit::run(&args),
        BenchCommand::Priority(args) => scenarios::priority::run(&args),
        BenchCommand::Fresh(args) => scenarios::fresh::run(&args),
        BenchCommand::Sync(args) => scenarios::sync::run(&args),
        BenchCommand::Fetch(args) => scenarios::fetch::run(&args),
        BenchCommand::Commit(args) => scenarios::commit::run(&args),
        BenchCommand::Units(args) => scenarios::units::run(&args),
        BenchCommand::Posix(args) => scenarios::posix::run(&args),
        BenchCommand::Programs(args) => scenarios::programs::run(&args),
        BenchCommand::Heap(args) => scenarios::heap::run(&args),
        BenchCommand::Kv(args) => kv::run(&args),
        BenchCommand::Child { task } => child::serve(&task),
    }
}
