//! A batch of dirty pages on their way to their devices. `collect` fills it, `write_run` writes it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::destination::Destination;
use crate::cache::merge_buffers::{MergeBuffer, MergeBuffers};
use crate::cache::region_ref::RegionRef;
use crate::sys::pagemap::StoredPages;

/// A merge buffer and the pages whose copies are in it. The owner of a batch keeps the regions of its pages: an evictor through the
/// eviction gate, a syncing thread through its own handle.
pub(crate) struct WriteBatch {
    pub(super) buffer: MergeBuffer,
    pub(super) pages: Vec<BatchPage>,
    /// The tickets of the commits that some of the pages are spilled for.
    pub(super) tickets: Vec<Ticket>,
    pub(super) stored: StoredPages,
    /// Boxed, since runs in the queue point to it.
    pub(super) progress: Box<Progress>,
}

#[derive(Default)]
pub(super) struct Progress {
    /// Runs not yet written.
    pub(super) unfinished: AtomicU32,
    /// Pages that could not be written.
    pub(super) failed: AtomicU32,
}

/// A page whose copy lies in the slot of the same index.
#[derive(Clone, Copy)]
pub(crate) struct BatchPage {
    pub(super) region: RegionRef,
    /// Its number in the region.
    pub(crate) page: u64,
    pub(super) pinned: bool,
    pub(super) destination: Destination,
}

/// The right to spill pages of a region for a commit. The commit waits until the ticket is handed back.
pub(super) struct Ticket {
    pub(super) region: RegionRef,
    pub(super) commit: u64,
}

/// Pages that go to the device in one write: neighbours in the file, or in the journal.
pub(crate) struct WriteRun {
    pub(super) pages: *const [BatchPage],
    pub(super) data: *const u8,
    pub(super) progress: *const Progress,
}

// SAFETY: the pointers, to what the batch owns, stay valid until `Progress::unfinished` is counted down: `WriteBatch::write` waits for that.
unsafe impl Send for WriteRun {}

impl WriteBatch {
    /// A batch with room for this many pages, in one of the given buffers.
    pub(crate) fn new(pages: usize, buffers: &Arc<MergeBuffers>) -> io::Result<Self> {
        Ok(WriteBatch {
            buffer: buffers.take(pages)?,
            pages: Vec::with_capacity(pages),
            // One for each call that adds pages.
            tickets: Vec::with_capacity(pages),
            stored: StoredPages::new(),
            progress: Box::default(),
        })
    }

    /// How many more pages fit.
    pub(crate) fn room(&self) -> usize {
        self.buffer.pages() - self.pages.len()
    }

    /// The pages in it.
    pub(crate) fn pages(&self) -> &[BatchPage] {
        &self.pages
    }

    /// How many pages the last [`Self::write`] could not write.
    pub(crate) fn failed(&self) -> u32 {
        self.progress.failed.load(Ordering::SeqCst)
    }
}
