//! Appending to the log, from any thread and from the trap path.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use zerocopy::IntoBytes;

use crate::error::Error;
use crate::journal::delta_records::DeltaRecords;
use crate::journal::drain_gate::DrainGate;
use crate::journal::failure::failed_at;
use crate::journal::format::{CommittedFile, Header, Pages, RECORD_PAGES_MAX, RecordHead, RecordKind};
use crate::journal::record_buffers::{BUFFER_PAGES, RecordBuffers};
use crate::journal::ring::Ring;
use crate::journal::scan::read_record;
use crate::sys::PAGE_BYTES;

/// Pages of the log that only commit records may take.
const SPARE_PAGES: u64 = 8;
/// The most places that the log notes at which a write failed, and then the void in its place as well.
const HOLES_MAX: usize = 64;

/// The reason why nothing was appended.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The log has no space.
    Full,
    /// The device failed.
    Failed(io::Error),
}

impl Refusal {
    /// The error kind for a page that was not appended.
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Refusal::Full => io::ErrorKind::StorageFull,
            Refusal::Failed(error) => error.kind(),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Failed(error)
    }
}

/// The log of an open journal.
pub(crate) struct Log {
    pub(crate) ring: Ring,
    /// The next position.
    head: AtomicU64,
    /// The first position whose page is still needed.
    tail: AtomicU64,
    /// Everything before this position is on the device, whatever happens.
    durable: AtomicU64,
    /// Pages that spills leave free for the next commit.
    commit_reserve: u64,
    /// The threads that have a position and have not yet written there.
    appending: DrainGate,
    pub(crate) buffers: RecordBuffers,
    /// The places that have to become voids: position times 1024, plus length; 0 for none.
    holes: [AtomicU64; HOLES_MAX],
    holes_lost: AtomicBool,
    /// Failed flushes. Below it, how many of them no longer matter, since everything was written and flushed again.
    failed_flushes: AtomicU64,
    mended_flushes: AtomicU64,
    /// Admits one flush at a time. The kernel reports a failure only once, and every thread must hear of it.
    flushing: Mutex<()>,
}

impl Log {
    /// An empty log that begins at the tail of a header.
    pub(crate) fn new(ring: Ring, header: &Header, commit_reserve: u64) -> Self {
        Log {
            ring,
            head: AtomicU64::new(header.tail),
            tail: AtomicU64::new(header.tail),
            durable: AtomicU64::new(header.tail),
            commit_reserve,
            appending: DrainGate::new(0),
            buffers: RecordBuffers::new(),
            holes: [const { AtomicU64::new(0) }; HOLES_MAX],
            holes_lost: AtomicBool::new(false),
            failed_flushes: AtomicU64::new(0),
            mended_flushes: AtomicU64::new(0),
            flushing: Mutex::new(()),
        }
    }

    /// Pages that spills leave free for the next commit.
    pub(crate) fn commit_reserve(&self) -> u64 {
        self.commit_reserve
    }

    pub(crate) fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail.load(Ordering::SeqCst)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Frees everything before a position, so that later records overwrite it.
    pub(crate) fn advance_tail(&self, tail: u64) {
        assert!(self.tail() <= tail && tail <= self.durable(), "tail {tail} of {:?}", (self.tail(), self.durable()));
        self.tail.store(tail, Ordering::SeqCst);
        debug_assert!(self.head() - self.tail() <= self.ring.capacity_pages());
    }

    /// The most page images in a record of this log.
    pub(crate) fn record_pages_max(&self) -> usize {
        RECORD_PAGES_MAX.min((self.ring.capacity_pages() / 8) as usize)
    }

    /// Appends a record of pages of a file, the last of which may be cut off. Returns the position of the first image.
    pub(crate) fn append(&self, kind: RecordKind, commit: u64, of: Pages<'_>, data: &[u8]) -> Result<u64, Refusal> {
        let pages = data.len().div_ceil(PAGE_BYTES);
        assert!((1..=self.record_pages_max()).contains(&pages), "a record of {pages} pages");
        let reserve = if kind == RecordKind::Spill { self.commit_reserve } else { 0 };
        let _appending = self.appending.enter();
        let position = self.allocate(1 + pages as u64, reserve + SPARE_PAGES).ok_or(Refusal::Full)?;
        debug_assert!(self.durable() <= position, "a commit has passed a place that is not written yet");
        let head = self.record_head(kind, commit, position, pages as u32);
        let written = self.write_record(&head, of, data);
        if written.is_err() {
            self.make_void(position, 1 + pages as u64);
        }
        debug_assert!(self.durable() <= position && position + 1 + pages as u64 <= self.head());
        Ok(written.map(|()| position + 1)?)
    }

