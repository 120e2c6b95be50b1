//! The pages that an engine refuses for a while, since they could not be brought in.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time of a refusal without another try: long enough for the faulting thread to get a core and meet the refusal, and short
/// enough that the next try comes soon.
const REFUSED_FOR: Duration = Duration::from_millis(100);
/// The most refusals at a time. One more ends the oldest early.
const REFUSALS_MAX: usize = 1024;

/// The ends of refusals and the addresses of their pages, in order of time. Allocates once.
pub(super) struct Refusals(Mutex<VecDeque<(Instant, usize)>>);

impl Refusals {
    pub(super) fn new() -> Self {
        Refusals(Mutex::new(VecDeque::with_capacity(REFUSALS_MAX)))
    }

    /// Adds a refused page. Returns the page whose refusal must end in return, if there are too many.
    pub(super) fn add(&self, address: usize) -> Option<usize> {
        let mut list = self.list();
        let oldest = if list.len() == REFUSALS_MAX { list.pop_front() } else { None };
        list.push_back((Instant::now() + REFUSED_FOR, address));
        oldest.map(|(_, address)| address)
    }

    /// The time until the first refusal ends.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.list().front().map(|(end, _)| end.saturating_duration_since(Instant::now()))
    }

    /// Takes a page whose refusal must end now.
    pub(super) fn take_ended(&self) -> Option<usize> {
        let mut list = self.list();
        list.front().is_some_and(|(end, _)| *end <= Instant::now()).then(|| list.pop_front())?.map(|(_, page)| page)
    }

    /// Forgets the pages of a range that is going away: later contents of these addresses are not the engine's.
    pub(super) fn forget(&self, addresses: Range<usize>) {
        self.list().retain(|(_, address)| !addresses.contains(address));
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<(Instant, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_end_in_time_or_for_others() {
        let refusals = Refusals::new();
        assert_eq!((refusals.time_left(), refusals.take_ended()), (None, None));
        for page in 0..REFUSALS_MAX {
            assert_eq!(refusals.add(page), None);
        }
        assert!(refusals.time_left().is_some_and(|left| left <= REFUSED_FOR));
        assert_eq!(refusals.add(5000), Some(0));
        refusals.forget(1..REFUSALS_MAX - 1);
        std::thread::sleep(REFUSED_FOR);
        assert_eq!(refusals.time_left(), Some(Duration::ZERO));
        let ended: Vec<_> = std::iter::from_fn(|| refusals.take_ended()).collect();
        assert_eq!(ended, [REFUSALS_MAX - 1, 5000]);
    }
}
