//! The deltas of a commit on their way to the log: many in a record, and the last of them in one write with the commit.

use std::io;
use std::sync::{Arc, MutexGuard};

use crate::error::Result;
use crate::journal::core::{Core, Joined};
use crate::journal::delta::{self, DELTA_BYTES_MAX};
use crate::journal::format::{CommittedFile, Page, RECORD_FRONT_BYTES, RecordHead, RecordKind, Uuid};
use crate::journal::place::Place;
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;

/// Records that are written at once (64 KiB).
const RECORDS_MAX: usize = 16;

/// Deltas that are not yet in the log.
pub(crate) struct DeltaBatch {
    /// Records, and one more for that of the commit.
    pages: Box<[Page]>,
    /// Of each record that has been begun, how many deltas are in it, and their length.
    begun: Vec<(u32, usize)>,
    pending: Vec<Pending>,
    /// A delta that is being made.
    encoded: Box<[u8; DELTA_BYTES_MAX]>,
}

/// A page whose delta is in the batch.
struct Pending {
    file: Arc<Joined>,
    page: u64,
    /// Which of the records.
    record: usize,
    base: Option<Version>,
}

impl DeltaBatch {
    /// Room for this many records, or fewer.
    pub(crate) fn new(records_max: usize) -> Self {
        let records = records_max.min(RECORDS_MAX);
        DeltaBatch {
            pages: vec![Page::ZERO; records + 1].into_boxed_slice(),
            begun: Vec::with_capacity(records),
            pending: Vec::new(),
            encoded: Box::new([0; DELTA_BYTES_MAX]),
        }
    }

    /// How many records there are.
    pub(crate) fn records(&self) -> usize {
        self.begun.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Whether there is one of that page.
    pub(crate) fn has(&self, file: &Arc<Joined>, page: u64) -> bool {
        self.pending.iter().any(|pending| pending.page == page && Arc::ptr_eq(&pending.file, file))
    }

    /// Whether there is a delta that would not fit any more.
    fn is_full(&self) -> bool {
        let is_full = |bytes: usize| RECORD_FRONT_BYTES + bytes + DELTA_BYTES_MAX > PAGE_BYTES;
        self.begun.len() + 1 == self.pages.len() && self.begun.last().is_none_or(|(_, bytes)| is_full(*bytes))
    }

    /// Adds what has changed of a page, and returns the length; `None` if that is too much, or if the page is made of too
    /// many deltas already. If nothing has changed, nothing is added.
    fn add(&mut self, file: &Arc<Joined>, page: u64, before: &[u8], after: &[u8]) -> Option<usize> {
        let base = file.index.version(page);
        let place = Place { file: file.file, page };
        let len = Some(base).filter(|base| Version::takes_delta(*base));
        let len = len.and_then(|base| delta::encode(place, base, before, after, &mut self.encoded))?;
        if len == 0 {
            return Some(0);
        }
        if self.begun.last().is_none_or(|(_, bytes)| RECORD_FRONT_BYTES + bytes + len > PAGE_BYTES) {
            self.begun.push((0, 0));
        }
        let record = self.begun.len() - 1;
        let (count, bytes) = &mut self.begun[record];
        let start = RECORD_FRONT_BYTES + *bytes;
        self.pages[record].0[start..start + len].copy_from_slice(&self.encoded[..len]);
        *count += 1;
        *bytes += len;
        debug_assert!(RECORD_FRONT_BYTES + self.begun[record].1 <= PAGE_BYTES && record + 1 < self.pages.len());
        self.pending.push(Pending { file: Arc::clone(file), page, record, base });
        Some(len)
    }

    /// Makes records of it that lie in the log as `head` says, with a commit record of these files behind them.
    pub(crate) fn encode(&mut self, uuid: Uuid, head: &RecordHead, files: Option<&[CommittedFile]>) -> &[Page] {
        for ((position, page), (count, bytes)) in (head.position..).zip(&mut self.pages).zip(&self.begun) {
            RecordHead { position, ..*head }.encode_deltas(uuid, *count, *bytes, page);
        }
        let records = self.begun.len();
        let Some(files) = files else { return &self.pages[..records] };
        let commit = RecordHead { kind: RecordKind::Commit, position: head.position + records as u64, ..*head };
        commit.encode_commit(uuid, files, &mut self.pages[records]);
        &self.pages[..=records]
    }

    /// Empties it: its records have been written from that position on, for that commit, or not.
    pub(crate) fn settle(&mut self, commit: u64, written: Result<u64, io::ErrorKind>) {
        for Pending { file, page, record, base } in self.pending.drain(..) {
            if let Ok(first) = written {
                file.index.set(page, Version::delta(first + record as u64, base));
            }
            if let Some(participant) = file.participant() {
                participant.settle(page, commit, written.map(drop).map_err(io::Error::from));
            }
        }
        self.begun.clear();
        debug_assert!(self.is_empty() && self.pending.is_empty());
    }
}

/// Where the pages of a commit go of which the version before is known.
pub(crate) struct CommitDeltas<'a> {
    core: &'a Core,
    commit: u64,
    batch: MutexGuard<'a, DeltaBatch>,
}

impl<'a> CommitDeltas<'a> {
    /// For who leads the commit, with signals blocked.
    pub(crate) fn new(core: &'a Core, commit: u64) -> Self {
        CommitDeltas { core, commit, batch: core.deltas() }
    }

    /// The number of the commit.
    pub(crate) fn commit(&self) -> u64 {
        self.commit
    }

    /// Makes room for one more delta, by writing those that are there if need be.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        if !self.batch.is_full() {
            return Ok(());
        }
        let appended = self.core.append_deltas(self.commit, &mut self.batch);
        appended.map_err(|refusal| self.core.refused(refusal))
    }

    /// Has what has changed of a page written, for which there is room; its participant is told when it is. How many bytes that
    /// takes; 0 if nothing has changed, and nobody is told; `None` if the page had better be written whole.
    pub(crate) fn add(&mut self, file: &Arc<Joined>, page: u64, before: &[u8], after: &[u8]) -> Option<usize> {
        self.batch.add(file, page, before, after)
    }
}
