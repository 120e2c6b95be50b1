//! Write-back: dirty pages, and the memory and the queue by which they get to their devices.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use crate::cache::merge_buffers::MergeBuffers;
use crate::cache::shared::memory::share;
use crate::cache::write_batch::{BATCH_PAGES, WriteBatch, WriteRun};
use crate::telemetry::layout::Gauge;
use crate::telemetry::page::{PublishedWord, StatPage};

/// Write runs that may wait for a thread; more are written by the thread that made them.
const QUEUED_RUNS_MAX: usize = 4096;

/// What the threads share that write dirty pages.
pub(crate) struct WriteBack {
    /// Those of the workers, of a thread that syncs, and of the spare evictors; a thread beyond them has others.
    pub(crate) merge_buffers: Arc<MergeBuffers>,
    /// Runs of pages that are copied and wait to be written, by whoever comes first.
    pub(crate) queue: ArrayQueue<WriteRun>,
    sync_batches: Mutex<Vec<WriteBatch>>,
    dirty_pages: PublishedWord,
    dirty_ratio: f64,
    /// The system's number for the last page that could not be written; 0 if it had none.
    last_error: AtomicI32,
}

impl WriteBack {
    /// Without dirty pages, which are counted in the stat page.
    pub(super) fn new(page: &Arc<StatPage>, dirty_ratio: f64, merge_buffers: Arc<MergeBuffers>) -> Self {
        WriteBack {
            merge_buffers,
            queue: ArrayQueue::new(QUEUED_RUNS_MAX),
            sync_batches: Mutex::new(Vec::new()),
            dirty_pages: page.gauge(Gauge::DirtyPages),
            dirty_ratio,
            last_error: AtomicI32::new(0),
        }
    }

    /// Dirty pages of all mappings. The count is below zero while a page is cleaned before it has been counted.
    pub(crate) fn dirty_pages(&self) -> u32 {
        (self.dirty_pages.load(Ordering::Relaxed) as i64).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// With more dirty pages than this, write-back begins though nothing must be evicted.
    #[inline]
    pub(super) fn dirty_pages_max(&self, capacity_pages: u32) -> u32 {
        share(capacity_pages, self.dirty_ratio)
    }

    /// With more dirty pages than this, storing threads help.
    #[inline]
    pub(super) fn unaided_dirty_pages_max(&self, capacity_pages: u32) -> u32 {
        share(capacity_pages, (1.0 + self.dirty_ratio) / 2.0)
    }

    /// One more dirty page; returns how many there were before.
    pub(super) fn add_dirty(&self) -> u64 {
        self.dirty_pages.fetch_add(1, Ordering::Relaxed)
    }

    /// That many fewer dirty pages.
    pub(crate) fn remove_dirty(&self, pages: usize) {
        self.dirty_pages.fetch_sub(pages as u64, Ordering::Relaxed);
    }

    /// A page could not be written.
    pub(crate) fn note_error(&self, error: &io::Error) {
        self.last_error.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
    }

    /// Why the last one could not: the system's number, or 0 if it had none.
    pub(crate) fn last_error(&self) -> i32 {
        self.last_error.load(Ordering::Relaxed)
    }

    /// A merge buffer for a thread that syncs or advises.
    pub(crate) fn take_sync_batch(&self) -> io::Result<WriteBatch> {
        let pooled = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.map_or_else(|| WriteBatch::new(BATCH_PAGES, &self.merge_buffers), Ok)
    }

    /// Takes it back; one is kept.
    pub(crate) fn return_sync_batch(&self, batch: WriteBatch) {
        let mut pool = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_empty() {
            pool.push(batch);
        }
    }
}
