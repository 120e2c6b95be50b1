//! Which thread calls, and threads of the library's own.

use std::io;
use std::thread::JoinHandle;

use crate::sys::signal::SignalsBlocked;

/// A number that no other thread of the process has. Async-signal-safe, and no system call.
pub(crate) fn current() -> usize {
    // SAFETY: it touches nothing but the thread's own descriptor.
    unsafe { libc::pthread_self() as usize }
}

/// Starts a thread of the library's own, in which no signal handler of the program runs, not even before its first line: the handler
/// might wait for a page that this thread is to bring in.
pub(crate) fn spawn<Answer: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> Answer + Send + 'static,
) -> io::Result<JoinHandle<Answer>> {
    // It has the mask of whoever starts it.
    let _signals = SignalsBlocked::new();
    std::thread::Builder::new().name(name.into()).spawn(body)
}
