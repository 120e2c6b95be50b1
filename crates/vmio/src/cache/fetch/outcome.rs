//! The outcome of a fetch: the threads that work on its parts report to it, and a future waits for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

use atomic_waker::AtomicWaker;

use crate::cache::fault_error::FaultError;
use crate::error::Error;

/// Why a fetch failed.
pub(crate) enum Failure {
    /// This page could not be brought in; in a form that needs no allocation.
    Page(u64, FaultError),
    /// The fetch failed for this reason.
    Error(Error),
}

/// Shared by the parts of a fetch and the future that waits for all of them.
pub(crate) struct Outcome {
    parts_left: AtomicU32,
    waker: AtomicWaker,
    /// The first failure. The future looks at it after the last part only. So no thread waits for this lock while a
    /// signal handler could be waiting for that thread.
    failure: Mutex<Option<Failure>>,
}

impl Outcome {
    /// The outcome of a fetch of this many parts.
    pub(crate) fn of_parts(parts: u32) -> Self {
        Outcome { parts_left: AtomicU32::new(parts), waker: AtomicWaker::new(), failure: Mutex::new(None) }
    }

    /// Ends a part. The last part calls the waker, which is code of the program's.
    pub(crate) fn finish_part(&self, failure: Option<Failure>) {
        if let Some(failure) = failure {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        }
        if self.parts_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.waker.wake();
        }
    }

    /// Returns the outcome, once. If there is none yet, the last part calls the waker.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<Failure>> {
        let is_done = || self.parts_left.load(Ordering::SeqCst) == 0;
        if !is_done() {
            self.waker.register(waker);
            if !is_done() {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.failure.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_ends_it_and_the_first_failure_counts() {
        let outcome = Outcome::of_parts(3);
        let waker = Waker::noop();
        outcome.finish_part(None);
        outcome.finish_part(Some(Failure::Page(7, FaultError::BeyondEnd)));
        assert!(outcome.poll(waker).is_pending());
        outcome.finish_part(Some(Failure::Page(8, FaultError::BeyondEnd)));
        assert!(matches!(outcome.poll(waker), Poll::Ready(Some(Failure::Page(7, FaultError::BeyondEnd)))));
        assert!(matches!(outcome.poll(waker), Poll::Ready(None)));
    }
}
