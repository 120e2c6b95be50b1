//! The state that the handles of an open journal share with its checkpointing thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use vmio_core::store_gate::StoreGate;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::checkpoint::Checkpoints;
use crate::journal::delta_batch::DeltaBatch;
use crate::journal::drain_gate::DrainGate;
use crate::journal::failed_at;
use crate::journal::format::{Header, Pages, RecordKind};
use crate::journal::index::PageIndex;
use crate::journal::log::{Log, Refusal};
use crate::journal::participant::Participant;
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;

/// A file that has joined.
pub(crate) struct Joined {
    pub(crate) file: u32,
    pub(crate) data: Box<dyn Backing>,
    pub(crate) index: PageIndex,
    /// Its length as the mapping sees it. The file itself grows when a checkpoint writes committed pages into it.
    pub(crate) len: AtomicU64,
    /// The head of the log when the file joined.
    pub(crate) since: u64,
    /// False once its backing has been dropped: the file takes part in no further commit.
    pub(crate) is_open: AtomicBool,
    /// The mapping that keeps pages of the file in memory. A commit must ask it for them.
    participant: RwLock<Option<Arc<dyn Participant>>>,
}

impl Joined {
    pub(crate) fn new(file: u32, data: Box<dyn Backing>, index: PageIndex, since: u64) -> Self {
        let len = AtomicU64::new(data.len());
        Joined { file, data, index, len, since, is_open: AtomicBool::new(true), participant: RwLock::default() }
    }

