//! The classes of priorities in a cache's counts of resident pages.

use std::ops::RangeInclusive;

use vmio::telemetry::Snapshot;

/// Each class with its pages, from the priorities that stay to those that go first.
pub fn resident_by_priority(cache: &Snapshot) -> impl Iterator<Item = (RangeInclusive<usize>, u64)> {
    let classes = cache.stats.resident_by_priority;
    let width = (u8::MAX as usize + 1) / classes.len();
    classes.into_iter().enumerate().map(move |(class, pages)| (class * width..=(class + 1) * width - 1, pages))
}
