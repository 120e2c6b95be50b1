//! `vmio run`: a program as it is, whose files are mapped through vmio.

mod heap;
mod log;
mod preload;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use vmio::{Cache, Engine};
use vmio_heap::HeapEngine;
use vmio_report::size::{parse_cache, parse_size};

use super::source::warn_of_size;

pub use self::program::CannotRun;

/// There while the kernel module is loaded.
const DEVICE: &str = "/dev/vmio";

const EXAMPLES: &str = "\
Examples:
  vmio run --cache 4G --under /data -- my-database --port 4000
  vmio run --cache 256M --under . --stats -- python3 train.py
  vmio run --engine kernel --cache 4G --under /data -- my-database
                                       through the kernel module: the fastest, see its page kernel.md
  vmio run --mode strict --strict-coverage --under /data -- make backup
                                       fails if a part of it would run without vmio, and so without the promise
  vmio run --engine managed --cache 4G --under /data -- my-server --processes 8
                                       processes that store to the same files
  vmio run --cache 256M --under /data --stats --json -- my-database 2> report.json
  vmio run --cache 256M --under /data --verbose -- my-database
                                       says which mappings are taken, which are left to Linux, and why

  vmio run --mode posix --under /data -- my-database
                                       reads and overwrites of cached data without system calls; see posix.md
  vmio run --mode strict --under /data -- my-database
                                       each write is durable and atomic when it returns
  vmio run --mode posix --cache 4G --under /data -- my-database
                                       the same, with at most 4 GiB of the files in memory, whatever their size
  vmio run --mode posix --cache 4G --when-shared refuse --under /data -- my-database
                                       a second one that opens a file which the first has in its cache gets EBUSY
  vmio run --mode sync --under /data -- tar xf archive.tar -C /data
                                       every file and name is durable when tar ends

  vmio run --heap /data/heap --cache 2G -- sort big.txt
                                       the program's heap lies in a file, of which 2 GiB are in memory
  vmio run --cache 4G --under /data --preallocate -- my-database
                                       sparse files get their room when they are mapped, or mmap fails

With --cache, shared mappings of regular files under the folders, and private ones for loads alone, become mappings of one vmio cache
of each process. All else goes to Linux as ever.

With --engine managed any number of processes may store to a file and see each other's stores; forks, kills, reads and writes are as
without vmio. With the others pages are vmio's own. One process at a time may have a file mapped for stores, and nobody else beside it:
the mmap of the second fails (EAGAIN). What another process writes to it by calls is not seen, and may be lost. A forked child
does not have its parent's mappings. What a process that is killed has not synced is lost with reader threads. The design page run.md
lists these differences from Linux.

The kernel engine takes the module and the right to open /dev/vmio, reader threads the right to handle page faults of system calls
(CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1), managed nothing; vmio doctor says what there is. Static and setuid programs are
refused, since the loader does not preload anything into them. Where CMD starts such programs, or programs of Go, they run without
vmio, and standard error says so once for each process and its forks; --strict-coverage has them refused, and --stats lists them.

With --mode, a file that is read or written often enough, and that no other process writes, is copied from and to the kernel's
own mapping of it. It takes a lease of the file (F_SETLEASE), which needs no right for one's own files; another process that
opens the file waits until it is given back. The page posix.md says what is promised.

With --mode and --cache the bytes of such files are in a vmio cache of the process's, and misses go past the page cache (Linux 6.14; before, the
page cache has them, too). It takes userfaultfd, for faults of programs' own code alone, which needs no right. A file is one process's at a
time: when another opens it, what was written is handed to the kernel first, and the file is Linux's from then on, for both. In mode posix a
process that is killed loses what it has written since its last fsync.

With --when-shared refuse, CMD and what it starts do not wait when they open such a file of another process's: they get EBUSY. The
other process hands its bytes over all the same, and has the file in its cache again soon. Programs without the option wait.

With --heap, what the program allocates (malloc and its kin) lies in a file that is made anew, loses its name at once and is gone
when the program ends. The heap is that of CMD and of programs that it becomes, not of those that it starts. A forked child
gets a copy. No right is needed. The page heap.md has the design and its limits.

Exit status: that of CMD; 127 if there is no such program, 126 if it cannot be run with vmio, 1 or 2 if vmio cannot do what it is asked.

With --mode strict, what programs that died have left in the logs of the folders is written to their files before CMD is
started, and by whichever program under the mode uses a folder next; vmio recover does the same.";

