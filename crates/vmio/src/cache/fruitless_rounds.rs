//! How long a thread that needs pages has gained none: the harder it evicts, and when it gives up.

use std::time::{Duration, Instant};

use crate::cache::pass::{Goal, Pass, VISIT_WEIGHT_MAX};

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

    /// Another one, with this pass.
    pub(crate) fn add(&mut self, pass: Pass) {
        self.count += 1;
        if pass.failed > 0 {
            self.failed += 1;
        } else if pass.spans > 0 {
            self.failed = 0;
        }
        // Without a span, other evictors had all of them in hand. That says nothing of writes.
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

    const FAILED: Pass = Pass { failed: 1, ..LOOKED };
    const LOOKED: Pass = Pass { spans: 1, ..NONE };
    const NONE: Pass = Pass { freed: 0, written: 0, written_inactive: 0, failed: 0, spans: 0 };

    #[test]
    fn failures_before_a_gain_do_not_count() {
        let mut rounds = FruitlessRounds::new();
        for _ in 0..3 {
            (0..FAILED_MAX).for_each(|_| rounds.add(FAILED));
            assert!(!rounds.writes_fail());
            assert_eq!(rounds.goal(), Goal::EvictBelowFloors);
            rounds.end();
            assert_eq!((rounds.count(), rounds.goal()), (0, Goal::EVICT));
        }
        (0..=FAILED_MAX).for_each(|_| rounds.add(FAILED));
        assert!(rounds.writes_fail());
    }

    #[test]
    fn a_round_without_failures_ends_the_row_of_failures() {
        let mut rounds = FruitlessRounds::new();
        (0..FAILED_MAX).for_each(|_| rounds.add(FAILED));
        rounds.add(LOOKED);
        (0..FAILED_MAX).for_each(|_| rounds.add(FAILED));
        assert!(!rounds.writes_fail());
        assert_eq!(rounds.count(), 2 * FAILED_MAX + 1);
    }

    /// Evictors that fail to write the same pages take turns.
    #[test]
    fn a_round_that_other_evictors_left_no_span_neither_fails_nor_ends_the_row() {
        let mut rounds = FruitlessRounds::new();
        for _ in 0..=FAILED_MAX {
            assert!(!rounds.writes_fail());
            rounds.add(FAILED);
            (0..20).for_each(|_| rounds.add(NONE));
        }
        assert!(rounds.writes_fail());
    }
}
