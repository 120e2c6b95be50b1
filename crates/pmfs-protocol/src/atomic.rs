//! Atomics for the words that both sides change: the standard ones, or loom's when it explores their interleavings.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// How often a thread asks for a turn that another one has.
#[cfg(not(loom))]
pub(crate) const ATTEMPTS_MAX: u32 = 1000;
/// Loom explores each attempt.
#[cfg(loom)]
pub(crate) const ATTEMPTS_MAX: u32 = 1;

/// How often a thread rests that waits for the end of a turn, a millisecond each time.
#[cfg(not(loom))]
pub(crate) const RESTS_MAX: u32 = 20;
/// Loom would have the other thread go on until it ends.
#[cfg(loom)]
pub(crate) const RESTS_MAX: u32 = 0;

/// Lets another thread go on.
pub(crate) fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

/// Rests until another thread may have ended its turn.
pub(crate) fn rest() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::sleep(std::time::Duration::from_millis(1));
}
