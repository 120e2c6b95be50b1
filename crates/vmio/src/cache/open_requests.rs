//! How many requests to fetch pages of a region are not yet finished: the region closes after the last.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vmio_core::futex;

/// The number of unfinished requests for a region.
#[derive(Default)]
pub(crate) struct OpenRequests {
    count: AtomicU32,
    /// The region is about to close.
    ends: AtomicBool,
}

/// Tells threads that close regions when requests have ended. This lies in the state that all regions share: the thread
/// that ends the last request of a region must not touch the region after that.
#[derive(Default)]
pub(crate) struct EndedRequests {
    event: AtomicU32,
    waiters: AtomicU32,
}

impl OpenRequests {
    /// Counts one more request.
    pub(super) fn begin_one(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one request less. The region may be gone afterwards.
    pub(super) fn end_one(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a thread waits to close the region.
    pub(super) fn must_end(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns when no thread fetches pages of the region any more. No handle is left through which a fetch could
    /// begin.
    pub(crate) fn end(&self, ended: &EndedRequests) {
        self.ends.store(true, Ordering::SeqCst);
        ended.waiters.fetch_add(1, Ordering::SeqCst);
        loop {
            let event = ended.event.load(Ordering::SeqCst);
            if self.count.load(Ordering::SeqCst) == 0 {
                break;
            }
            futex::wait(&ended.event, event);
        }
        ended.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

impl EndedRequests {
    /// Wakes the threads that wait for the end of requests: one has ended.
    pub(super) fn note_one(&self) {
        self.event.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.event);
        }
    }
}
