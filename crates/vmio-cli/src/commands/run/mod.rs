//! `vmio run`: a program as it is, whose files are mapped through vmio.

mod preload;
mod program;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use vmio::{Cache, Engine};

use crate::size::parse_size;

/// There while the kernel module is loaded.
const DEVICE: &str = "/dev/vmio";

const EXAMPLES: &str = "\
Examples:
  vmio run --cache 4G --under /data -- my-database --port 4000
  vmio run --cache 256M --under . --stats -- python3 train.py
  vmio run --engine kernel --cache 4G --under /data -- my-database
                                       through the kernel module: the fastest, see its page kernel.md
  vmio run --cache 256M --under /data --stats --json -- my-database 2> report.json
  vmio run --cache 256M --under /data --verbose -- my-database
                                       says which mappings are taken, which are left to Linux, and why

Shared mappings of regular files under the folders, and private ones for loads alone, become mappings of one vmio cache
of each process. Reads and writes of these files go through the mappings. All else goes to Linux as ever.

One process at a time may have a file mapped for stores, and nobody else beside it: the mmap of the second fails (EAGAIN).
What another process writes to it by calls is not seen, and may be lost.
A forked child does not have its parent's mappings. What a process that is killed has not synced is lost without the
module, since it is in no page cache. The design page run.md lists these differences from Linux.

It takes the kernel module and the right to open /dev/vmio, or the right to handle page faults of system calls
(CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1); vmio doctor says what there is. Static and setuid programs are
refused, since the loader does not preload anything into them.";

/// Run a program as it is, with its files mapped through vmio.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Memory of the cache, of each process that maps files
    #[arg(long, value_parser = parse_size)]
    cache: u64,
    /// Who takes the faults
    #[arg(long, value_enum, default_value_t)]
    engine: RunEngine,
    /// Map the files under this folder; may be given several times
    #[arg(long, value_name = "DIR", required = true)]
    under: Vec<PathBuf>,
    /// Say on standard error what is taken, what is left to Linux, and why
    #[arg(long)]
    verbose: bool,
    /// Say on standard error at the end what was done
    #[arg(long)]
    stats: bool,
    /// With --stats, as a JSON object a process
    #[arg(long, requires = "stats")]
    json: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The engines with which system calls find the pages of what they are given.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RunEngine {
    /// The kernel module, if it is loaded and may be opened, or else reader threads
    #[default]
    Auto,
    /// The kernel module; each process's cache is memory that is reserved when it maps its first file
    Kernel,
    /// Threads of each process, by userfaultfd
    ReaderThread,
}

/// Runs `vmio run`: becomes the program, if it can.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let (name, arguments) = args.command.split_first().context("no command is given")?;
    let program = program::find(name)?;
    program::check(&program)?;
    let library = preload::library()?;
    let under = args.under.iter().map(|folder| {
        let canonical = folder.canonicalize().with_context(|| format!("cannot look into {}", folder.display()))?;
        if canonical.is_dir() { Ok(canonical) } else { bail!("{} is not a folder", folder.display()) }
    });
    let under = under.collect::<anyhow::Result<Vec<_>>>()?;
    try_cache(args)?;

    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    command.env("LD_PRELOAD", preload::before(&library, env::var_os("LD_PRELOAD")));
    // crates/vmio-posix/src/settings.rs reads these.
    command.env("VMIO_RUN_CACHE", args.cache.to_string());
    let engine = args.engine.to_possible_value().context("the engine has no name")?;
    command.env("VMIO_RUN_ENGINE", engine.get_name());
    command.env("VMIO_RUN_UNDER", env::join_paths(under).context("the path of a folder has a colon in it")?);
    for (variable, value) in [
        ("VMIO_RUN_VERBOSE", args.verbose.then_some("1")),
        ("VMIO_RUN_STATS", args.stats.then_some(if args.json { "json" } else { "text" })),
    ] {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// What the program could only say in the middle of its work is better said before: that no such cache can be had.
fn try_cache(args: &RunArgs) -> anyhow::Result<()> {
    let build = |engine| Cache::builder().engine(engine).capacity(args.cache).build().map(drop);
    let built = match args.engine {
        RunEngine::Kernel => build(Engine::Kernel),
        RunEngine::ReaderThread => build(Engine::ReaderThread),
        RunEngine::Auto => build(Engine::Kernel).or_else(|error| {
            // Who has the module wants to know why it is not used.
            if Path::new(DEVICE).exists() {
                eprintln!("vmio run: without the kernel module: {error}");
            }
            build(Engine::ReaderThread)
        }),
    };
    built.context("cannot build the cache (--cache sets its size; `vmio doctor` says what is missing)")
}
