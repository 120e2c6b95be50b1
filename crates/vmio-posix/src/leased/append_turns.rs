//! Appends that take no lock, and writes that need the end of the file to stay where it is.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Added once for each write that excludes appends.
const EXCLUDED: u64 = 1 << 32;
/// How long to wait for an append that is under way. A signal handler may have interrupted it, and may wait for this thread.
const ENDED_WITHIN: Duration = Duration::from_millis(20);

thread_local! {
    /// The turns of the file to which the thread is in the middle of an append, which a signal handler has interrupted if it asks; else null. Constant, so
    /// that a handler can look.
    static APPENDS: Cell<*const AppendTurns> = const { Cell::new(ptr::null()) };
}

/// How many threads append to a file, and how many keep others from that.
pub(super) struct AppendTurns(AtomicU64);

/// While it exists, nobody appends.
pub(super) struct WithoutAppends<'a>(&'a AppendTurns);

impl AppendTurns {
    pub(super) const fn new() -> Self {
        AppendTurns(AtomicU64::new(0))
    }

    /// Appends; false if that is excluded now, or by a handler that has interrupted an append to the file.
    pub(super) fn append(&self, append: impl FnOnce() -> bool) -> bool {
        if self.is_interrupted() {
            return false;
        }
        let before = APPENDS.replace(self);
        let is_free = self.0.fetch_add(1, Ordering::AcqRel) < EXCLUDED;
        let is_appended = is_free && append();
        self.0.fetch_sub(1, Ordering::AcqRel);
        APPENDS.set(before);
        is_appended
    }

    /// Whether the thread has interrupted its own append.
    fn is_interrupted(&self) -> bool {
        ptr::eq(APPENDS.get(), self) && !self.0.load(Ordering::Relaxed).is_multiple_of(EXCLUDED)
    }

    /// Waits for appends under way, and keeps others from beginning. Nothing if one does not end.
    pub(super) fn exclude(&self) -> Option<WithoutAppends<'_>> {
        if self.is_interrupted() {
            return None;
        }
        self.0.fetch_add(EXCLUDED, Ordering::AcqRel);
        let (excluded, began) = (WithoutAppends(self), Instant::now());
        while !self.0.load(Ordering::Acquire).is_multiple_of(EXCLUDED) {
            if began.elapsed() > ENDED_WITHIN {
                return None;
            }
            thread::yield_now();
        }
        Some(excluded)
    }
}

impl Drop for WithoutAppends<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(EXCLUDED, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nobody_appends_while_that_is_excluded_and_a_waiter_gives_up() {
        let turns = AppendTurns::new();
        assert!(turns.append(|| true) && !turns.append(|| false));
        let excluded = turns.exclude().unwrap();
        let second = turns.exclude().unwrap();
        drop(excluded);
        assert!(!turns.append(|| panic!("excluded")));
        drop(second);
        // As in a handler that interrupts an append.
        assert!(turns.append(|| turns.exclude().is_none()));
        assert!(turns.append(|| true));
    }
}
