//! Records of deltas, as the log writes them.

use crate::journal::delta::{self, DELTA_BYTES_MAX};
use crate::journal::format::{CommittedFile, Page, RECORD_FRONT_BYTES, RecordHead, RecordKind, Uuid};
use crate::journal::place::Place;
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;

/// The most records in one write (64 KiB).
const RECORDS_MAX: usize = 16;

/// Deltas that are not in the log yet. A record holds many of them.
pub(crate) struct DeltaRecords {
    /// The records, and one more page for the commit record.
    pages: Box<[Page]>,
    /// For each record begun: the number of its deltas, and their length in bytes.
    begun: Vec<(u32, usize)>,
    /// A buffer for the delta in the making.
    encoded: Box<[u8; DELTA_BYTES_MAX]>,
}

impl DeltaRecords {
    /// This many records, but at most [`RECORDS_MAX`].
    pub(crate) fn new(records_max: usize) -> Self {
        let records = records_max.min(RECORDS_MAX);
        DeltaRecords {
            pages: vec![Page::ZERO; records + 1].into_boxed_slice(),
            begun: Vec::with_capacity(records),
            encoded: Box::new([0; DELTA_BYTES_MAX]),
        }
    }

    /// The number of records begun.
    pub(crate) fn len(&self) -> usize {
        self.begun.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Whether the next delta may not fit any more.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = |bytes: usize| RECORD_FRONT_BYTES + bytes + DELTA_BYTES_MAX > PAGE_BYTES;
        self.begun.len() + 1 == self.pages.len() && self.begun.last().is_none_or(|(_, bytes)| is_full(*bytes))
    }

    /// Adds the changes of a page whose version is `base`, to the last record begun. Returns their encoded length; 0 if nothing has
    /// changed. `None` if the changes are too long, or if the page consists of too many deltas already.
    pub(crate) fn add(&mut self, place: Place, base: Option<Version>, before: &[u8], after: &[u8]) -> Option<usize> {
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

    /// Empties them.
    pub(crate) fn clear(&mut self) {
        self.begun.clear();
    }
}
