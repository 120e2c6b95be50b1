//! Dirty tracking: which spans of a mapped file hold dirty pages, to which sync those belong, and which writes have
//! failed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio_core::futex_lock::FutexLock;

use crate::cache::pre_images::PreImages;
use crate::cache::region::dirty_spans::DirtySpans;
use crate::cache::saved_pages::SavedPages;

/// The state of the dirty pages of a mapped file.
pub(crate) struct DirtyTracking {
    pub(crate) spans: DirtySpans,
    /// Of an atomic mapping: the spans with pages that were made writable since a commit last protected the span.
    pub(crate) open_spans: Option<DirtySpans>,
    /// Copies of frozen pages for commits, and pre-images; only a journaled file has them.
    pub(crate) saved: Option<SavedPages>,
    pub(crate) pre_images: Option<PreImages>,
    /// Parity of the sync epoch: a page that becomes dirty now is not part of a sync that has begun.
    epoch: AtomicBool,
    /// A sync of the whole mapping has begun and not succeeded: it may have left pages of any epoch.
    pub(crate) sync_is_incomplete: AtomicBool,
    /// One sync, or change of length, at a time: there are two epochs only.
    sync_lock: FutexLock,
    failures: Mutex<Failures>,
}

/// Holds the sync lock of a region: a sync or a change of its length is under way.
pub(crate) struct SyncGuard<'a> {
    of: &'a DirtyTracking,
}

impl Drop for SyncGuard<'_> {
    fn drop(&mut self) {
        self.of.sync_lock.release();
    }
}

/// The failures of writes and flushes so far. The trap path takes the lock on them as well: block signals first.
#[derive(Default)]
pub(crate) struct Failures {
    /// Failed page writes.
    pub(crate) writes: u64,
    /// The failed write with the lowest page since the last sync began: its page, and the error.
    pub(crate) first_write: Option<(u64, io::Error)>,
    /// The first failed flush.
    pub(crate) flush: Option<io::ErrorKind>,
}

impl Failures {
    pub(super) fn note_write(&mut self, page: u64, error: io::Error) {
        self.writes += 1;
        if self.first_write.as_ref().is_none_or(|(first, _)| page <= *first) {
            self.first_write = Some((page, error));
        }
    }
}

impl DirtyTracking {
    /// For a file of up to this many spans, without a dirty page. Marks open spans if the file is journaled.
    pub(super) fn new(
        spans: u64,
        is_journaled: bool,
        saved: Option<SavedPages>,
        pre_images: Option<PreImages>,
    ) -> io::Result<Self> {
        Ok(DirtyTracking {
            open_spans: is_journaled.then(|| DirtySpans::new(spans)).transpose()?,
            spans: DirtySpans::new(spans)?,
            saved,
            pre_images,
            epoch: AtomicBool::new(false),
            sync_is_incomplete: AtomicBool::new(false),
            sync_lock: FutexLock::default(),
            failures: Mutex::new(Failures::default()),
        })
    }

    /// The present sync epoch of a file that is not journaled.
    pub(super) fn epoch(&self) -> bool {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Starts the next sync epoch; returns the one that ended.
    pub(crate) fn flip_epoch(&self) -> bool {
        self.epoch.fetch_xor(true, Ordering::SeqCst)
    }

    /// Waits until no sync and no change of length is under way. The caller has signals blocked.
    pub(crate) fn lock_sync(&self) -> SyncGuard<'_> {
        self.sync_lock.acquire();
        SyncGuard { of: self }
    }

    /// Like [`Self::lock_sync`], if the lock is free.
    pub(crate) fn try_lock_sync(&self) -> Option<SyncGuard<'_>> {
        self.sync_lock.try_acquire().then(|| SyncGuard { of: self })
    }

    /// Takes the lock over from a thread that has it, and has forgotten its guard.
    pub(crate) fn resume_sync(&self) -> SyncGuard<'_> {
        SyncGuard { of: self }
    }

    pub(crate) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
