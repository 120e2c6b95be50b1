//! Waiting on a 32-bit word until another thread announces a change.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait as futex_wait, wake as futex_wake};

/// Sleeps while `word` is `expected`. Returns at a wake, at a signal, or at once if the word differs.
pub fn wait(word: &AtomicU32, expected: u32) {
    // Every failure (a change already, an interruption) means: look at the word again, which all callers do.
    let _ = futex_wait(word, Flags::PRIVATE, expected, None);
}

/// Like [`wait`], for at most `limit`.
pub fn wait_for(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let _ = futex_wait(word, Flags::PRIVATE, expected, Some(&limit));
}

/// Wakes every thread that waits on `word`.
pub fn wake_all(word: &AtomicU32) {
    let _ = futex_wake(word, Flags::PRIVATE, i32::MAX as u32);
}

/// Wakes one thread that waits on `word`.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex_wake(word, Flags::PRIVATE, 1);
}
