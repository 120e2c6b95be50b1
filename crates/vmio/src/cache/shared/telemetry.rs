//! The counters of a cache, which other processes can read.

use std::io;
use std::sync::Arc;

use crate::telemetry::counters::{Counter, Counters};
use crate::telemetry::layout::Gauge;
use crate::telemetry::miss_ring::MissRing;
use crate::telemetry::page::{PublishedWord, StatPage};

/// The cache times one device read in this many. It times every miss anyway, and with that reads the clock often
/// enough.
pub(super) const READ_SAMPLING: u64 = 8;

/// The counters of a cache, and the record of its misses.
pub(crate) struct Telemetry {
    pub(crate) counters: Counters,
    pub(crate) measures_misses: bool,
    /// The ring that misses are published in; `None` if the cache does not publish them.
    pub(crate) miss_ring: Option<MissRing>,
    pub(crate) mappings: PublishedWord,
    pub(crate) mapped_bytes: PublishedWord,
}

impl Telemetry {
    /// With counters in the stat page.
    pub(super) fn new(page: &Arc<StatPage>, measures_misses: bool, publishes_misses: bool) -> io::Result<Self> {
        Ok(Telemetry {
            counters: Counters::new(page),
            measures_misses,
            miss_ring: publishes_misses.then(|| MissRing::new(page.cache_number())).transpose()?,
            mappings: page.gauge(Gauge::Mappings),
            mapped_bytes: page.gauge(Gauge::MappedBytes),
        })
    }

    /// Adds to a counter of the given core.
    #[inline]
    pub(crate) fn count(&self, core: usize, counter: Counter, amount: u64) {
        self.counters.add(core, counter, amount);
    }

    /// Whether the next device read of the given core is one of those that are timed.
    #[inline]
    pub(crate) fn times_read(&self, core: usize) -> bool {
        self.counters.of_core(core, Counter::Reads).is_multiple_of(READ_SAMPLING)
    }
}
