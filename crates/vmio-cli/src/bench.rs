//! `vmio bench`: measures memory-mapped I/O and vmio-kv on the user's own storage. The program vmio-bench compares vmio with other stores
//! and programs.

use clap::{Args, Subcommand};
use vmio_measure::child;
use vmio_measure::kv::{self, OwnStores};
use vmio_measure::map;

const EXAMPLES: &str = "\
Examples:
  vmio bench map --quick                               the main comparison, in under two minutes
  vmio bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8
  vmio bench map --quick --report map.html             write charts and tables to one page
  vmio bench kv --dir /data --records 1000000          run vmio-kv through YCSB's phases

The program vmio-bench in vmio's repository also measures other stores and programs:
cargo run --release -p vmio-bench -- --help";

/// Measure vmio-kv, and memory-mapped I/O compared with Linux mmap and pread.
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
    "`vmio bench` has no benchmark `{arguments}`, only map and kv. Try vmio-bench: cargo run --release -p vmio-bench -- {arguments}"
)]
struct OfVmioBench {
    /// The arguments after `vmio bench`.
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

/// The child process of all measurements.
pub fn serve(task: &str) -> anyhow::Result<()> {
    child::serve(task, |job: vmio_measure::job::Job, cgroup| job.measure(cgroup, &OwnStores))
}
