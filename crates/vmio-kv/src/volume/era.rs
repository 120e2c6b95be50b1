//! When what a commit has taken out of use may be used again: when nobody can reach it any longer.
//!
//! A version of a region refers to nodes and records. The commit that makes the next version retires some of them, which
//! readers of the version, and of all before it, may still look at. Each version holds an era, each era the next one: so an
//! era ends only after all before it, and what was retired with it is given back then.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::format::free_log::Freed;

/// Where blocks go whose last reader has gone.
#[derive(Default)]
pub(crate) struct Retired(Mutex<Vec<Freed>>);

impl Retired {
    /// Takes all that nobody reads any more.
    pub(crate) fn take(&self) -> Vec<Freed> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, freed: &mut Vec<Freed>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(freed);
    }
}

/// The time between two commits of a region.
pub(crate) struct Era {
    retired: Arc<Retired>,
    ending: OnceLock<(Vec<Freed>, Arc<Era>)>,
}

impl Era {
    /// The first one.
    pub(crate) fn first(retired: &Arc<Retired>) -> Arc<Era> {
        Arc::new(Era { retired: Arc::clone(retired), ending: OnceLock::new() })
    }

    /// Ends it with what its last commit has retired, and begins the next one.
    pub(crate) fn end(&self, freed: Vec<Freed>) -> Arc<Era> {
        let next = Era::first(&self.retired);
        let ended = self.ending.set((freed, Arc::clone(&next)));
        assert!(ended.is_ok(), "an era ends once");
        next
    }
}

impl Drop for Era {
    fn drop(&mut self) {
        let mut ending = self.ending.take();
        // In a loop: a chain of eras that ends at once must not end by recursion.
        while let Some((mut freed, next)) = ending {
            self.retired.put(&mut freed);
            ending = Arc::into_inner(next).and_then(|mut next| next.ending.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(offset: u64) -> Vec<Freed> {
        vec![Freed { offset, blocks: 1 }]
    }

    #[test]
    fn what_is_retired_waits_for_all_earlier_readers() {
        let retired = Arc::new(Retired::default());
        let first = Era::first(&retired);
        let second = first.end(freed(1));
        let third = second.end(freed(2));
        drop(second);
        assert_eq!(retired.take(), vec![], "a reader of the first may look at both");
        drop(first);
        assert_eq!(retired.take(), [freed(1), freed(2)].concat());
        drop(third);
        assert_eq!(retired.take(), vec![]);
    }

    #[test]
    fn a_later_reader_does_not_hold_earlier_blocks() {
        let retired = Arc::new(Retired::default());
        let first = Era::first(&retired);
        let second = first.end(freed(1));
        drop(first);
        assert_eq!(retired.take(), freed(1));
        drop(second);
    }

    #[test]
    fn a_long_chain_ends_without_recursion() {
        let retired = Arc::new(Retired::default());
        let first = Era::first(&retired);
        let mut last = Arc::clone(&first);
        for number in 0..1_000_000 {
            last = last.end(freed(number));
        }
        drop((first, last));
        assert_eq!(retired.take().len(), 1_000_000);
    }
}
