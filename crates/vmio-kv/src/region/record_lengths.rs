//! How long a region's records are, on average: regions of one log may differ a thousandfold.

use std::sync::atomic::{AtomicU64, Ordering};

/// From so many on what is older counts for half.
const RECORDS: u64 = 1 << 12;

/// Of the records that were put lately, how many, and their bytes. One thread adds at a time.
#[derive(Default)]
pub(crate) struct RecordLengths {
    records: AtomicU64,
    bytes: AtomicU64,
}

impl RecordLengths {
    pub(crate) fn add(&self, bytes: u64) {
        let halved = |sum: &AtomicU64, is_due: bool| sum.load(Ordering::Relaxed) >> u32::from(is_due);
        let is_due = self.records.load(Ordering::Relaxed) >= RECORDS;
        self.bytes.store(halved(&self.bytes, is_due) + bytes, Ordering::Relaxed);
        self.records.store(halved(&self.records, is_due) + 1, Ordering::Relaxed);
    }

    /// None before the first.
    pub(crate) fn average(&self) -> Option<u64> {
        self.bytes.load(Ordering::Relaxed).checked_div(self.records.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_what_is_put() {
        let lengths = RecordLengths::default();
        assert_eq!(lengths.average(), None);
        (0..10_000).for_each(|_| lengths.add(100));
        assert_eq!(lengths.average(), Some(100));
        (0..100_000).for_each(|_| lengths.add(50_000));
        assert!(lengths.average() > Some(49_000), "{:?}", lengths.average());
    }
}