    /// Sets or clears the participant that commits ask for pages.
    pub(crate) fn set_participant(&self, participant: Option<Arc<dyn Participant>>) {
        let _signals = SignalsBlocked::new();
        let before = {
            let mut present = self.participant.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, participant)
        };
        drop(before);
    }

    /// Copies a version of a page from memory, if it is there.
    pub(crate) fn copy_from_memory(&self, page: u64, version: Version, target: &mut [u8]) -> bool {
        // A thread that closes the file waits until the copy is made.
        let participant = self.participant.read().unwrap_or_else(PoisonError::into_inner);
        let is_newest = || self.index.version(page) == Some(version);
        participant.as_ref().is_some_and(|memory| is_newest() && memory.copy_clean(page, target, &is_newest))
    }

    /// The participant that commits ask for pages. Callers block signals.
    pub(crate) fn participant(&self) -> Option<Arc<dyn Participant>> {
        self.participant.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Core {
    /// The process that opened the journal; a forked child has no part in it.
    generation: Generation,
    pub(crate) log: Log,
    /// Counts the threads that hold pages of the present commit which have not yet reached the log. Its epoch is the number of the commit.
    pub(crate) tickets: DrainGate,
    /// Closed while a commit protects pages.
    pub(crate) stores: StoreGate,
    /// The longest time for which the gate was closed.
    pub(crate) stores_held_ns_max: AtomicU64,
    /// The last commit that lacks an image: its write failed, and the page is newer by now.
    incomplete: AtomicU64,
    pub(crate) files: Mutex<Vec<Arc<Joined>>>,
    /// The deltas of the commit under way.
    deltas: Mutex<DeltaBatch>,
    header: Mutex<Header>,
    pub(crate) checkpoints: Checkpoints,
    /// Pages of the log in use from which on a checkpoint begins in the background.
    pub(crate) checkpoint_at_pages: u64,
}

impl Core {
    pub(crate) fn new(generation: Generation, log: Log, header: Header, checkpoint_at_pages: u64) -> Self {
        Core {
            generation,
            tickets: DrainGate::new(header.commit + 1),
            stores: StoreGate::default(),
            stores_held_ns_max: AtomicU64::new(0),
            incomplete: AtomicU64::new(0),
            files: Mutex::default(),
            deltas: Mutex::new(DeltaBatch::new(log.record_pages_max())),
            checkpoints: Checkpoints::new(header.applied),
            header: Mutex::new(header),
            log,
            checkpoint_at_pages,
        }
    }

    /// Whether the caller is the process that opened the journal. In a forked child, threads that it does not have may
    /// hold locks and tickets.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation.is_current()
    }

    /// Fails in a forked child.
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        if self.is_of_this_process() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Appends pages of a file in as few records as they fit in, and notes their positions. Makes space by a checkpoint
    /// if need be.
    pub(crate) fn append(
        &self,
        kind: RecordKind,
        commit: u64,
        joined: &Joined,
        number: &dyn Fn(usize) -> u64,
        data: &[u8],
    ) -> Result<(), Refusal> {
        if (0..data.len().div_ceil(PAGE_BYTES)).any(|at| number(at) >= joined.index.len()) {
            return Err(Refusal::Failed(io::ErrorKind::FileTooLarge.into()));
        }
        let part_pages = self.log.record_pages_max();
        for (part, first) in data.chunks(part_pages * PAGE_BYTES).zip((0..).step_by(part_pages)) {
            let number = |at: usize| number(first + at);
            let position = loop {
                let tail = self.log.tail();
                match self.log.append(kind, commit, Pages { file: joined.file, number: &number }, part) {
                    Err(Refusal::Full) if self.make_room(tail) => {}
                    other => break other?,
                }
            };
            for (at, position) in (0..part.len().div_ceil(PAGE_BYTES)).zip(position..) {
                joined.index.set(number(at), Version::image(position));
            }
        }
        Ok(())
    }

    /// The deltas of the commit under way. Only the thread that leads the commit asks for them, and it blocks signals
    /// meanwhile.
    pub(crate) fn deltas(&self) -> MutexGuard<'_, DeltaBatch> {
        self.deltas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the deltas in the batch. Makes space by a checkpoint if need be. Settles the deltas in any case.
    pub(crate) fn append_deltas(&self, commit: u64, deltas: &mut DeltaBatch) -> Result<(), Refusal> {
        if deltas.is_empty() {
            return Ok(());
        }
        loop {
            let tail = self.log.tail();
            match self.log.append_deltas(commit, deltas) {
                Ok(position) => {
                    deltas.settle(commit, Ok(position));
                    return Ok(());
                }
                Err(Refusal::Full) if self.make_room(tail) => {}
                Err(refusal) => {
                    deltas.settle(commit, Err(refusal.kind()));
                    return Err(refusal);
                }
            }
        }
    }

    /// Notes a lost image of a commit, whose page is newer by now. The commit under way is then incomplete, if it has
    /// this number. Before its line is drawn the newer page belongs to the same commit, which needs no older image.
    pub(crate) fn note_lost_image(&self, commit: u64) {
        if self.tickets.epoch() > commit {
            self.incomplete.fetch_max(commit, Ordering::SeqCst);
        }
    }

    /// Whether a commit lacks an image. Callers ask when nobody has a ticket of it any longer.
    pub(crate) fn is_incomplete(&self, commit: u64) -> bool {
        self.incomplete.load(Ordering::SeqCst) >= commit
    }

    /// Makes a checkpoint. Returns whether there is more space than when the log ended at `tail`.
    pub(crate) fn make_room(&self, tail: u64) -> bool {
        // Every checkpoint frees all that can be freed until the next commit.
        if self.checkpoints.applied() != self.log.durable() {
            self.checkpoints.run();
        }
        self.log.tail() != tail
    }

    /// Writes the header with a change. After an error the previous header remains in force.
    pub(crate) fn change_header(&self, change: impl FnOnce(&mut Header)) -> Result<()> {
        let _signals = SignalsBlocked::new();
        let mut header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = header.clone();
        next.sequence += 1;
        change(&mut next);
        debug_assert!(header.tail <= next.tail && next.tail <= self.log.durable());
        debug_assert!(header.applied <= next.applied && header.commit <= next.commit);
        let device = self.log.ring.device();
        self.log.ring.write_header(&next).map_err(failed_at(device, "writing"))?;
        self.log.flush().map_err(|source| Error::JournalFlush { journal: device.describe(), source })?;
        *header = next;
        Ok(())
    }

    /// The header in force.
    pub(crate) fn header(&self) -> Header {
        let _signals = SignalsBlocked::new();
        self.header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The files that have joined. Callers block signals while they hold the list.
    pub(crate) fn files(&self) -> MutexGuard<'_, Vec<Arc<Joined>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The joined files that are closed by now. Their last commits may not be in them yet.
    pub(crate) fn files_that_left(&self) -> Vec<Arc<Joined>> {
        let _signals = SignalsBlocked::new();
        self.files().iter().filter(|joined| !joined.is_open.load(Ordering::SeqCst)).cloned().collect()
    }

    /// Whether any file takes part in commits.
    pub(crate) fn has_open_files(&self) -> bool {
        let _signals = SignalsBlocked::new();
        self.files().iter().any(|joined| joined.is_open.load(Ordering::SeqCst))
    }

    /// The error of an append that was refused.
    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Full => self.full(),
            Refusal::Failed(source) => failed_at(self.log.ring.device(), "writing")(source),
        }
    }

    /// The error of a journal without space.
    pub(crate) fn full(&self) -> Error {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        Error::JournalFull {
            journal: self.log.ring.device().describe(),
            capacity_bytes: bytes(self.log.ring.capacity_pages()),
            uncommitted_bytes: bytes(self.log.head() - self.log.durable()),
        }
    }
}
