//! Which thread calls.

/// A number that no other thread of the process has. Async-signal-safe, and no system call.
pub(crate) fn current() -> usize {
    // SAFETY: it touches nothing but the thread's own descriptor.
    unsafe { libc::pthread_self() as usize }
}
