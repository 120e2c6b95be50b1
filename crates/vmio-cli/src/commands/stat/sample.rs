//! The caches of a process at one moment.

use std::time::{Duration, Instant};

use vmio::telemetry::{Reader, Snapshot};

use super::interval::Interval;

/// The caches of a process at one moment.
pub struct Sample {
    /// The time of the sample.
    pub taken: Instant,
    /// The caches, in the order of their construction.
    pub caches: Vec<Snapshot>,
}

impl Sample {
    /// `None` if the process has ended.
    pub fn take(reader: &Reader) -> anyhow::Result<Option<Self>> {
        let caches = match reader.snapshots() {
            Err(_) if reader.wait_for_end(Duration::ZERO)? => return Ok(None),
            caches => caches?,
        };
        Ok(Some(Sample { taken: Instant::now(), caches }))
    }

    /// Each cache with its rates since an earlier sample, or since its construction.
    pub fn since<'a>(&'a self, earlier: &'a Sample) -> impl Iterator<Item = (&'a Snapshot, Interval)> {
        let seconds = (self.taken - earlier.taken).as_secs_f64();
        self.caches.iter().map(move |cache| {
            let before = earlier.caches.iter().find(|before| before.cache_number == cache.cache_number);
            (cache, Interval::between(before, cache, seconds))
        })
    }
}
