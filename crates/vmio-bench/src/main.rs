//! `vmio-bench`: vmio measured beside Linux, other key-value stores and programs as they are. It is for vmio's developers, and links
//! what it measures beside; `vmio bench map` and `vmio bench kv` are for everybody.

#![deny(clippy::print_stdout)]

mod claims;
mod figure;
mod job;
mod machine;
mod pages;
mod raw_reads;
mod scenarios;
mod swap;
mod targets;
mod vmio_command;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kv_peers::Peers;
use tracing_subscriber::EnvFilter;
use vmio_measure::{child, kv, map, priority};

const EXAMPLES: &str = "\
Examples:
  vmio-bench map --quick                               everything below, in under two minutes
  vmio-bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8
  vmio-bench hit                                       what a hit costs beside private memory
  vmio-bench priority --device zram                    a range that a scan does not push out
  vmio-bench fresh --dir /data                         filling a file without reading it first
  vmio-bench sync --json sync.json                     stores while a sync runs over their pages
  vmio-bench fetch --dir /data                         misses that do not wait, beside mmap with advice
  vmio-bench commit --dir /data                        atomic commits beside msync, SQLite and LMDB
  vmio-bench units --dir /data                         units of 4 KiB, 2 MiB and dynamic ones
  vmio-bench posix --dir /data                         reads and writes by calls, plain and under vmio run --mode
  vmio-bench programs --dir /data                      databases and tools, plain and under vmio run --mode
  vmio-bench heap                                      a program that outgrows memory: its heap in a file, or swap
  vmio-bench kv --dir /data --records 1000000          vmio-kv beside other key-value stores
  vmio-bench all                                       all of these, and docs/benchmarks/README.md anew
  vmio-bench age --folder /mnt                         free extents of 2 MiB in an aged file system
  vmio-bench files --folder /mnt                       many files: filebench's profiles in small, and single calls
  vmio-bench render ratios                             a page of docs/benchmarks, from its figures

posix, programs and heap run the `vmio` beside this program: cargo build --release -p vmio-cli -p vmio-bench

Set VMIO_LOG=debug (or any tracing filter) to see what the library does.";

const KV_EXAMPLES: &str = "\
  vmio-bench kv --dir /data
  vmio-bench kv --device zram --engines vmio,lmdb --phases L,C --records 1000000 --memory 64M
  vmio-bench kv --engines vmio,rocksdb --phases L,A,C --value-bytes 1000 --json kv.json
  vmio-bench kv --phases C --distribution uniform --ops 5000000
  vmio-bench kv --engines vmio,lmdb --phases L,C --records 50000000 --in-order
  vmio-bench kv --engines vmio --phases C --absent 50 --filters 4M
  vmio-bench kv --dir /data --durability sync --records 100000 --phases L,A
  vmio-bench kv --dir /data --report kv.html
  vmio-bench kv --scenarios reopen,recovery --records 1000000
  vmio-bench kv --records 50000000 --memory 512M --phase-limit 600
  vmio-bench kv --engines vmio --phases L,A,E --threads 1 --page-traces .  then vmio sim --trace A.pages --cache 10%";

const KV_ENGINES: &str = "\
  vmio             vmio-kv
  vmio-reader-thread, vmio-kernel, vmio-ring0
                   the same with another engine: reader threads, the kernel module, guest mode at ring 0; only if named
  lmdb             LMDB: a transaction a write, MDB_WRITEMAP, MDB_NOSYNC
  redb             redb: a transaction a write, without durability
  fjall            fjall, without compression
  rocksdb          RocksDB tuned for the memory, without compression
  rocksdb-lz4      the same with LZ4
  rocksdb-default  RocksDB as it comes
Plain builds have vmio and lmdb. `make bench-kv`, or `cargo build --release -p vmio-bench --features
peers` where librocksdb-dev is installed, builds a program that has all.";

/// Measure vmio beside Linux, other key-value stores and programs as they are.
#[derive(Parser)]
#[command(name = "vmio-bench", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Map(Box<map::MapArgs>),
    Hit(scenarios::hit::HitArgs),
    Priority(priority::PriorityArgs),
    Fresh(scenarios::fresh::FreshArgs),
    Sync(scenarios::sync::SyncArgs),
    Fetch(scenarios::fetch::FetchArgs),
    Commit(scenarios::commit::CommitArgs),
    Units(scenarios::units::UnitsArgs),
    Posix(scenarios::posix::PosixArgs),
    Programs(scenarios::programs::ProgramsArgs),
    Heap(scenarios::heap::HeapArgs),
    Age(scenarios::age::AgeArgs),
    Files(scenarios::files::FilesArgs),
    Kv(Box<kv::KvBenchArgs>),
    All(claims::AllArgs),
    Render(pages::RenderArgs),
    /// Run one measurement and print its result (what the other commands start as a process)
    #[command(name = child::COMMAND, hide = true)]
    Child {
        /// The task, as JSON
        task: String,
    },
}

/// The command line, with help that is this program's where `vmio bench` has the same command.
fn command_line() -> clap::Command {
    let of_this_program = |command: clap::Command| {
        let help = command.get_after_help().map(|help| help.to_string().replace("  vmio bench ", "  vmio-bench "));
        command.after_help(help.unwrap_or_default())
    };
    Cli::command().mut_subcommand("map", of_this_program).mut_subcommand("kv", |command| {
        let about = "Measure vmio-kv beside RocksDB, LMDB, redb and fjall at YCSB's phases";
        command.about(about).after_help(kv::help(KV_EXAMPLES, KV_ENGINES))
    })
}

fn main() -> ExitCode {
    let matches = command_line().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let filter = EnvFilter::try_from_env("VMIO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).without_time().init();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_went_away(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmio-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Map(args) => map::run(&args),
        Command::Hit(args) => scenarios::hit::run(&args),
        Command::Priority(args) => priority::run(&args),
        Command::Fresh(args) => scenarios::fresh::run(&args),
        Command::Sync(args) => scenarios::sync::run(&args),
        Command::Fetch(args) => scenarios::fetch::run(&args),
        Command::Commit(args) => scenarios::commit::run(&args),
        Command::Units(args) => scenarios::units::run(&args),
        Command::Posix(args) => scenarios::posix::run(&args),
        Command::Programs(args) => scenarios::programs::run(&args),
        Command::Heap(args) => scenarios::heap::run(&args),
        Command::Age(args) => scenarios::age::run(&args),
        Command::Files(args) => scenarios::files::run(&args),
        Command::Kv(args) => kv::run(&args, &Peers),
        Command::All(args) => claims::run(&args),
        Command::Render(args) => pages::run(&args),
        Command::Child { task } => job::serve(&task),
    }
}

/// `vmio-bench hit | head` ends when `head` has seen enough: that is no failure.
fn reader_went_away(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
