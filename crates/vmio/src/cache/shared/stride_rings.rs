//! The rings through which threads read ahead of misses that are a constant distance apart.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::sys::batch_ring::BatchRing;

/// At most this many threads read ahead by strides at a time; others read their page alone.
const RINGS_MAX: usize = 8;

/// The rings of a cache. Boxed, since the thread that takes one may have a stack of 8 KiB.
pub(crate) struct StrideRings {
    pub(crate) rings: ArrayQueue<Box<BatchRing>>,
}

impl StrideRings {
    /// A ring for each core, `RINGS_MAX` at most, if there is io_uring.
    pub(super) fn new(cores: usize, uses_io_uring: bool) -> Self {
        let rings = ArrayQueue::new(cores.clamp(1, RINGS_MAX));
        let make = || -> io::Result<()> {
            while uses_io_uring && !rings.is_full() {
                let _ = rings.push(Box::new(BatchRing::new(WINDOW_PAGES_MAX as u32)?));
            }
            Ok(())
        };
        if let Err(error) = make() {
            tracing::info!(%error, "no io_uring: misses that are a constant distance apart are not read ahead of");
        }
        StrideRings { rings }
    }
}
