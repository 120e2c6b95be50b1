//! The deadline by which appended records have to be durable, if their writers do not wait for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::log::state::State;

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The earliest deadline of all writes for which no flush has begun. It changes only under the log's lock; a thread that has appended under
/// the lock may look at it without.
pub(super) struct Deadline {
    began: Instant,
    /// Nanoseconds since `began`.
    at: AtomicU64,
}

impl Deadline {
    /// No deadline.
    pub(super) fn new() -> Self {
        Deadline { began: Instant::now(), at: AtomicU64::new(NEVER) }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    /// The time in a period from now.
    pub(super) fn after(&self, period: Duration) -> u64 {
        self.now().saturating_add(nanoseconds(period))
    }

    /// Whether the deadline is at that time or earlier.
    pub(super) fn is_by(&self, at: u64) -> bool {
        self.at.load(Ordering::Relaxed) <= at
    }

    /// Moves the deadline to that time, unless it is earlier. Returns whether it was later.
    pub(super) fn bring_forward(&self, at: u64, _lock: &State) -> bool {
        self.at.fetch_min(at, Ordering::Relaxed) > at
    }

    /// Removes the deadline: a flush is about to begin that includes all that was appended.
    pub(super) fn clear(&self, _lock: &State) {
        self.at.store(NEVER, Ordering::Relaxed);
    }

    /// How long it is until the deadline.
    pub(super) fn left(&self) -> Duration {
        match self.at.load(Ordering::Relaxed) {
            NEVER => Duration::MAX,
            at => Duration::from_nanos(at.saturating_sub(self.now())),
        }
    }
}

/// A time in nanoseconds. Times over 584 years count as never.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}
