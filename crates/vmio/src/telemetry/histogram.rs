//! Histograms of durations: counts in buckets that grow with the duration.

use crate::telemetry::layout::{BUCKETS, bucket_end_ns};

/// A histogram of durations in nanoseconds.
///
/// It has four buckets for each power of two from 256 ns to about a second, so a quantile is at most a quarter too
/// long.
///
/// # Examples
///
/// ```
/// use vmio::telemetry::Reader;
///
/// let cache = vmio::Cache::builder().capacity(8 << 20).build()?;
/// let snapshot = Reader::open(std::process::id())?.snapshots()?.remove(0);
/// match snapshot.miss.quantile_ns(0.99) {
///     Some(ns) => println!("99 of 100 misses took {ns} ns at most"),
///     None => println!("no miss yet"),
/// }
/// # drop(cache);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Adds the counts of one core.
    pub(crate) fn add(&mut self, buckets: impl Iterator<Item = u64>, sum_ns: u64, max_ns: u64) {
        self.buckets.iter_mut().zip(buckets).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the sum of all durations in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the longest duration since the cache was built, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the buckets in rising order: an upper bound, and the number of durations.
    ///
    /// The durations of a bucket are shorter than its bound in nanoseconds. The bound is `None` for the last bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let end_ns = |bucket| (bucket + 1 < BUCKETS).then(|| bucket_end_ns(bucket));
        self.buckets.iter().enumerate().map(move |(bucket, count)| (end_ns(bucket), *count))
    }

    /// Returns a duration that the given share of all durations (0 to 1) does not exceed.
    ///
    /// It is the end of a bucket, or the longest duration if that is less. `None` without durations.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * share.clamp(0.0, 1.0)).ceil() as u64).clamp(1, count);
        let mut below = 0_u64;
        let bucket = self.buckets.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= rank
        });
        Some(bucket_end_ns(bucket.unwrap_or(BUCKETS - 1)).min(self.max_ns))
    }

    /// Returns the durations added since an earlier state of the same histogram. The longest remains that of the whole.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut recent = self.clone();
        recent.buckets.iter_mut().zip(&earlier.buckets).for_each(|(now, then)| *now = now.saturating_sub(*then));
        recent.sum_ns = recent.sum_ns.saturating_sub(earlier.sum_ns);
        recent
    }

    /// Returns the durations of both histograms together.
    pub fn merged(mut self, other: &Histogram) -> Histogram {
        self.add(other.buckets.iter().copied(), other.sum_ns, other.max_ns);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::telemetry::layout::bucket_of;

    fn histogram_of(durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for ns in durations {
            let one = (0..BUCKETS).map(|bucket| u64::from(bucket == bucket_of(*ns)));
            histogram.add(one, *ns, *ns);
        }
        histogram
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
        assert_eq!(histogram_of(&[9]).since(&histogram_of(&[9])).quantile_ns(0.5), None);
    }

    #[test]
    fn what_was_added_since_is_told_apart() {
        let (before, after) = (histogram_of(&[300, 70_000]), histogram_of(&[300, 70_000, 2_000]));
        let recent = after.since(&before);
        assert_eq!((recent.count(), recent.sum_ns(), recent.quantile_ns(1.0)), (1, 2_000, Some(2_048)));
    }

    #[test]
    fn buckets_tell_their_ends() {
        let histogram = histogram_of(&[255, 256, 1 << 30, u64::MAX / 2]);
        let filled: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(Some(256), 1), (Some(320), 1), (None, 2)]);
    }

    proptest! {
        #[test]
        fn a_quantile_is_right_to_a_quarter(
            mut durations in proptest::collection::vec(256_u64..1 << 30, 1..200),
            share in 0.0_f64..=1.0,
        ) {
            let found = histogram_of(&durations).quantile_ns(share).unwrap_or(0);
            durations.sort_unstable();
            let rank = ((durations.len() as f64 * share).ceil() as usize).clamp(1, durations.len());
            let exact = durations[rank - 1];
            prop_assert!(found >= exact && found <= exact + exact.div_ceil(4), "{found} for {exact}");
        }
    }
}
