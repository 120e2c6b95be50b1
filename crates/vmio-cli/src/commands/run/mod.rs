//! `vmio run`: runs an unmodified program with its files mapped through vmio.

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
use preloadable::variables;
use vmio::{Cache, Engine};
use vmio_heap::HeapEngine;
use vmio_report::size::{parse_cache, parse_size};

use super::source::warn_of_size;

pub use self::program::CannotRun;

/// The module's device file; it exists while the kernel module is loaded.
const DEVICE: &str = "/dev/vmio";

const EXAMPLES: &str = "\
Examples:
  vmio run --cache 4G --under /data -- my-database --port 4000
                                       map the files under /data through a cache of 4 GiB
  vmio run --cache 256M --under . --stats -- python3 train.py
                                       the same, with a report at the end
  vmio run --cache 256M --under /data --stats --json -- my-database 2> report.json
  vmio run --cache 256M --under /data --verbose -- my-database
                                       say which mappings are served, which are not, and why
  vmio run --engine kernel --cache 4G --under /data -- my-database
                                       use the kernel module, the fastest engine (see docs/kernel.md)
  vmio run --engine managed --cache 4G --under /data -- my-server --processes 8
                                       let several processes store to the same files
  vmio run --cache 4G --under /data --preallocate -- my-database
                                       allocate sparse files when they are mapped; a full disk is then an error of mmap
  vmio run --engine ring0 --poll-submissions --cache 4G --under /data -- my-database
                                       handle faults in a virtual machine of the process's own, and read without system calls

  vmio run --mode posix --under /data -- my-database
                                       read and overwrite cached data without system calls (see docs/posix.md)
  vmio run --mode posix --cache 4G --under /data -- my-database
                                       the same, with at most 4 GiB of the files in memory
  vmio run --mode posix --cache 4G --when-shared refuse --under /data -- my-database
                                       fail with EBUSY on a file that another process has in its cache
  vmio run --mode sync --under /data -- tar xf archive.tar -C /data
                                       every file and name is durable when tar ends
  vmio run --mode strict --under /data -- my-database
                                       each write is durable and atomic when it returns
  vmio run --mode strict --strict-coverage --under /data -- make backup
                                       the same, and refuse programs that vmio does not cover

  vmio run --heap /data/heap --cache 2G -- sort big.txt
                                       put the program's heap into a file, with at most 2 GiB of it in memory

With --cache and without --mode, vmio serves mappings of regular files under the folders: shared ones, and private ones without write
access. They become mappings of one vmio cache per process. Linux does everything else.

With --engine managed, any number of processes may store to a file and see each other's stores. Forks, kills, reads and writes behave
as without vmio. The other engines keep their own pages, with these differences from Linux:
  - One process at a time may map a file for stores, and no other process may map it meanwhile: its mmap fails with EAGAIN.
  - Writes of other processes to a mapped file are not seen, and may be lost.
  - A forked child does not have its parent's mappings.
  - With reader threads, a process that is killed loses the stores that it has not synced.
docs/reference/run-differences.md lists all differences.

The kernel engine requires the kernel module and the right to open /dev/vmio. Reader threads require the right to handle page faults of
system calls (CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1). The managed engine requires nothing. `vmio doctor` shows what this machine
has. vmio refuses to start static and setuid programs, because the loader does not preload libraries into them. If CMD starts such
programs, or Go programs, they run without vmio, and a message on standard error names each once. --strict-coverage refuses them, and
--stats lists them.

With --mode, vmio takes a lease (F_SETLEASE) of a file that is used often and that no other process writes. It then copies reads and
overwrites from and to a mapping of the file. A lease of your own file requires no privilege. Another process that opens the file waits
until vmio has returned the lease. docs/posix.md says what the modes promise.

With --mode and --cache, the bytes of leased files are in a vmio cache of the process, and misses bypass the page cache (since Linux 6.14;
before, the page cache has them, too). This requires userfaultfd for faults of the program's own code, which needs no privilege. One
process at a time has a file in its cache. When another process opens the file, vmio first writes its bytes back. From then on Linux
serves the file for both. In mode posix, a process that is killed loses its writes since the last fsync.

With --when-shared refuse, CMD and its children do not wait when they open such a file: they get EBUSY. The other process writes its bytes
back all the same, and soon has the file in its cache again. Programs without the option wait.

With --heap, the program's allocations (malloc and related functions) lie in a new file. The file loses its name at once and disappears
when the program ends. This applies to CMD and to programs that it becomes by exec, but not to programs that it starts. A forked child
gets a copy. No privilege is required. docs/heap.md has the limits.

With --mode strict, vmio first replays the logs that dead processes have left in the folders. Every other program that uses such a folder
in this mode does the same, and so does `vmio recover`.

Exit status: the status of CMD; 127 if there is no such program; 126 if it cannot run with vmio; 1 or 2 if vmio itself fails.";

