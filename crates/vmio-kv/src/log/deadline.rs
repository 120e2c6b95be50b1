//! By when what was appended has to be durable, where its writers do not wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::log::State;

/// No time at all.
const NEVER: u64 = u64::MAX;

/// The earliest of these times, of writes for which no flush was begun yet. It changes under the log's lock alone; who has appended under
/// that lock before may look at it without.
pub(super) struct Deadline {
    began: Instant,
    /// Nanoseconds from then on.
    at: AtomicU64,
}

impl Deadline {
    /// Nothing has to be durable.
    pub(super) fn new() -> Self {
        Deadline { began: Instant::now(), at: AtomicU64::new(NEVER) }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    /// The time that is so much later than now.
    pub(super) fn after(&self, period: Duration) -> u64 {
        self.now().saturating_add(nanoseconds(period))
    }

    /// Whether it is that time, or an earlier one.
    pub(super) fn is_by(&self, at: u64) -> bool {
        self.at.load(Ordering::Relaxed) <= at
    }

    /// Makes it that time, unless it is earlier; tells whether it was later.
    pub(super) fn bring_forward(&self, at: u64, _lock: &State) -> bool {
        self.at.fetch_min(at, Ordering::Relaxed) > at
    }

    /// A flush is about to begin that takes in all that was appended.
    pub(super) fn clear(&self, _lock: &State) {
        self.at.store(NEVER, Ordering::Relaxed);
    }

    /// How long it is until then.
    pub(super) fn left(&self) -> Duration {
        match self.at.load(Ordering::Relaxed) {
            NEVER => Duration::MAX,
            at => Duration::from_nanos(at.saturating_sub(self.now())),
        }
    }
}

/// In 584 years, which is for ever, all of them.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}
