//! The memory that a cache uses for itself, counted against its capacity beside its pages.

use crate::cache::merge_buffers::{BATCH_PAGES, SHARED_BATCHES_MAX};
use crate::error::{Error, Result};
use crate::sys::PAGE_BYTES;

/// The smallest budget of pages: enough for every thread of an ordinary program to have its instruction's pages
/// resident at the same time.
pub(crate) const PAGES_MIN: u64 = 256;

const MERGE_BUFFER_BYTES: u64 = (BATCH_PAGES * PAGE_BYTES) as u64;
/// At least `MERGE_BUFFERS_MIN` merge buffers count, and at most as many as fit the capacity divided by `MERGE_BUFFERS_SHARE`: a
/// program that asks for many workers of a small cache gets them.
const MERGE_BUFFERS_MIN: u64 = 2;
const MERGE_BUFFERS_SHARE: u64 = 8;
/// Lists, page buffers, stacks, and the counters (a page, and one more a core).
const OTHER_BYTES: u64 = 1 << 20;

/// The bytes that a cache uses for itself, as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overhead(u64);

impl Overhead {
    /// The overhead of the smallest cache, and of one without workers.
    pub(crate) const LEAST: Overhead = Overhead(MERGE_BUFFERS_MIN * MERGE_BUFFER_BYTES + OTHER_BYTES);

    /// The overhead of a cache with this many workers, whose capacity never falls below `least_bytes`.
    pub(crate) fn of(workers: usize, least_bytes: u64) -> Self {
        // One more for a thread that syncs. With two workers, one works at a time, and their buffers do for the sync as well.
        let beside = u64::from(workers > MERGE_BUFFERS_MIN as usize);
        let wanted = workers.min(SHARED_BATCHES_MAX) as u64 + beside;
        let counted = wanted.min(merge_buffers_max(least_bytes)).max(MERGE_BUFFERS_MIN);
        Overhead(counted * MERGE_BUFFER_BYTES + OTHER_BYTES)
    }

    /// The most workers whose merge buffers are all counted in a cache of that capacity.
    pub(crate) fn workers_within(least_bytes: u64) -> usize {
        merge_buffers_max(least_bytes).saturating_sub(1).max(MERGE_BUFFERS_MIN) as usize
    }

    /// The memory that a cache of this many pages may use.
    pub(crate) const fn capacity_bytes(self, pages: u32) -> u64 {
        self.0 + pages as u64 * PAGE_BYTES as u64
    }

    /// The pages of a cache that may use this much memory; the fewest possible where its own memory leaves no more.
    pub(crate) fn capacity_pages(self, bytes: u64) -> Result<u32> {
        let pages = (bytes.saturating_sub(self.0) / PAGE_BYTES as u64).max(PAGES_MIN);
        match u32::try_from(pages) {
            Ok(fitting) if bytes >= Self::LEAST.capacity_bytes(PAGES_MIN as u32) => Ok(fitting),
            _ => Err(Error::BadOption {
                option: "capacity",
                value: format!("{bytes} bytes"),
                expected: "between 6 MiB (1 MiB of pages, the rest merge buffers) and 16 TiB",
            }),
        }
    }
}

fn merge_buffers_max(least_bytes: u64) -> u64 {
    least_bytes / MERGE_BUFFERS_SHARE / MERGE_BUFFER_BYTES
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Cache;
    use crate::open::FaultBackend;

    const MIB: u64 = 1 << 20;

    /// With sixteen workers a cache of 512 MiB took 547.
    #[test]
    fn pages_and_merge_buffers_are_within_the_capacity() {
        for (workers, capacity) in [(4, 80 * MIB), (16, 512 * MIB), (200, 512 * MIB)] {
            let cache = Cache::builder().workers(workers).capacity(capacity).build().unwrap();
            let FaultBackend::Cached(core) = cache.backend() else {
                return test_depth::skipped("only the managed engine is available, which has no workers");
            };
            let buffers = core.shared.write_back.merge_buffers.addresses().len() as u64;
            assert!(cache.capacity_bytes() + buffers <= capacity, "{workers} workers: {buffers} of buffers");
            cache.resize(2 * capacity).unwrap();
            assert!(cache.capacity_bytes() + buffers <= 2 * capacity);
            cache.resize(capacity).unwrap();
            cache.resize(6 * MIB).unwrap();
            assert_eq!(cache.stats().capacity_pages, PAGES_MIN);
        }
    }

    #[test]
    fn a_small_cache_has_few_workers_unless_more_are_asked_for() {
        assert_eq!([6, 64, 128, 512].map(|mib| Overhead::workers_within(mib * MIB)), [2, 3, 7, 31]);
        assert_eq!(Overhead::of(64, 6 * MIB), Overhead::LEAST);
        assert_eq!(Overhead::of(2, 512 * MIB), Overhead::LEAST);
    }
}