/// Run a program as it is, with its files mapped through vmio.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Map files through a vmio cache of so much memory, of each process; with --mode, read and write them through it. A size, a share
    /// such as 50% of the memory that there is now (in a container: that its cgroup leaves), or auto, which is half of it
    #[arg(long, value_parser = parse_cache, required_unless_present = "mode")]
    cache: Option<u64>,
    /// With --cache and without --mode, who takes the faults
    #[arg(long, value_enum, default_value_t, conflicts_with = "mode")]
    engine: RunEngine,
    /// Read and overwrite files without system calls, by the kernel's own mappings of them or, with --cache, by frames of the process's own
    #[arg(long, value_enum)]
    mode: Option<RunMode>,
    /// With --mode and --cache, what an open does of a file that another process has in its cache
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, requires_all = ["mode", "cache"])]
    when_shared: WhenShared,
    /// With --mode strict, the length of the log that each process has in each folder: no write is longer, and a longer log is
    /// begun anew less often
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128M", requires = "mode")]
    log_size: u64,
    /// Have what the program allocates in this file, which must not be there, with --cache for how much of it is in memory
    #[arg(long, value_name = "FILE", requires = "cache", conflicts_with_all = ["mode", "engine", "under", "on_full", "strict_coverage", "verbose", "stats"])]
    heap: Option<PathBuf>,
    /// With --heap, how much can be allocated; 16 times the cache by default. The file takes room only for what is stored to
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "heap")]
    heap_size: Option<u64>,
    /// With --heap, who keeps it within the cache; mmap is a plain shared mapping that only a memory cgroup limits, for comparison
    #[arg(long, value_name = "ENGINE", value_parser = heap::engine_parser(), default_value = HeapEngine::default().name(), requires = "heap")]
    heap_engine: HeapEngine,
    /// Map the files under this folder; may be given several times
    #[arg(long, value_name = "DIR", required_unless_present = "heap")]
    under: Vec<PathBuf>,
    /// With the engine managed, what a store to a mapping does where the disk is full
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, conflicts_with = "mode")]
    on_full: OnFull,
    /// Give room on the disk to what CMD maps to be stored to, holes of sparse files above all. A full disk is an error of its mmap (ENOSPC), and
    /// no SIGBUS at some later store
    #[arg(long, requires = "cache", conflicts_with_all = ["mode", "heap"])]
    preallocate: bool,
    /// Refuse programs that run without vmio and that CMD starts or becomes (EACCES): static ones, setuid ones and those of Go. Else standard
    /// error has a line for each
    #[arg(long)]
    strict_coverage: bool,
    /// Say on standard error what is taken, what is left to Linux, and why
    #[arg(long)]
    verbose: bool,
    /// Say on standard error at the end what was done; nothing for processes that used no file under the folders
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
    /// The kernel module, if it is loaded and may be opened, or else managed
    #[default]
    Auto,
    /// The kernel module; each process's cache is memory that is reserved when it maps its first file
    Kernel,
    /// Linux itself, and a thread of each process that keeps to --cache by giving up what was touched longest ago; several processes may
    /// store to one file, and no right is needed
    Managed,
    /// Threads of each process, by userfaultfd: pages are vmio's own, and nothing else writes or evicts them
    ReaderThread,
}

/// What calls about files promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunMode {
    /// What they promise without vmio
    #[default]
    Posix,
    /// Each call that changes a file or a folder is durable when it returns: no fsync is needed
    Sync,
    /// As sync, and each write is whole or not there after a crash, by a log in the folder .vmio of each folder
    Strict,
}

/// What an open does of a file that another process has to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WhenShared {
    /// It waits until that process has handed over what it has written, and then both use the file by Linux's calls
    #[default]
    Wait,
    /// It fails with EBUSY
    Refuse,
}

/// What a store to a page does for which the disk has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnFull {
    /// The program gets SIGBUS, as without vmio, and standard error says why
    #[default]
    Fail,
    /// The thread waits until there is room, and standard error says so
    Wait,
}

