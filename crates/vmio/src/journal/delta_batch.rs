//! The deltas of a commit on their way to the log. A record holds many of them, and the last go in one write with the
//! commit record.

use std::io;
use std::sync::{Arc, MutexGuard};

use crate::error::Result;
use crate::journal::checkpoints::Checkpoints;
use crate::journal::delta_records::DeltaRecords;
use crate::journal::joined::Joined;
use crate::journal::log::{Log, Refusal};
use crate::journal::place::Place;
use crate::journal::version::Version;

/// Deltas that are not in the log yet, and the pages that they are of.
pub(crate) struct DeltaBatch {
    pub(crate) records: DeltaRecords,
    pending: Vec<Pending>,
}

/// A page whose delta is in the batch.
struct Pending {
    file: Arc<Joined>,
    page: u64,
    /// The index of the record with the delta.
    record: usize,
    base: Option<Version>,
}

impl DeltaBatch {
    /// A batch for this many records.
    pub(crate) fn new(records_max: usize) -> Self {
        DeltaBatch { records: DeltaRecords::new(records_max), pending: Vec::new() }
    }

    /// Whether the batch has a delta of this page.
    pub(crate) fn has(&self, file: &Arc<Joined>, page: u64) -> bool {
        self.pending.iter().any(|pending| pending.page == page && Arc::ptr_eq(&pending.file, file))
    }

    /// Adds the changes of a page, as [`DeltaRecords::add`] does.
    fn add(&mut self, file: &Arc<Joined>, page: u64, before: &[u8], after: &[u8]) -> Option<usize> {
        let base = file.index.version(page);
        let len = self.records.add(Place { file: file.file, page }, base, before, after)?;
        if len > 0 {
            self.pending.push(Pending { file: Arc::clone(file), page, record: self.records.len() - 1, base });
        }
        Some(len)
    }

    /// Appends the deltas to the log. Makes space by a checkpoint if need be. Settles the deltas in any case.
    pub(crate) fn append(&mut self, log: &Log, checkpoints: &Checkpoints, commit: u64) -> Result<(), Refusal> {
        if self.records.is_empty() {
            return Ok(());
        }
        loop {
            let tail = log.tail();
            match log.append_deltas(commit, &mut self.records) {
                Ok(position) => {
                    self.settle(commit, Ok(position));
                    return Ok(());
                }
                Err(Refusal::Full) if checkpoints.make_room(log, tail) => {}
                Err(refusal) => {
                    self.settle(commit, Err(refusal.kind()));
                    return Err(refusal);
                }
            }
        }
    }

    /// Empties the batch. `written` is the position of its first record for this commit, or the error of the write.
    pub(crate) fn settle(&mut self, commit: u64, written: Result<u64, io::ErrorKind>) {
        for Pending { file, page, record, base } in self.pending.drain(..) {
            if let Ok(first) = written {
                file.index.set(page, Version::delta(first + record as u64, base));
            }
            if let Some(participant) = file.participant() {
                participant.settle(page, commit, written.map(drop).map_err(io::Error::from));
            }
        }
        self.records.clear();
        debug_assert!(self.records.is_empty() && self.pending.is_empty());
    }
}

/// Takes the pages of a commit whose previous version is known.
pub(crate) struct CommitDeltas<'a> {
    log: &'a Log,
    checkpoints: &'a Checkpoints,
    commit: u64,
    batch: MutexGuard<'a, DeltaBatch>,
}

impl<'a> CommitDeltas<'a> {
    /// Only for the thread that leads the commit, with signals blocked.
    pub(crate) fn new(
        log: &'a Log,
        checkpoints: &'a Checkpoints,
        commit: u64,
        batch: MutexGuard<'a, DeltaBatch>,
    ) -> Self {
        CommitDeltas { log, checkpoints, commit, batch }
    }

    /// The number of the commit.
    pub(crate) fn commit(&self) -> u64 {
        self.commit
    }

    /// Makes space for one more delta. Writes the present ones if need be.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        if !self.batch.records.is_full() {
            return Ok(());
        }
        let appended = self.batch.append(self.log, self.checkpoints, self.commit);
        appended.map_err(|refusal| self.log.refused(refusal))
    }

    /// Adds the changes of a page, for which the batch has space. Returns how many bytes they take. The participant of
    /// the page hears when they are written. 0 if nothing has changed: then no participant hears of it. `None` if the
    /// page should be written whole.
    pub(crate) fn add(&mut self, file: &Arc<Joined>, page: u64, before: &[u8], after: &[u8]) -> Option<usize> {
        self.batch.add(file, page, before, after)
    }
}
