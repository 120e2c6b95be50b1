//! The cache of a process, built at its first mapping of a file under one of the folders.

use std::fmt;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid};
use vmio::{Cache, Engine, SignalsBlocked};

use crate::file::File;
use crate::messages;
use crate::own_descriptors;
use crate::settings::{CacheSettings, Settings};
use crate::statistics::Statistics;
use crate::table::Table;

/// The cache of a process and the files mapped through it, until the process ends.
pub(crate) struct Process {
    pub(crate) settings: &'static Settings,
    pub(crate) cache: Cache,
    pub(crate) table: Table,
    pub(crate) statistics: Statistics,
    id: Pid,
    has_reported: AtomicBool,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// In a forked child: its parent's. The child has its addresses and descriptors, but none of its threads.
static PARENTS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Whether the child was forked from that very process and has done nothing since.
static MAY_ADOPT: AtomicBool = AtomicBool::new(false);
static STARTING: Mutex<Start> = Mutex::new(Start::Possible);

/// Whether a process without a cache may get one.
#[derive(PartialEq, Eq)]
pub(crate) enum Start {
    Possible,
    /// An attempt has failed, and a message has said why.
    Failed,
}

/// Held while the process gets its cache. Signals must be blocked.
pub(crate) fn starting() -> MutexGuard<'static, Start> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// This process's, if it has mapped a file.
    pub(crate) fn current() -> Option<&'static Process> {
        // SAFETY: the process stored there is never freed.
        unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
    }

    /// This process's, built now if necessary; `None` if that fails.
    pub(crate) fn start(settings: &'static Settings) -> Option<&'static Process> {
        let _signals = SignalsBlocked::new();
        let mut start = starting();
        if let Some(process) = Process::current() {
            return Some(process);
        }
        if *start == Start::Failed {
            return None;
        }
        messages::keep();
        let cache = match Process::parents().filter(|parent| parent.uses_page_cache()) {
            Some(parent) => parent.cache.in_child(),
            None => build_cache(settings.cache.as_ref()?, settings.is_verbose),
        };
        let process = cache.map(|cache| Process {
            settings,
            cache,
            table: Table::new(),
            statistics: Statistics::default(),
            id: getpid(),
            has_reported: AtomicBool::new(false),
        });
        match process {
            Ok(process) => {
                process.cache.descriptors().iter().for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
                let process = Box::leak(Box::new(process));
                PROCESS.store(process, Ordering::Release);
                Some(process)
            }
            Err(error) => {
                *start = Start::Failed;
                messages::say(format_args!("no mapping is served, since the cache cannot be built: {error}"));
                None
            }
        }
    }

    /// Leaves the cache to the parent, in a forked child, which has none of the cache's threads.
    pub(crate) fn is_left_to_parent() {
        let parents = PROCESS.swap(ptr::null_mut(), Ordering::AcqRel);
        if !parents.is_null() {
            PARENTS.store(parents, Ordering::Release);
        }
        // Files that the parent had inherited and not adopted may be gone.
        MAY_ADOPT.store(!parents.is_null(), Ordering::Release);
    }

    fn parents() -> Option<&'static Process> {
        // SAFETY: the process stored there is never freed.
        unsafe { PARENTS.load(Ordering::Acquire).as_ref() }
    }

    /// Adopts the files that the parent has mapped, in a child just after its fork, where Linux takes the faults. The child has them
    /// mapped, too, and both processes keep within the budget.
    pub(crate) fn adopt_from_parent() {
        if !MAY_ADOPT.swap(false, Ordering::AcqRel) {
            return;
        }
        let Some(parent) = Process::parents().filter(|parent| parent.uses_page_cache() && !parent.table.is_empty())
        else {
            return;
        };
        let Some(process) = Process::start(parent.settings) else { return };
        let mut table = process.table.lock();
        for theirs in parent.table.lock().all() {
            // SAFETY: nothing has happened in the child yet, so it has everything that its parent had.
            match unsafe { File::inherited(&process.cache, &theirs) } {
                Ok(file) => table.insert(Arc::new(file)),
                Err(error) => process.note(format_args!("{}: not served in a child: {error}", theirs.path.display())),
            }
        }
    }

    /// Whether the caller is this process, and not its child between vfork and exec.
    pub(crate) fn is_caller(&self) -> bool {
        getpid() == self.id
    }

    /// Whether the mapped pages are those of Linux's page cache, which all processes share.
    pub(crate) fn uses_page_cache(&self) -> bool {
        self.cache.engine() == Engine::Managed
    }

    /// Prints a message with `--verbose`.
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        if self.settings.is_verbose {
            self.say(what);
        }
    }

    /// Prints a message.
    #[allow(clippy::unused_self, reason = "only a process with a cache prints these")]
    pub(crate) fn say(&self, what: fmt::Arguments<'_>) {
        messages::say(what);
    }

    /// Writes the stores to the files before the process ends or runs another program.
    pub(crate) fn sync_all(&self) {
        if self.table.is_empty() {
            return;
        }
        let files = self.table.lock().all();
        for file in files.iter().filter(|file| file.keeps_stores()) {
            if let Err(error) = file.sync_all() {
                self.say(format_args!("{}: stores are lost: {error}", file.path.display()));
            }
        }
    }

    /// Undoes the report after a failed exec: the process goes on, and reports again at its end.
    pub(crate) fn exec_failed(&self) {
        self.has_reported.store(false, Ordering::Relaxed);
    }

    /// Prints the report of the process, once.
    pub(crate) fn report(&self) {
        if self.has_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(form) = self.settings.report else { return };
        let process = self.id.as_raw_nonzero().get() as u32;
        let report = self.statistics.report(process, self.cache.engine(), &self.cache.stats(), form);
        messages::write(report.as_bytes());
    }
}

/// Builds the cache. A system call of the program's may get a pointer into a mapping and must find the page, so the SIGBUS engine will not
/// do. Without the kernel module the managed engine serves.
fn build_cache(settings: &CacheSettings, is_verbose: bool) -> vmio::Result<Cache> {
    let options = Cache::builder().capacity(settings.bytes).hold_back_bursts(true);
    let options = options.poll_submissions(settings.polls_submissions);
    let build = |engine| options.clone().engine(engine).build();
    settings.engine.map_or_else(
        || {
            build(Engine::Kernel).or_else(|error| {
                if is_verbose {
                    messages::say(format_args!("not using the kernel module: {error}"));
                }
                build(Engine::Managed)
            })
        },
        build,
    )
}
