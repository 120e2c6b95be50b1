//! The atomics that the lock-free parts use, and sleeping on them: the standard ones with futexes, or loom's when their
//! interleavings are explored.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sleeps while the word says `expected`; may return early.
#[cfg(not(loom))]
pub(crate) fn sleep_on(word: &AtomicU32, expected: u32) {
    crate::sys::futex::wait(word, expected);
}

/// Wakes all that sleep on the word.
#[cfg(not(loom))]
pub(crate) fn wake_all(word: &AtomicU32) {
    crate::sys::futex::wake_all(word);
}

// Under loom a waiter polls: what is explored is that somebody makes its condition false.
#[cfg(loom)]
pub(crate) fn sleep_on(_word: &AtomicU32, _expected: u32) {
    loom::thread::yield_now();
}

#[cfg(loom)]
pub(crate) fn wake_all(_word: &AtomicU32) {}

/// Orders what comes before it against what comes after it. Between operations that are SeqCst it does nothing.
#[cfg(not(loom))]
pub(crate) fn between_seq_cst() {}

// Loom takes SeqCst for AcqRel, but for fences.
#[cfg(loom)]
pub(crate) fn between_seq_cst() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}
