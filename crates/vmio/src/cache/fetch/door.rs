//! The way to the thread of a ring.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::cache::fetch::request::Request;
use crate::sys::mpsc_queue::{MpscQueue, Node};
use crate::sys::ring::Wake;

/// The door of a fetcher: where requests come in.
pub(super) struct Door {
    pub(super) requests: MpscQueue<Request>,
    pub(super) wake: Arc<Wake>,
    pub(super) stopping: AtomicBool,
}

impl Door {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Door { requests: MpscQueue::default(), wake: Arc::new(Wake::new()?), stopping: AtomicBool::new(false) })
    }

    /// Passes a request to the thread.
    pub(super) fn submit(&self, request: Node<Request>) {
        self.requests.push(request);
        self.wake.wake();
    }
}
