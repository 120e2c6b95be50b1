//! `vmio bench`: how memory-mapped I/O and vmio-kv do on a disk of the user's. What measures vmio beside other stores and programs is a
//! program of its own, vmio-bench.

use clap::{Args, Subcommand};
use vmio_measure::child;
use vmio_measure::kv::{self, OwnStores};
use vmio_measure::map;

const EXAMPLES: &str = "\
Examples:
  vmio bench map --quick                               what there is to see, in under two minutes
  vmio bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8
  vmio bench map --quick --report map.html             charts and tables in one page
  vmio bench kv --dir /data --records 1000000          vmio-kv at YCSB's phases

vmio-bench, a program of vmio's repository, measures more, and other stores and programs beside vmio:
cargo run --release -p vmio-bench -- --help";

/// Measure memory-mapped I/O beside Linux mmap and pread, and vmio-kv.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    Map(Box<map::MapArgs>),
    Kv(Box<kv::KvBenchArgs>),
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// A benchmark that `vmio` does not have.
#[derive(Debug, thiserror::Error)]
#[error(
    "`vmio bench` has map and kv. Other benchmarks are vmio-bench's: cargo run --release -p vmio-bench -- {arguments}"
)]
struct OfVmioBench {
    /// As they were given.
    arguments: String,
}

/// Runs `vmio bench`.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    match args.command {
        BenchCommand::Map(args) => map::run(&args),
        BenchCommand::Kv(args) => kv::run(&args, &OwnStores),
        BenchCommand::Other(arguments) => Err(OfVmioBench { arguments: arguments.join(" ") }.into()),
    }
}

/// The child's side of all measurements.
pub fn serve(task: &str) -> anyhow::Result<()> {
    child::serve(task, |job: vmio_measure::job::Job, cgroup| job.measure(cgroup, &OwnStores))
}