/// Run an unmodified program with its files mapped through vmio.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Memory of each process's vmio cache, through which files are mapped or, with --mode, read and written. A size, a percentage of the
    /// memory that is now available (in a container: within its cgroup), or auto, which is 50%
    #[arg(long, value_parser = parse_cache, required_unless_present = "mode")]
    cache: Option<u64>,
    /// With --cache and without --mode: the engine that handles page faults
    #[arg(long, value_enum, default_value_t, conflicts_with = "mode")]
    engine: RunEngine,
    /// Read and overwrite files without system calls: from and to the page cache or, with --cache, the process's vmio cache
    #[arg(long, value_enum)]
    mode: Option<RunMode>,
    /// With --mode and --cache: what an open does with a file that another process has in its cache
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, requires_all = ["mode", "cache"])]
    when_shared: WhenShared,
    /// With --mode strict: the length of each process's log in each folder. A longer log needs fewer checkpoints. No write may be longer
    /// than the log
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128M", requires = "mode")]
    log_size: u64,
    /// Put the program's heap into this file, which must not exist yet; --cache is the part that is in memory
    #[arg(long, value_name = "FILE", requires = "cache", conflicts_with_all = ["mode", "engine", "under", "on_full", "strict_coverage", "verbose", "stats"])]
    heap: Option<PathBuf>,
    /// With --heap: the most that can be allocated; by default 16 times the cache. The file takes disk space only for pages that the program writes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "heap")]
    heap_size: Option<u64>,
    /// With --heap: the engine that keeps the heap within the cache. For comparison, mmap is a plain shared mapping without a limit
    #[arg(long, value_name = "ENGINE", value_parser = heap::engine_parser(), default_value = HeapEngine::default().name(), requires = "heap")]
    heap_engine: HeapEngine,
    /// Serve the files under this folder; may be given several times
    #[arg(long, value_name = "DIR", required_unless_present = "heap")]
    under: Vec<PathBuf>,
    /// With the managed engine: what a store to a mapping does when the disk is full
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, conflicts_with = "mode")]
    on_full: OnFull,
    /// Allocate disk space for files that CMD maps for stores, holes of sparse files above all. A full disk is then an error of mmap (ENOSPC)
    /// instead of a SIGBUS at a later store
    #[arg(long, requires = "cache", conflicts_with_all = ["mode", "heap"])]
    preallocate: bool,
    /// With the ring0 engine: have a thread of the kernel submit reads and writes of mapped files (io_uring), so that most misses make no
    /// system call. Each process that maps files has such a thread, which takes a core while there are misses
    #[arg(long, requires = "cache", conflicts_with_all = ["mode", "heap"])]
    poll_submissions: bool,
    /// Refuse programs that would run without vmio (EACCES) when CMD starts or becomes them: static, setuid and Go programs. Without this
    /// option a message on standard error names each
    #[arg(long)]
    strict_coverage: bool,
    /// Print on standard error which mappings and files are served, which are not, and why
    #[arg(long)]
    verbose: bool,
    /// Print a report of each process on standard error at its end, if it used files under the folders
    #[arg(long)]
    stats: bool,
    /// With --stats: print a JSON object for each process
    #[arg(long, requires = "stats")]
    json: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The engines with mappings that a program can pass to system calls.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RunEngine {
    /// The kernel module if it is loaded and this user may open it, else managed
    #[default]
    Auto,
    /// The kernel module; each process reserves the cache's memory when it maps its first file
    Kernel,
    /// Linux mmap, and a thread in each process that evicts the least recently used pages beyond --cache; several processes may store
    /// to one file, and no privilege is required
    Managed,
    /// Threads of each process, by userfaultfd; pages are vmio's own, and nothing else writes or evicts them
    ReaderThread,
    /// Experimental: threads run in a virtual machine of the process's own, by KVM, and handle their faults there; nobody has measured it on a
    /// processor yet
    Ring0,
}

/// The promises of calls on files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunMode {
    /// The same promises as without vmio
    #[default]
    Posix,
    /// Each call that changes a file or a folder is durable when it returns: no fsync is needed
    Sync,
    /// As sync, and each write is atomic across a crash, by a log in the subfolder .vmio of each folder
    Strict,
}

/// The behaviour of an open of a file that another process has a lease on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WhenShared {
    /// It waits until that process has written its bytes back; then Linux serves the file for both
    #[default]
    Wait,
    /// It fails with EBUSY
    Refuse,
}

/// The behaviour of a store while the disk has no space for its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnFull {
    /// The program gets SIGBUS, as without vmio, and a message on standard error says why
    #[default]
    Fail,
    /// The thread waits until there is space, and a message on standard error says so
    Wait,
}

