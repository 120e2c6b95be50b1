//! Atomics for the lock-free parts, and sleeps on them: the standard ones with futexes, or loom's when it explores their
//! interleavings.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sleeps while the word says `expected`; may return early.
#[cfg(not(loom))]
#[inline]
pub fn sleep_on(word: &AtomicU32, expected: u32) {
    crate::futex::wait(word, expected);
}

/// Wakes all that sleep on the word.
#[cfg(not(loom))]
#[inline]
pub fn wake_all(word: &AtomicU32) {
    crate::futex::wake_all(word);
}

/// Under loom a waiter polls: loom explores whether another thread ends the wait.
#[cfg(loom)]
#[inline]
pub fn sleep_on(_word: &AtomicU32, _expected: u32) {
    loom::thread::yield_now();
}

/// Nothing: those that wait poll.
#[cfg(loom)]
#[inline]
pub fn wake_all(_word: &AtomicU32) {}

/// Orders the operations before it against those after it. Between SeqCst operations it does nothing.
#[cfg(not(loom))]
#[inline]
pub fn seq_cst_fence_for_loom() {}

/// Loom treats SeqCst as AcqRel, except in fences.
#[cfg(loom)]
#[inline]
pub fn seq_cst_fence_for_loom() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}
