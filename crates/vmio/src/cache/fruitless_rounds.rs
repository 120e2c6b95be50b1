//! How long a thread that needs pages has gained none: the harder it evicts, and when it gives up.

use std::time::{Duration, Instant};

use crate::cache::pass::{Goal, VISIT_WEIGHT_MAX};

/// Rounds in a row with failed writes and without a page gained, after which a thread gives up.
const FAILED_MAX: u32 = 16;
/// For this many such rounds, evictors keep the floors of mappings.
const FAILED_ABOVE_FLOORS: u32 = 8;
/// For this long without a page gained, evictors keep the floors of mappings.
pub(super) const PATIENCE_ABOVE_FLOORS: Duration = Duration::from_millis(128);

/// The message where [`FruitlessRounds::writes_fail`].
pub(crate) const WRITES_FAIL: &str = "its pages cannot be written (sync returns the reason) or unmapped";

/// Rounds of eviction in a row that gained no page.
#[derive(Debug)]
pub(crate) struct FruitlessRounds {
    count: u32,
    /// The last ones of them in which writes failed.
    failed: u32,
    since: Instant,
}

impl FruitlessRounds {
    /// None so far.
    pub(crate) fn new() -> Self {
        FruitlessRounds { count: 0, failed: 0, since: Instant::now() }
    }

    /// A page was gained: what was before counts no more.
    pub(crate) fn end(&mut self) {
        *self = Self::new();
    }

    /// Another one, in which this many pages could not be written or unmapped.
    pub(crate) fn add(&mut self, failed_pages: u32) {
        self.count += 1;
        self.failed = if failed_pages > 0 { self.failed + 1 } else { 0 };
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The time without a page gained.
    pub(crate) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether the thread should give up, since the device does not take what it writes.
    pub(crate) fn writes_fail(&self) -> bool {
        self.failed > FAILED_MAX
    }

    /// The goal of the next round.
    pub(crate) fn goal(&self) -> Goal {
        match self.count {
            0 => Goal::EVICT,
            1 => Goal::Evict { weight: VISIT_WEIGHT_MAX },
            _ if self.failed > FAILED_ABOVE_FLOORS || self.time() > PATIENCE_ABOVE_FLOORS => Goal::EvictBelowFloors,
            _ => Goal::EvictHard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_before_a_gain_do_not_count() {
        let mut rounds = FruitlessRounds::new();
        for _ in 0..3 {
            (0..FAILED_MAX).for_each(|_| rounds.add(1));
            assert!(!rounds.writes_fail());
            assert_eq!(rounds.goal(), Goal::EvictBelowFloors);
            rounds.end();
            assert_eq!((rounds.count(), rounds.goal()), (0, Goal::EVICT));
        }
        (0..=FAILED_MAX).for_each(|_| rounds.add(1));
        assert!(rounds.writes_fail());
    }

    #[test]
    fn a_round_without_failures_ends_the_row_of_failures() {
        let mut rounds = FruitlessRounds::new();
        (0..FAILED_MAX).for_each(|_| rounds.add(2));
        rounds.add(0);
        (0..FAILED_MAX).for_each(|_| rounds.add(2));
        assert!(!rounds.writes_fail());
        assert_eq!(rounds.count(), 2 * FAILED_MAX + 1);
    }
}
