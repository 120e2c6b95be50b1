//! Failure-atomic commits: the contents of several files change from one commit to the next, with nothing in between,
//! whatever happens to the process or the machine.
//!
//! A journal is a file or device beside the data. A page that must leave memory before its commit is spilled to the
//! journal, and read back from there. A commit writes the other pages, marks the end, and flushes once. A checkpoint
//! writes the committed pages into the files. It runs in the background, and when a journal is opened after a crash.
//! docs/formats/journal.md has the format, docs/design/journal.md the reasons.

mod chain;
mod checkpoint;
mod checkpoints;
mod commit;
mod commit_writes;
mod core;
mod delta;
mod delta_batch;
mod delta_records;
mod drain_gate;
mod failure;
mod format;
mod index;
mod inspect;
mod joined;
mod journaled_backing;
mod log;
mod opened;
mod participant;
mod place;
mod record_buffers;
mod recovery;
mod replay;
mod ring;
mod scan;
mod version;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use commit::Commit;
pub(crate) use delta_batch::CommitDeltas;
pub use format::{JournaledFile, RecordKind};
pub use inspect::{InspectedFile, Inspection, Record};
pub use journaled_backing::{CommitTicket, JournaledBacking};
pub(crate) use participant::Participant;
pub use recovery::RecoveryReport;

use crate::backing::{Access, Backing, FileBacking, FileUser, Locking};
use crate::error::{Error, Result};
use crate::journal::commit::NOTHING_MORE;
use crate::journal::core::Core;
use crate::journal::failure::failed_at;
use crate::journal::format::{Header, LOG_START_BYTES, Uuid, VERSION};
use crate::journal::log::Log;
use crate::journal::opened::Opened;
use crate::journal::recovery::OpenFile;
use crate::journal::ring::Ring;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;

/// The shortest log: 64 pages.
const CAPACITY_PAGES_MIN: u64 = 64;
/// Root may write to any file anyway.
const ROOT: u32 = 0;
const WRITABLE_BY_ANYBODY: u32 = 0o002;

/// Options of a journal.
///
/// # Examples
///
/// ```
/// # fn main() -> vmio::Result<()> {
/// use vmio::backing::MemoryBacking;
/// use vmio::journal::{Journal, JournalOptions};
///
/// let options = JournalOptions::new().checkpoint_at(0.25).commit_reserve(0.5);
/// let journal = Journal::create(MemoryBacking::new(64 << 20)?, options)?;
/// assert_eq!(journal.usage().used_bytes, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JournalOptions {
    checkpoint_at: f64,
    commit_reserve: f64,
}

impl JournalOptions {
    /// Makes options with the default of each method.
    pub fn new() -> Self {
        JournalOptions { checkpoint_at: 0.5, commit_reserve: 0.25 }
    }

    /// Sets the share of the log in use, 0.0 to 1.0, from which on a checkpoint begins in the background.
    ///
    /// With 1.0 the checkpoint waits until the log is full.
    ///
    /// # Default
    ///
    /// 0.5.
    pub fn checkpoint_at(mut self, share: f64) -> Self {
        self.checkpoint_at = share;
        self
    }

    /// Sets the share of the log, 0.0 to 0.9, that spills leave free.
    ///
    /// A commit of the dirty pages in memory must find space there, or it fails with [`Error::JournalFull`].
    ///
    /// # Default
    ///
    /// 0.25.
    pub fn commit_reserve(mut self, share: f64) -> Self {
        self.commit_reserve = share;
        self
    }

    fn check(&self) -> Result<()> {
        let bad = |option, value: f64, expected| Error::BadOption { option, value: value.to_string(), expected };
        if !(0.0..=1.0).contains(&self.checkpoint_at) {
            return Err(bad("checkpoint_at", self.checkpoint_at, "a share of 0.0 to 1.0"));
        }
        if !(0.0..=0.9).contains(&self.commit_reserve) {
            return Err(bad("commit_reserve", self.commit_reserve, "a share of 0.0 to 0.9"));
        }
        Ok(())
    }
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// An open journal. It is a handle: a clone is the same journal, which closes with its last handle and the last of its
/// files.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (path, journal_path) = (folder.path().join("data"), folder.path().join("journal"));
/// use vmio::backing::FileBacking;
/// use vmio::journal::{Journal, JournalOptions};
///
/// let journal = Journal::create_file(&journal_path, 1 << 20, JournalOptions::new())?;
/// let data = journal.join(FileBacking::create(&path, 1 << 20)?)?;
/// journal.commit(|commit| commit.write(&data, 4096, &[7; 4096]))?;
/// drop((data, journal));
///
/// // After a crash:
/// let (journal, report) = Journal::open_file(&journal_path, JournalOptions::new())?;
/// assert_eq!((report.last_commit, std::fs::read(&path)?[4096]), (1, 7));
/// # drop(journal);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Journal(Arc<Opened>);

/// How full a journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalUse {
    /// The length of the log.
    pub capacity_bytes: u64,
    /// The part of the log that is needed: its pages are not in the files yet, or not committed.
    pub used_bytes: u64,
    /// The part of the log appended since the last commit.
    pub uncommitted_bytes: u64,
    /// The longest time that a commit has held up stores to mappings ([`crate::MappingOptions::atomic`]).
    pub stores_held_ns_max: u64,
}