    /// Appends records of deltas, and returns the position of their first record.
    pub(crate) fn append_deltas(&self, commit: u64, deltas: &mut DeltaRecords) -> Result<u64, Refusal> {
        let records = deltas.len() as u64;
        let _appending = self.appending.enter();
        debug_assert!(records > 0);
        let position = self.allocate(records, SPARE_PAGES).ok_or(Refusal::Full)?;
        let head = self.record_head(RecordKind::Delta, commit, position, 0);
        let written = self.ring.write(position, deltas.encode(self.ring.uuid, &head, None).as_bytes());
        if written.is_err() {
            self.make_void(position, records);
        }
        debug_assert!(self.durable() <= position && position + records <= self.head());
        Ok(written.map(|()| position)?)
    }

    /// Takes pages of the log, unless fewer than `left` would remain.
    fn allocate(&self, pages: u64, left: u64) -> Option<u64> {
        let fits = |head: u64| {
            let end = head + pages;
            (end + left <= self.tail() + self.ring.capacity_pages()).then_some(end)
        };
        self.head.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()
    }

    fn record_head(&self, kind: RecordKind, commit: u64, position: u64, pages: u32) -> RecordHead {
        RecordHead { kind, incarnation: self.ring.incarnation, position, commit, durable: self.durable(), pages }
    }

    fn write_record(&self, head: &RecordHead, of: Pages<'_>, data: &[u8]) -> io::Result<()> {
        let mut buffer = self.buffers.acquire();
        let [front, images @ ..] = &mut **buffer else { return Err(io::ErrorKind::OutOfMemory.into()) };
        let pages = head.pages as usize;
        if pages < BUFFER_PAGES {
            fill(images[..pages].as_mut_bytes(), data);
            head.encode_pages(self.ring.uuid, of, images[..pages].as_bytes(), None, front);
            return self.ring.write(head.position, buffer[..1 + pages].as_bytes());
        }
        let (whole, rest) = data.split_at(data.len() - data.len() % PAGE_BYTES);
        let last = (!rest.is_empty()).then(|| {
            fill(&mut images[0].0, rest);
            &images[0]
        });
        head.encode_pages(self.ring.uuid, of, whole, last, front);
        self.ring.write(head.position, &front.0)?;
        self.ring.write(head.position + 1, whole)?;
        last.map_or(Ok(()), |last| self.ring.write(head.position + pages as u64, &last.0))
    }

