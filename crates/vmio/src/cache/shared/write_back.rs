//! Write-back: the count of dirty pages, and the buffers and the queue through which they reach their devices.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use crate::cache::merge_buffers::{BATCH_PAGES, MergeBuffers};
use crate::cache::shared::memory::share;
use crate::cache::write_batch::{WriteBatch, WriteRun};
use crate::telemetry::layout::Gauge;
use crate::telemetry::page::{PublishedWord, StatPage};

/// The most write runs that may wait for a thread. The thread that makes more of them writes those itself.
const QUEUED_RUNS_MAX: usize = 4096;

/// The state shared by the threads that write dirty pages.
pub(crate) struct WriteBack {
    /// The merge buffers of the workers, of one thread that syncs, and of the spare evictors. Further threads have
    /// buffers of their own.
    pub(crate) merge_buffers: Arc<MergeBuffers>,
    /// Runs of copied pages, which wait for any thread to write them.
    pub(crate) queue: ArrayQueue<WriteRun>,
    sync_batches: Mutex<Vec<WriteBatch>>,
    dirty_pages: PublishedWord,
    dirty_ratio: f64,
    /// The system's error number of the last failed page write; 0 if the error had none.
    last_error: AtomicI32,
}

impl WriteBack {
    /// Without dirty pages. The stat page holds their count.
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

    /// Dirty pages of all mappings. The count is below zero for a moment if write-back cleans a page before it is
    /// counted.
    pub(crate) fn dirty_pages(&self) -> u32 {
        (self.dirty_pages.load(Ordering::Relaxed) as i64).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// With more dirty pages than this, write-back begins even if nothing must be evicted.
    #[inline]
    pub(super) fn dirty_pages_max(&self, capacity_pages: u32) -> u32 {
        share(capacity_pages, self.dirty_ratio)
    }

    /// With more dirty pages than this, storing threads help to write.
    #[inline]
    pub(super) fn unaided_dirty_pages_max(&self, capacity_pages: u32) -> u32 {
        share(capacity_pages, (1.0 + self.dirty_ratio) / 2.0)
    }

    /// Counts one more dirty page; returns how many there were before.
    pub(super) fn add_dirty(&self) -> u64 {
        self.dirty_pages.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts this many fewer dirty pages.
    pub(crate) fn remove_dirty(&self, pages: usize) {
        self.dirty_pages.fetch_sub(pages as u64, Ordering::Relaxed);
    }

    /// Notes why a page could not be written.
    pub(crate) fn note_error(&self, error: &io::Error) {
        self.last_error.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
    }

    /// The system's error number of the last failed page write; 0 if the error had none.
    pub(crate) fn last_error(&self) -> i32 {
        self.last_error.load(Ordering::Relaxed)
    }

    /// Takes a batch for a thread that syncs or advises.
    pub(crate) fn take_sync_batch(&self) -> io::Result<WriteBatch> {
        let pooled = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.map_or_else(|| WriteBatch::new(BATCH_PAGES, &self.merge_buffers), Ok)
    }

    /// Takes a batch back, and keeps one for the next sync.
    pub(crate) fn return_sync_batch(&self, batch: WriteBatch) {
        let mut pool = self.sync_batches.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_empty() {
            pool.push(batch);
        }
    }
}
