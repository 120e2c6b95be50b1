//! The deltas of a commit on their way to the log. A record holds many of them, and the last go in one write with the
//! commit record.

use std::io;
use std::sync::{Arc, MutexGuard};

use crate::error::Result;
use crate::journal::core::{Core, Joined};
use crate::journal::delta::{self, DELTA_BYTES_MAX};
use crate::journal::format::{CommittedFile, Page, RECORD_FRONT_BYTES, RecordHead, RecordKind, Uuid};
use crate::journal::place::Place;
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;

/// The most records in one write (64 KiB).
const RECORDS_MAX: usize = 16;

/// Deltas that are not in the log yet.
pub(crate) struct DeltaBatch {
    /// The records, and one more page for the commit record.
    pages: Box<[Page]>,
    /// For each record begun: the number of its deltas, and their length in bytes.
    begun: Vec<(u32, usize)>,
    pending: Vec<Pending>,
    /// A buffer for the delta in the making.
    encoded: Box<[u8; DELTA_BYTES_MAX]>,
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
    /// A batch for this many records, but at most [`RECORDS_MAX`].
    pub(crate) fn new(records_max: usize) -> Self {
        let records = records_max.min(RECORDS_MAX);
        DeltaBatch {
            pages: vec![Page::ZERO; records + 1].into_boxed_slice(),
            begun: Vec::with_capacity(records),
            pending: Vec::new(),
            encoded: Box::new([0; DELTA_BYTES_MAX]),
        }
    }

    /// The number of records begun.
    pub(crate) fn records(&self) -> usize {
        self.begun.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Whether the batch has a delta of this page.
    pub(crate) fn has(&self, file: &Arc<Joined>, page: u64) -> bool {
        self.pending.iter().any(|pending| pending.page == page && Arc::ptr_eq(&pending.file, file))
    }

    /// Whether the next delta may not fit any more.
    fn is_full(&self) -> bool {
        let is_full = |bytes: usize| RECORD_FRONT_BYTES + bytes + DELTA_BYTES_MAX > PAGE_BYTES;
        self.begun.len() + 1 == self.pages.len() && self.begun.last().is_none_or(|(_, bytes)| is_full(*bytes))
    }

    /// Adds the changes of a page, and returns their encoded length; 0 if nothing has changed. `None` if the changes
    /// are too long, or if the page consists of too many deltas already.
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

    /// Makes the deltas records at the place in the log that `head` gives. With `files`, a commit record of these
    /// follows.
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
        self.begun.clear();
        debug_assert!(self.is_empty() && self.pending.is_empty());
    }
}

/// Takes the pages of a commit whose previous version is known.
pub(crate) struct CommitDeltas<'a> {
    core: &'a Core,
    commit: u64,
    batch: MutexGuard<'a, DeltaBatch>,
}

impl<'a> CommitDeltas<'a> {
    /// Only for the thread that leads the commit, with signals blocked.
    pub(crate) fn new(core: &'a Core, commit: u64) -> Self {
        CommitDeltas { core, commit, batch: core.deltas() }
    }

    /// The number of the commit.
    pub(crate) fn commit(&self) -> u64 {
        self.commit
    }

    /// Makes space for one more delta. Writes the present ones if need be.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        if !self.batch.is_full() {
            return Ok(());
        }
        let appended = self.core.append_deltas(self.commit, &mut self.batch);
        appended.map_err(|refusal| self.core.refused(refusal))
    }

    /// Adds the changes of a page, for which the batch has space. Returns how many bytes they take. The participant of
    /// the page hears when they are written. 0 if nothing has changed: then no participant hears of it. `None` if the
    /// page should be written whole.
    pub(crate) fn add(&mut self, file: &Arc<Joined>, page: u64, before: &[u8], after: &[u8]) -> Option<usize> {
        self.batch.add(file, page, before, after)
    }
}
