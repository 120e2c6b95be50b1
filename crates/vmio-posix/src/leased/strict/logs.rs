//! The operation logs of this process: one for each folder.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use operation_log::{FileNumber, Log, LogOptions, LogState, recover};
use rustix::fs::fdatasync;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::errno;
use super::mapped_log::MappedLog;
use crate::own_descriptors;
use crate::settings::Settings;

/// The descriptors of a log: of its file, of its folder, and of its mapping.
const DESCRIPTORS_OF_LOG: usize = 3;
/// Folders that can have a log.
const LOGS_MAX: usize = 64;
/// The logs' descriptors are among this number of highest ones.
const DESCRIPTORS_LAST: u64 = 256;
/// The highest number for a descriptor of a log, whatever the limit is: the kernel's table reaches up to the highest one.
const DESCRIPTORS_MAX: u64 = 1 << 16;

/// The descriptors of the process's logs; -1 for none. A forked child has them, too, and must close them: the lock that shows that its
/// parent runs would last as long as they do.
static DESCRIPTORS: [AtomicI32; DESCRIPTORS_OF_LOG * LOGS_MAX] =
    [const { AtomicI32::new(-1) }; DESCRIPTORS_OF_LOG * LOGS_MAX];
static COUNTS: Counts = Counts {
    writes: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    shared: AtomicU64::new(0),
    checkpoints: AtomicU64::new(0),
    stores: AtomicU64::new(0),
};

/// The counts of logged writes.
pub(in super::super) struct Counts {
    pub(in super::super) writes: AtomicU64,
    pub(in super::super) bytes: AtomicU64,
    /// Of these, the writes to files that other processes had open.
    pub(in super::super) shared: AtomicU64,
    pub(in super::super) checkpoints: AtomicU64,
    /// Entries of all kinds that took no system call.
    pub(in super::super) stores: AtomicU64,
}

pub(in super::super) fn counts() -> &'static Counts {
    &COUNTS
}

/// Locked while log files are open that `DESCRIPTORS` does not have: during the making or closing of a log, and during a replay of dead
/// processes' logs. A child forked meanwhile would keep these files open, and with them the locks by which everybody takes the log's owner
/// for alive.
static OPENING: Mutex<()> = Mutex::new(());

/// Waits until nobody has such files open, and lets nobody open any. Signals must be blocked.
pub(crate) fn opening() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the parent's logs in a forked child.
pub(in super::super) fn close_descriptors_of_parent() {
    for place in &DESCRIPTORS {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            own_descriptors::remove(fd);
            // SAFETY: it was the descriptor of a log of the parent, which nobody uses here.
            unsafe { rustix::io::close(fd) };
        }
    }
    for counter in [&COUNTS.writes, &COUNTS.bytes, &COUNTS.shared, &COUNTS.checkpoints, &COUNTS.stores] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Finds vmio's own descriptor of the leased file whose operations have this key in a log. When it returns the kernel has all bytes written to
/// the file.
pub(in super::super) type FindOwn = fn(key: u64) -> Option<Result<RawFd, Errno>>;

/// The logs of the lease manager. Only its thread has them.
pub(in super::super) struct Logs {
    all: Vec<Arc<ProcessLog>>,
    find_own: FindOwn,
}

/// The log of one folder.
pub(super) struct ProcessLog {
    pub(super) log: Log,
    folder: PathBuf,
    index: u32,
    find_own: FindOwn,
    /// The number and a descriptor of the shared file that is being written to; -1 for none.
    shared: (AtomicI64, AtomicI32),
}

impl Logs {
    /// Without a log, so far.
    pub(in super::super) fn new(find_own: FindOwn) -> Self {
        Logs { all: Vec::new(), find_own }
    }

