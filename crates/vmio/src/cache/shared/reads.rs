//! Reads: the buffers and rings by which pages come in.

use std::io;

use crate::cache::open_requests::EndedRequests;
use crate::cache::page_buffers::PageBuffers;
use crate::cache::shared::paging::Paging;
use crate::cache::shared::streams::Streams;
use crate::cache::shared::stride_rings::StrideRings;

/// A ring has at most one page in this many of the cache under way, so that the rest can be evicted for faults.
const IN_FLIGHT_SHARE: u32 = 8;

/// The state shared by the threads that bring pages in.
pub(crate) struct Reads {
    pub(crate) page_buffers: PageBuffers,
    pub(crate) streams: Streams,
    pub(crate) stride_rings: StrideRings,
    pub(crate) ended_requests: EndedRequests,
    /// Whether pages may be fetched through io_uring.
    pub(crate) use_io_uring: bool,
    /// The most pages that a ring may have under way at a time.
    pages_in_flight_max: u32,
}

impl Reads {
    /// For this many cores, and workers that read ahead.
    pub(super) fn new(
        paging: &Paging,
        cores: usize,
        workers: u32,
        use_io_uring: bool,
        pages_in_flight_max: u32,
    ) -> io::Result<Self> {
        Ok(Reads {
            page_buffers: PageBuffers::new(cores)?,
            streams: Streams::new(cores + workers as usize, &*paging.engine, &*paging.frames)?,
            stride_rings: StrideRings::new(cores, use_io_uring),
            ended_requests: EndedRequests::default(),
            use_io_uring,
            pages_in_flight_max,
        })
    }

    /// The most pages that a ring may have under way at a time, in a cache of that capacity.
    pub(super) fn pages_in_flight(&self, capacity_pages: u32) -> u32 {
        self.pages_in_flight_max.min(capacity_pages / IN_FLIGHT_SHARE)
    }
}