/// Runs `vmio run`: becomes the program, if it can.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let (name, arguments) = args.command.split_first().context("no command is given")?;
    let program = program::find(name)?;
    program::check(&program, args.strict_coverage)?;
    args.cache.into_iter().for_each(warn_of_size);
    if let Some(file) = &args.heap {
        let mut command = command(&program, name, arguments, preload::HEAP_LIBRARY)?;
        heap::serve(&mut command, file, args.cache.context("--heap takes --cache")?, args.heap_size, args.heap_engine)?;
        return become_program(command, &program);
    }
    let under = args.under.iter().map(|folder| {
        let canonical = folder.canonicalize().with_context(|| format!("cannot look into {}", folder.display()))?;
        if canonical.is_dir() { Ok(canonical) } else { bail!("{} is not a folder", folder.display()) }
    });
    let under = under.collect::<anyhow::Result<Vec<_>>>()?;
    let engine = match (args.on_full, args.engine) {
        (OnFull::Fail, engine) => engine,
        (OnFull::Wait, RunEngine::Auto | RunEngine::Managed) => RunEngine::Managed,
        (OnFull::Wait, _) => bail!("--on-full wait takes --engine managed, whose pages are Linux's own"),
    };
    match (args.cache, &args.mode) {
        (Some(bytes), None) => try_cache(engine, bytes)?,
        (Some(bytes), Some(_)) => try_frames(bytes)?,
        (None, _) => {}
    }
    for folder in &under {
        let replayed = log::replay(folder);
        if matches!(args.mode, Some(RunMode::Strict)) {
            replayed?;
            log::try_one(folder, args.log_size)?;
        } else if let Err(error) = replayed {
            // Others may have it in use, whose logs are none of this user's business.
            eprintln!("vmio: warning: {error:#}");
        }
    }

    let mut command = command(&program, name, arguments, preload::LIBRARY)?;
    // crates/vmio-posix/src/settings.rs reads these.
    let engine = engine.to_possible_value().context("the engine has no name")?;
    let mode = args.mode.as_ref().and_then(ValueEnum::to_possible_value);
    let log_bytes = args.log_size.to_string();
    let cache_bytes = args.cache.map(|bytes| bytes.to_string());
    command.env("VMIO_RUN_UNDER", list_of(&under)?);
    for (variable, value) in [
        ("VMIO_RUN_CACHE", cache_bytes.as_deref()),
        ("VMIO_RUN_ENGINE", args.cache.filter(|_| args.mode.is_none()).map(|_| engine.get_name())),
        ("VMIO_RUN_MODE", mode.as_ref().map(|mode| mode.get_name())),
        ("VMIO_RUN_WHEN_SHARED", (args.when_shared == WhenShared::Refuse).then_some("refuse")),
        ("VMIO_RUN_LOG_BYTES", Some(log_bytes.as_str())),
        ("VMIO_RUN_ON_FULL", (args.on_full == OnFull::Wait).then_some("wait")),
        ("VMIO_RUN_PREALLOCATE", args.preallocate.then_some("1")),
        ("VMIO_RUN_STRICT_COVERAGE", args.strict_coverage.then_some("1")),
        ("VMIO_RUN_VERBOSE", args.verbose.then_some("1")),
        ("VMIO_RUN_STATS", args.stats.then_some(if args.json { "json" } else { "text" })),
    ] {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    become_program(command, &program)
}

/// The program, with a library preloaded.
fn command(program: &Path, name: &OsStr, arguments: &[OsString], library: &str) -> anyhow::Result<Command> {
    let library = preload::library(library)?;
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    command.env("LD_PRELOAD", preload::before(&library, env::var_os("LD_PRELOAD")));
    Ok(command)
}

/// The folders as the library takes them.
fn list_of(under: &[PathBuf]) -> anyhow::Result<OsString> {
    let list = env::join_paths(under);
    list.with_context(|| format!("of the folders {under:?} one has a colon in its path: give it another name"))
}

fn become_program(mut command: Command, program: &Path) -> anyhow::Result<()> {
    let error = command.exec();
    Err(CannotRun::after(&error, program).into())
}

/// What the program could only say in the middle of its work is better said before: that no such cache can be had.
fn try_cache(engine: RunEngine, bytes: u64) -> anyhow::Result<()> {
    let build = |engine| Cache::builder().engine(engine).capacity(bytes).build().map(drop);
    let built = match engine {
        RunEngine::Kernel => build(Engine::Kernel),
        RunEngine::Managed => build(Engine::Managed),
        RunEngine::ReaderThread => build(Engine::ReaderThread),
        RunEngine::Auto => build(Engine::Kernel).or_else(|error| {
            // Who has the module wants to know why it is not used.
            if Path::new(DEVICE).exists() {
                eprintln!("vmio run: without the kernel module: {error}");
            }
            build(Engine::Managed)
        }),
    };
    built.context("cannot build the cache (--cache sets its size; `vmio doctor` says what is missing)")
}

/// The same of the frames that files are copied from and to. Misses are the copies' own, so that handlers of signals can see to them.
fn try_frames(bytes: u64) -> anyhow::Result<()> {
    let built = Cache::builder().engine(Engine::Sigbus).capacity(bytes).build().map(drop);
    built.context(
        "cannot build the cache (--cache sets its size, and without it files are copied from and to the page cache; `vmio doctor` says what is missing)",
    )
}