    /// The log for a file at this path, which lies under one of the folders. First replays logs of dead processes there.
    pub(super) fn of(&mut self, settings: &Settings, path: &Path) -> Result<Arc<ProcessLog>, Errno> {
        let folder = settings.under.iter().find(|folder| path.starts_with(folder)).ok_or(Errno::NOENT)?;
        replay_dead_logs(folder)?;
        if let Some(log) = self.all.iter().find(|log| log.folder == *folder) {
            return Ok(log.clone());
        }
        let index = self.all.len();
        if index >= LOGS_MAX {
            return Err(Errno::NOSPC);
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
        let options = LogOptions::new()
            .capacity_bytes(settings.log_bytes)
            .of_any_process()
            .directly(MappedLog::open)
            .descriptors_from(limit.saturating_sub(DESCRIPTORS_LAST) as RawFd);
        let _opening = opening();
        let log = Log::create(folder, options).map_err(|error| errno(&error))?;
        for (place, fd) in DESCRIPTORS[DESCRIPTORS_OF_LOG * index..]
            .iter()
            .zip(log.descriptors().into_iter().chain(log.direct_descriptor()))
        {
            own_descriptors::insert(fd.as_raw_fd());
            place.store(fd.as_raw_fd(), Ordering::Relaxed);
        }
        let shared = (AtomicI64::new(-1), AtomicI32::new(-1));
        let log =
            Arc::new(ProcessLog { log, folder: folder.clone(), index: index as u32, find_own: self.find_own, shared });
        self.all.push(log.clone());
        Ok(log)
    }

    /// Removes logs that have nothing left to replay. The next process that opens files under their folders replays the others.
    pub(in super::super) fn close(&mut self) {
        let _opening = opening();
        for log in self.all.drain(..) {
            for place in &DESCRIPTORS[DESCRIPTORS_OF_LOG * log.index as usize..][..DESCRIPTORS_OF_LOG] {
                own_descriptors::remove(place.swap(-1, Ordering::Relaxed));
            }
            if let Ok(log) = Arc::try_unwrap(log) {
                let _ = log.log.close();
            }
        }
    }
}

/// Replays the logs of dead processes, before any process uses files of the folder.
pub(in super::super) fn replay_dead_logs(folder: &Path) -> Result<(), Errno> {
    let _opening = opening();
    let recovery = recover(folder).map_err(|error| errno(&error))?;
    for log in recovery.logs {
        if let LogState::NotReplayed(error) = log.state {
            // Replaying it later would undo writes to its files.
            return Err(errno(&error));
        }
    }
    Ok(())
}

impl ProcessLog {
    /// The key by which a checkpoint finds a description with operations in the log.
    pub(super) fn key(&self, number: FileNumber) -> u64 {
        (u64::from(self.index) << 32 | u64::from(number.number())) + 1
    }

    /// Makes all files durable that the log has operations for, and empties it. The caller must have no unapplied operation.
    pub(super) fn checkpoint(&self) -> Result<(), Errno> {
        // If bytes cannot be written back, they are still there for another try: the log gets an error that says that there was no flush.
        let mut unflushed = None;
        let mut no_flush = |error: Errno| {
            unflushed = Some(error);
            io::Error::from(io::ErrorKind::NotFound)
        };
        let sync = |number: FileNumber| -> io::Result<()> {
            let (shared, fd) = &self.shared;
            let fd = match (self.find_own)(self.key(number)) {
                Some(fd) => fd.map_err(&mut no_flush)?,
                None if shared.load(Ordering::Acquire) == i64::from(number.number()) => fd.load(Ordering::Relaxed),
                None => return Err(no_flush(Errno::IO)),
            };
            // SAFETY: it is vmio's own descriptor, and a thread that closes it retires the file first and thereby waits for the end of
            // this; or it is the descriptor of a shared write, whose caller waits.
            Ok(fdatasync(unsafe { BorrowedFd::borrow_raw(fd) })?)
        };
        COUNTS.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.log.checkpoint(sync).map_err(|error| unflushed.unwrap_or_else(|| errno(&error)))
    }

    /// Sets the shared file that a checkpoint must flush.
    pub(super) fn set_shared(&self, file: Option<(FileNumber, RawFd)>) {
        let (number, fd) = file.map_or((-1, -1), |(number, fd)| (i64::from(number.number()), fd));
        self.shared.1.store(fd, Ordering::Relaxed);
        self.shared.0.store(number, Ordering::Release);
    }

    /// Makes a file durable, and retires its operations from the log.
    pub(super) fn retire(&self, number: FileNumber, sync: impl Fn() -> io::Result<()>) -> Result<(), Errno> {
        match self.log.retire(number, &sync) {
            Err(operation_log::Error::Full { .. } | operation_log::Error::Failed { .. }) => self.checkpoint(),
            outcome => outcome.map_err(|error| errno(&error)),
        }
    }
}