/// Runs `vmio run`: becomes the program by exec.
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
        let canonical =
            folder.canonicalize().with_context(|| format!("cannot open the folder {} of --under", folder.display()))?;
        if canonical.is_dir() {
            Ok(canonical)
        } else {
            bail!("{} is not a folder: --under takes folders", folder.display())
        }
    });
    let under = under.collect::<anyhow::Result<Vec<_>>>()?;
    let engine = match (args.on_full, args.engine) {
        (OnFull::Fail, engine) => engine,
        (OnFull::Wait, RunEngine::Auto | RunEngine::Managed) => RunEngine::Managed,
        (OnFull::Wait, engine) => {
            let engine = engine.to_possible_value().context("the engine has no name")?;
            bail!("--on-full wait requires --engine managed, not {}", engine.get_name())
        }
    };
    match (args.cache, &args.mode) {
        (Some(bytes), None) => try_cache(engine, bytes, args.poll_submissions)?,
        (Some(bytes), Some(_)) => try_mode_cache(bytes)?,
        (None, _) => {}
    }
    for folder in &under {
        let replayed = log::replay(folder);
        if matches!(args.mode, Some(RunMode::Strict)) {
            replayed?;
            log::try_one(folder, args.log_size)?;
        } else if let Err(error) = replayed {
            // Another user may use the folder. That user's logs do not concern this one.
            eprintln!("vmio: warning: {error:#}");
        }
    }

    let mut command = command(&program, name, arguments, preload::LIBRARY)?;
    // crates/vmio-posix/src/settings.rs reads these.
    let engine = engine.to_possible_value().context("the engine has no name")?;
    let mode = args.mode.as_ref().and_then(ValueEnum::to_possible_value);
    let log_bytes = args.log_size.to_string();
    let cache_bytes = args.cache.map(|bytes| bytes.to_string());
    command.env(variables::UNDER, list_of(&under)?);
    for (variable, value) in [
        (variables::CACHE, cache_bytes.as_deref()),
        (variables::ENGINE, args.cache.filter(|_| args.mode.is_none()).map(|_| engine.get_name())),
        (variables::MODE, mode.as_ref().map(|mode| mode.get_name())),
        (variables::WHEN_SHARED, (args.when_shared == WhenShared::Refuse).then_some("refuse")),
        (variables::LOG_BYTES, Some(log_bytes.as_str())),
        (variables::ON_FULL, (args.on_full == OnFull::Wait).then_some("wait")),
        (variables::PREALLOCATE, args.preallocate.then_some("1")),
        (variables::POLL_SUBMISSIONS, args.poll_submissions.then_some("1")),
        (variables::STRICT_COVERAGE, args.strict_coverage.then_some("1")),
        (variables::VERBOSE, args.verbose.then_some("1")),
        (variables::STATS, args.stats.then_some(if args.json { "json" } else { "text" })),
    ] {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    become_program(command, &program)
}

/// The command that runs the program with a library preloaded.
fn command(program: &Path, name: &OsStr, arguments: &[OsString], library: &str) -> anyhow::Result<Command> {
    let library = preload::library(library)?;
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    command.env("LD_PRELOAD", preload::before(&library, env::var_os("LD_PRELOAD")));
    Ok(command)
}

/// The folders in the form that the library reads.
fn list_of(under: &[PathBuf]) -> anyhow::Result<OsString> {
    let list = env::join_paths(under);
    list.with_context(|| format!("a folder of {under:?} has a colon in its path: rename it, or use a link without one"))
}

fn become_program(mut command: Command, program: &Path) -> anyhow::Result<()> {
    let error = command.exec();
    Err(CannotRun::after(&error, program).into())
}

/// Builds such a cache once, to fail before the program starts and not in the middle of its work.
fn try_cache(engine: RunEngine, bytes: u64, polls: bool) -> anyhow::Result<()> {
    let build = |engine| Cache::builder().engine(engine).capacity(bytes).poll_submissions(polls).build().map(drop);
    let built = match engine {
        RunEngine::Kernel => build(Engine::Kernel),
        RunEngine::Managed => build(Engine::Managed),
        RunEngine::ReaderThread => build(Engine::ReaderThread),
        RunEngine::Ring0 => build(Engine::Ring0),
        RunEngine::Auto => build(Engine::Kernel).or_else(|error| {
            // A user who has the module should know why vmio does not use it.
            if Path::new(DEVICE).exists() {
                eprintln!("vmio run: not using the kernel module: {error}");
            }
            build(Engine::Managed)
        }),
    };
    built.context("cannot build the cache (--cache sets its size; `vmio doctor` says what is missing)")
}

/// The same for the cache of --mode. The SIGBUS engine handles misses in the thread that copies, and so in signal handlers, too.
fn try_mode_cache(bytes: u64) -> anyhow::Result<()> {
    let built = Cache::builder().engine(Engine::Sigbus).capacity(bytes).build().map(drop);
    built.context(
        "cannot build the cache (--cache sets its size; without it reads and writes use the page cache; `vmio doctor` says what is missing)",
    )
}
