//! Calls of the program's that take record locks, and closes of vmio's own descriptors, which would end such locks: never both at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// While vmio looks whether the program has locks, and closes descriptors.
const CLOSES: u32 = 1 << 31;

/// The number of lock calls under way, or [`CLOSES`].
pub(crate) struct LockCalls(AtomicU32);

/// Those of this process.
pub(crate) static LOCK_CALLS: LockCalls = LockCalls::new();

/// While it exists, vmio closes nothing.
pub(crate) struct LockCall<'a>(&'a LockCalls);

/// While it exists, the program takes no lock.
pub(crate) struct NoLockCalls<'a>(&'a LockCalls);

impl LockCalls {
    const fn new() -> Self {
        LockCalls(AtomicU32::new(0))
    }

    /// Begins a lock call, which may last for ever.
    pub(crate) fn begin(&self) -> LockCall<'_> {
        while self.0.fetch_add(1, Ordering::AcqRel) & CLOSES != 0 {
            // The thread that closes does not wait, and no handler interrupts it.
            self.0.fetch_sub(1, Ordering::AcqRel);
            thread::yield_now();
        }
        LockCall(self)
    }

    /// Keeps the program from taking locks; `None` if it is about to take one. Signals must be blocked.
    pub(crate) fn exclude(&self) -> Option<NoLockCalls<'_>> {
        self.0.compare_exchange(0, CLOSES, Ordering::AcqRel, Ordering::Relaxed).is_ok().then(|| NoLockCalls(self))
    }

    /// Forgets the calls of the parent's other threads, in a forked child.
    pub(crate) fn reset_in_child(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for LockCall<'_> {
    fn drop(&mut self) {
        // In a child that a handler has forked, the count begins anew.
        _ = self.0.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |calls| calls.checked_sub(1));
    }
}

impl Drop for NoLockCalls<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_and(!CLOSES, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nothing_is_closed_during_a_lock_call_and_none_begins_during_a_close() {
        let calls = LockCalls::new();
        let two = [calls.begin(), calls.begin()];
        assert!(calls.exclude().is_none());
        drop(two);
        let (closing, has_begun) = (calls.exclude().unwrap(), AtomicBool::new(false));
        assert!(calls.exclude().is_none());
        thread::scope(|scope| {
            scope.spawn(|| {
                let call = calls.begin();
                has_begun.store(true, Ordering::SeqCst);
                drop(call);
            });
            (0..1000).for_each(|_| thread::yield_now());
            assert!(!has_begun.load(Ordering::SeqCst));
            drop(closing);
        });
        assert!(has_begun.load(Ordering::SeqCst) && calls.exclude().is_some());
    }
}
