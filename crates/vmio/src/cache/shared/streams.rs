//! Streams: places for huge pages on their way, and the spans that workers are asked to read ahead of scans.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::cache::huge_frame::HugeFrame;
use crate::cache::region_ref::RegionRef;
use crate::engine::{FaultEngine, Frames};

/// The most requests that may wait. Further ones are dropped, and their spans read when the scan gets there.
const REQUESTS_MAX: usize = 64;

/// The state that streams share: places for huge pages on their way, and the requests to read ahead.
pub(crate) struct Streams {
    pub(crate) frames: ArrayQueue<HugeFrame>,
    pub(crate) requests: ArrayQueue<Request>,
}

/// A span that is to be read ahead of a scan.
pub(crate) struct Request {
    /// Look into it under the eviction gate only: a region forgets its requests before it closes.
    pub(crate) region: RegionRef,
    pub(crate) span: u64,
}

impl Streams {
    /// For this many threads that read at the same time, if the engine's frames can take whole spans.
    pub(crate) fn new(threads: usize, engine: &dyn FaultEngine, frames: &dyn Frames) -> io::Result<Self> {
        let pool = ArrayQueue::new(threads);
        while frames.installs_spans() && !pool.is_full() {
            let _ = pool.push(HugeFrame::reserve(engine)?);
        }
        Ok(Streams { frames: pool, requests: ArrayQueue::new(REQUESTS_MAX) })
    }

    /// Whether a request to read ahead waits.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Forgets the requests for a region. The caller holds the eviction gate for writing.
    pub(crate) fn forget(&self, region: RegionRef) {
        for _ in 0..self.requests.len() {
            match self.requests.pop() {
                Some(request) if request.region != region => drop(self.requests.push(request)),
                _ => {}
            }
        }
    }
}
