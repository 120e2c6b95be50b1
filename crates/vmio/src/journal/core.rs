//! The state that the handles of an open journal share with its checkpointing thread.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmio_core::store_gate::StoreGate;

use crate::error::{Error, Result};
use crate::journal::checkpoints::Checkpoints;
use crate::journal::delta_batch::DeltaBatch;
use crate::journal::drain_gate::DrainGate;
use crate::journal::failure::failed_at;
use crate::journal::format::{Header, Pages, RecordKind};
use crate::journal::joined::Joined;
use crate::journal::log::{Log, Refusal};
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;

/// The state of an open journal.
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
                    Err(Refusal::Full) if self.checkpoints.make_room(&self.log, tail) => {}
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
}