impl Journal {
    /// Makes an empty journal that fills `device`, whose contents are lost.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] for options out of their bounds or a device that is too small; [`Error::InUse`]; [`Error::Journal`].
    pub fn create(device: impl Backing + 'static, options: JournalOptions) -> Result<Self> {
        options.check()?;
        let (locking, device) = lock(Box::new(device))?;
        let journal = Self::create_on(device, options)?;
        locking.keep();
        Ok(journal)
    }

    fn create_on(device: Box<dyn Backing>, options: JournalOptions) -> Result<Self> {
        let capacity_pages = capacity_of(device.len())?;
        if let Some(file) = device.file() {
            // Allocate now, so that no spill finds the disk full. Without support from the file system that may still
            // happen.
            let allocated = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, device.len());
            match allocated {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV) => {}
                Err(error) => return Err(failed_at(&*device, "allocating")(error.into())),
            }
        }
        let uuid = Uuid::random().map_err(Error::system("drawing a random identity"))?;
        let header = Header {
            version: VERSION,
            sequence: 1,
            uuid,
            capacity_pages,
            incarnation: 1,
            tail: 0,
            applied: 0,
            commit: 0,
            files: Vec::new(),
        };
        let ring = Ring::new(device, &header);
        // Both copies: a journal that was here before must not come back.
        for sequence in [0, 1] {
            let copy = Header { sequence, ..header.clone() };
            ring.write_header(&copy).map_err(failed_at(ring.device(), "writing"))?;
        }
        ring.device().flush().map_err(failed_at(ring.device(), "flushing"))?;
        Self::start(ring, header, &options)
    }

    /// Makes a journal in a new file of `len` bytes, or over an existing file.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::create`], and [`Error::Open`].
    pub fn create_file(path: impl AsRef<Path>, len: u64, options: JournalOptions) -> Result<Self> {
        let path = path.as_ref();
        // Check first: bad options must not empty a journal, least of all one in use.
        options.check()?;
        capacity_of(len)?;
        let journal = match FileBacking::open(path, Access::ReadWrite) {
            Ok(device) => {
                let (locking, device) = lock(Box::new(device))?;
                device.set_len(len).map_err(failed_at(&*device, "setting the length of"))?;
                let journal = Self::create_on(device, options)?;
                locking.keep();
                journal
            }
            Err(_) => Self::create(FileBacking::create(path, len)?, options)?,
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(Error::system("flushing the folder of the journal"))?;
        Ok(journal)
    }

    /// Opens a journal and brings its files to the state of the last commit.
    ///
    /// `open_file` opens a file that the journal has commits for.
    ///
    /// # Errors
    ///
    /// - [`Error::NotAJournal`] if the device holds no journal, [`Error::JournalDamaged`] if that is damaged,
    ///   [`Error::Journal`] if reading fails.
    /// - [`Error::JournaledFile`] if a file of the journal is another one than before, [`Error::Checkpoint`] if writing
    ///   to it fails.
    /// - [`Error::BadOption`], and [`Error::InUse`] if another process has the journal open.
    pub fn open(
        device: impl Backing + 'static,
        options: JournalOptions,
        open_file: impl Fn(&JournaledFile) -> Result<Box<dyn Backing>>,
    ) -> Result<(Self, RecoveryReport)> {
        let open_file: OpenFile<'_> = &open_file;
        options.check()?;
        let (locking, device) = lock(Box::new(device))?;
        let (ring, header, report) = recovery::recover(device, open_file)?;
        let journal = Self::start(ring, header, &options)?;
        locking.keep();
        Ok((journal, report))
    }

    /// Opens the journal in a file, with its files at their old paths.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::open`].
    ///
    /// [`Error::NotAJournal`] also if another user than root and this one owns the file, or if anybody may write to it.
    /// Such a user could have any file written that the journal names.
    pub fn open_file(path: impl AsRef<Path>, options: JournalOptions) -> Result<(Self, RecoveryReport)> {
        let device = FileBacking::open(path, Access::ReadWrite)?;
        let journal = device.describe();
        check_trusted(&device)?;
        Self::open(device, options, |file| match FileBacking::open(&file.path, Access::ReadWrite) {
            Ok(data) => Ok(Box::new(data)),
            Err(Error::Open { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let reason = "it is missing, and the journal holds commits for it: put it back";
                Err(Error::JournaledFile { journal: journal.clone(), path: file.path.clone(), reason })
            }
            Err(error) => Err(error),
        })
    }

    fn start(ring: Ring, header: Header, options: &JournalOptions) -> Result<Self> {
        options.check()?;
        let capacity_pages = header.capacity_pages;
        let share = |share: f64| (share * capacity_pages as f64) as u64;
        let log = Log::new(ring, &header, share(options.commit_reserve));
        let generation = Generation::of_this_process().map_err(Error::system("noting the process"))?;
        let core = Core::new(generation, log, header, share(options.checkpoint_at).max(1));
        Ok(Journal(Arc::new(Opened::start(core, generation)?)))
    }

    /// Adds a file to the journal. Its contents count as committed.
    ///
    /// # Errors
    ///
    /// - [`Error::BadOption`] for a path of more than 960 bytes, or a sixty-first file; [`Error::ReadOnly`].
    /// - [`Error::AlreadyMapped`] if the file is part of the journal already.
    /// - [`Error::Checkpoint`], [`Error::Journal`] or [`Error::JournalFlush`] if writing earlier commits fails;
    ///   [`Error::Forked`].
    pub fn join(&self, data: impl Backing + 'static) -> Result<JournaledBacking> {
        self.join_boxed(Box::new(data))
    }

    /// Whether a file is part of the journal.
    pub(crate) fn has(&self, file: &JournaledBacking) -> bool {
        file.is_of(&self.0)
    }

    pub(crate) fn join_boxed(&self, data: Box<dyn Backing>) -> Result<JournaledBacking> {
        self.0.check_not_forked()?;
        let joined = self.0.join(data)?;
        Ok(JournaledBacking::new(joined, Arc::clone(&self.0)))
    }

    /// Commits the stores to all mappings of the journal ([`crate::MappingOptions::atomic`]), the spilled pages, and
    /// the pages that `write` adds.
    ///
    /// The commit covers all files at once. Returns its number once it is durable.
    ///
    /// Threads that commit while a commit is under way share the next one, and one of them leads it. Only the leader's
    /// `write` runs. So each `write` must be good for all files, and may not be called at all. If there are atomic
    /// mappings, the line of [`Commit::freeze`] is drawn before the call.
    ///
    /// `write` must not wait for the journal, or both wait for ever. It may open and close other files. It must not
    /// commit, join a file, open or drop a file of the journal (the last handle to an atomic mapping is one), nor wait
    /// for a thread that does.
    ///
    /// # Errors
    ///
    /// [`Error::JournalFull`], [`Error::Journal`] or [`Error::JournalFlush`], and the errors of `write`.
    ///
    /// After an error and a crash, recovery may find the commit as a whole or not at all. Its pages are part of the
    /// next commit that succeeds.
    ///
    /// A child that `write` forks takes no part in the commit: in the child the call fails with [`Error::Forked`] once
    /// `write` returns.
    pub fn commit(&self, write: impl FnOnce(&Commit<'_>) -> Result<()>) -> Result<u64> {
        self.0.commit(Some(write))
    }

    /// Commits the stores to all mappings of the journal, and the spilled pages: [`Self::commit`] without pages of the
    /// caller's own.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::commit`].
    pub fn commit_all(&self) -> Result<u64> {
        self.0.commit(NOTHING_MORE)
    }

    /// Writes all committed pages into the files.
    ///
    /// The journal does so by itself. It keeps pages that it could not write there.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if writing to a file fails; [`Error::Journal`].
    pub fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint()
    }

    /// Returns how full the journal is.
    pub fn usage(&self) -> JournalUse {
        let log = &self.0.core.log;
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        JournalUse {
            capacity_bytes: bytes(log.ring.capacity_pages()),
            used_bytes: bytes(log.head() - log.tail()),
            uncommitted_bytes: bytes(log.head() - log.durable()),
            stores_held_ns_max: self.0.core.stores_held_ns_max.load(Ordering::Relaxed),
        }
    }
}

/// Whether only this user and root can have written the journal.
fn check_trusted(device: &FileBacking) -> Result<()> {
    let failed = failed_at(device, "looking at");
    let Some(file) = device.file() else { return Ok(()) };
    let stat = rustix::fs::fstat(file).map_err(|error| failed(error.into()))?;
    let user = rustix::process::geteuid().as_raw();
    let reason = if stat.st_uid != user && stat.st_uid != ROOT {
        format!("it belongs to user {}, who could have you write to any file: open it as that user", stat.st_uid)
    } else if stat.st_mode & WRITABLE_BY_ANYBODY != 0 {
        "anybody may write to it, and so to any file that you may write to: chmod o-w it if you trust what it holds"
            .into()
    } else {
        return Ok(());
    };
    Err(Error::NotAJournal { journal: device.describe(), reason })
}

/// The pages in the log of a journal of this length in bytes.
fn capacity_of(len: u64) -> Result<u64> {
    let capacity_pages = len.saturating_sub(LOG_START_BYTES) / PAGE_BYTES as u64;
    if capacity_pages < CAPACITY_PAGES_MIN {
        let expected = "at least 384 KiB: a log of 64 pages behind the headers";
        return Err(Error::BadOption { option: "journal length", value: len.to_string(), expected });
    }
    Ok(capacity_pages)
}

/// Locks the journal against other processes.
fn lock(device: Box<dyn Backing>) -> Result<(Locking, Box<dyn Backing>)> {
    let user = FileUser::cached(device.access());
    Locking::begin(device, user)
}
