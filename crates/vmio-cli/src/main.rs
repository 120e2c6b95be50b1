//! The `vmio` command: checks the machine, runs programs through a cache, measures memory-mapped I/O, and reads and writes files through
//! mappings.

#![deny(clippy::print_stdout)]

mod bench;
mod commands;
mod sim;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::commands::pmfs::NotSound;
use crate::commands::run::CannotRun;

const EXAMPLES: &str = "\
Examples:
  vmio doctor                        show what this kernel offers and which engine vmio will use
  vmio run --cache 4G --under /data -- my-database
                                     run an unmodified program with its files mapped through a cache of 4 GiB
  vmio sum --cache 64M big.bin       compute the checksum of a file larger than memory
  vmio cp big.bin copy.bin           copy a file through two mappings
  vmio stat 4711 --watch             print the counts of a running process's caches, once a second
  vmio top                           watch all caches of this user on a dashboard
  vmio bench map --quick             compare vmio with Linux mmap and pread, in two minutes
  vmio bench map --size 2G --dir /data --cache 512M --threads 1,2,8

Set VMIO_LOG=debug (or any tracing filter) to see the library's log.";

/// Memory-mapped I/O for files larger than memory, with control of which pages are in memory.
#[derive(Parser)]
#[command(name = "vmio", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(commands::doctor::DoctorArgs),
    Cat(commands::cat::CatArgs),
    Cp(commands::cp::CpArgs),
    Sum(commands::sum::SumArgs),
    Stat(commands::stat::StatArgs),
    Top(commands::top::TopArgs),
    Run(commands::run::RunArgs),
    Record(commands::record::RecordArgs),
    Report(commands::report::ReportArgs),
    Recover(commands::recover::RecoverArgs),
    Journal(commands::journal::JournalArgs),
    Kv(commands::kv::KvArgs),
    Pmfs(commands::pmfs::PmfsArgs),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    Trace(commands::trace::TraceArgs),
    Completions(commands::completions::CompletionsArgs),
    Man(commands::man::ManArgs),
    /// Run one measurement and print its result (benchmarks start this as a process)
    #[command(name = vmio_measure::child::COMMAND, hide = true)]
    BenchChild {
        /// The task, as JSON
        task: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("VMIO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match commands::pmfs::is_in_background() {
        true => log.with_ansi(false).init(),
        false => log.without_time().init(),
    }

    let outcome = match cli.command {
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Cat(args) => commands::cat::run(&args),
        Command::Cp(args) => commands::cp::run(&args),
        Command::Sum(args) => commands::sum::run(&args),
        Command::Stat(args) => commands::stat::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Record(args) => commands::record::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
        Command::Journal(args) => commands::journal::run(&args),
        Command::Kv(args) => commands::kv::run(&args),
        Command::Pmfs(args) => commands::pmfs::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Sim(args) => sim::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::BenchChild { task } => bench::serve(&task),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmio: {error:#}");
            let cannot_run = error.downcast_ref::<CannotRun>().map(|cannot_run| cannot_run.status);
            let status = cannot_run.or_else(|| error.downcast_ref::<NotSound>().map(|not_sound| not_sound.status));
            status.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Whether the reader of the output has closed the pipe: `vmio cat big | head` ends when `head` does, and that is not a failure.
fn reader_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