    /// Makes recovery skip a place where a write failed, at the latest from the next commit on.
    fn make_void(&self, position: u64, pages: u64) {
        if self.write_void(position, pages).is_ok() {
            return;
        }
        let hole = position << 10 | pages;
        let take = |slot: &AtomicU64| slot.compare_exchange(0, hole, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !self.holes.iter().any(take) {
            self.holes_lost.store(true, Ordering::SeqCst);
        }
    }

    fn write_void(&self, position: u64, pages: u64) -> io::Result<()> {
        let mut buffer = self.buffers.acquire();
        let head = self.record_head(RecordKind::Void, 0, position, pages as u32 - 1);
        head.encode_void(self.ring.uuid, &mut buffer[0]);
        self.ring.write(position, &buffer[0].0)
    }

    fn mend_holes(&self) -> io::Result<()> {
        for slot in &self.holes {
            let hole = slot.load(Ordering::SeqCst);
            if hole != 0 {
                self.write_void(hole >> 10, hole % 1024)?;
                slot.store(0, Ordering::SeqCst);
            }
        }
        if self.holes_lost.load(Ordering::SeqCst) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    /// Writes deltas and a commit record behind everything appended so far, in one request. One thread at a time may do
    /// so, and it calls [`Self::make_durable`] next. After an error none of them has been written.
    pub(crate) fn commit(
        &self,
        commit: u64,
        files: &[CommittedFile],
        deltas: &mut DeltaRecords,
    ) -> Result<Unflushed, CommitFailure> {
        let records = deltas.len() as u64;
        let left = if records > 0 { SPARE_PAGES } else { 0 };
        let first = self.allocate(records + 1, left).ok_or(CommitFailure::Full)?;
        // Threads with a position before that of the commit record come first: recovery stops at the first record that
        // is not whole.
        self.appending.drain(self.appending.advance());
        let failed_flushes = self.failed_flushes.load(Ordering::SeqCst);
        if let Err(error) = self.write_commit(commit, first, files, deltas, failed_flushes) {
            self.make_void(first, records + 1);
            return Err(CommitFailure::Write(error));
        }
        debug_assert!(self.durable() <= first && first + records < self.head());
        Ok(Unflushed { first, position: first + records, failed_flushes })
    }

    /// Flushes a commit record with everything before it, and returns the position behind the record. After an error,
    /// only what was durable before is known to be durable.
    pub(crate) fn make_durable(&self, record: Unflushed) -> Result<u64, CommitFailure> {
        let Unflushed { position, failed_flushes, .. } = record;
        debug_assert!(self.durable() <= position && position < self.head());
        // A flush of another thread that failed meanwhile may have lost the record, too.
        let flushed = self.flush().and_then(|()| match self.failed_flushes.load(Ordering::SeqCst) == failed_flushes {
            true => Ok(()),
            false => Err(io::ErrorKind::Other.into()),
        });
        if let Err(error) = flushed {
            // The next commit must not bring this one back: a file of this one may be closed by then.
            self.make_void(position, 1);
            return Err(CommitFailure::Flush(error));
        }
        self.mended_flushes.store(failed_flushes, Ordering::SeqCst);
        self.durable.store(position + 1, Ordering::SeqCst);
        debug_assert!(self.tail() <= self.durable() && self.durable() <= self.head());
        Ok(position + 1)
    }

    fn write_commit(
        &self,
        commit: u64,
        first: u64,
        files: &[CommittedFile],
        deltas: &mut DeltaRecords,
        failed: u64,
    ) -> io::Result<()> {
        self.mend_holes()?;
        if failed != self.mended_flushes.load(Ordering::SeqCst) {
            self.write_again(self.durable(), first)?;
        }
        let head = self.record_head(RecordKind::Delta, commit, first, 0);
        self.ring.write(first, deltas.encode(self.ring.uuid, &head, Some(files)).as_bytes())
    }

    /// Writes everything again that a failed flush may have lost, as long as it can still be read.
    fn write_again(&self, from: u64, to: u64) -> io::Result<()> {
        let mut pages = Vec::new();
        let mut position = from;
        while position < to {
            let lost = || io::Error::new(io::ErrorKind::InvalidData, "the device has lost what was written to it");
            let record = read_record(&self.ring, position, &mut pages)?.ok_or_else(lost)?;
            self.ring.write(position, pages.as_bytes())?;
            position += 1 + u64::from(record.head.pages);
        }
        Ok(())
    }

    /// Flushes the device. After a failure the next commit writes everything again.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.ring.device().flush().inspect_err(|_| {
            self.failed_flushes.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// The error of an append that was refused.
    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Full => self.full(),
            Refusal::Failed(source) => failed_at(self.ring.device(), "writing")(source),
        }
    }

    /// The error of a journal without space.
    pub(crate) fn full(&self) -> Error {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        Error::JournalFull {
            journal: self.ring.device().describe(),
            capacity_bytes: bytes(self.ring.capacity_pages()),
            uncommitted_bytes: bytes(self.head() - self.durable()),
        }
    }
}

/// A commit record that is written and not flushed yet.
pub(crate) struct Unflushed {
    /// The position of the first delta written with it.
    pub(crate) first: u64,
    position: u64,
    failed_flushes: u64,
}

/// The reason why a commit is not acknowledged.
#[derive(Debug)]
pub(crate) enum CommitFailure {
    /// The log has no space for the commit record.
    Full,
    /// Writing the log failed.
    Write(io::Error),
    /// Flushing the log failed.
    Flush(io::Error),
}

fn fill(images: &mut [u8], data: &[u8]) {
    let (front, rest) = images.split_at_mut(data.len().min(images.len()));
    front.copy_from_slice(&data[..front.len()]);
    let end = rest.len().min(PAGE_BYTES);
    rest[..end].fill(0);
}
