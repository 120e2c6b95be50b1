//! The identity of the calling thread, and threads of the library's own.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::fork::OfProcess;
use crate::sys::signal::SignalsBlocked;

/// The shortest time slice that the scheduler grants.
const TIME_SLICE: Duration = Duration::from_micros(100);

/// A number that no other thread of the process has. Async-signal-safe, and makes no system call.
pub(crate) fn current() -> usize {
    // SAFETY: the call touches nothing but the thread's own descriptor.
    unsafe { libc::pthread_self() as usize }
}

/// Shortens the calling thread's time slice, so that it runs soon after it wakes even where all cores are busy. It gets
/// no more time than other threads, but in smaller parts (Linux 6.12; before, nothing changes).
pub(crate) fn shorten_time_slice() -> io::Result<()> {
    // SAFETY: all integers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes no more than `size` bytes of the structure, which is ours, and reads as many.
    let done = unsafe {
        match libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) {
            0 => {
                attributes.sched_runtime = TIME_SLICE.as_nanos() as u64;
                libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0)
            }
            failed => failed,
        }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A thread of the library's own. If the handle is dropped, the thread goes on by itself. A forked child does not have
/// it.
#[derive(Debug)]
pub(crate) struct OwnThread<Answer = ()>(OfProcess<JoinHandle<Answer>>);

impl<Answer> OwnThread<Answer> {
    /// Whether the thread has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.get().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the thread, and returns its answer or its panic. `None` in a forked child.
    pub(crate) fn join(self) -> Option<std::thread::Result<Answer>> {
        self.0.into_inner().map(JoinHandle::join)
    }
}

impl OwnThread {
    /// Waits for the end of the thread, and logs a panic under this name. Does nothing in a forked child.
    pub(crate) fn end(self, which: &'static str) {
        if self.join().is_some_and(|end| end.is_err()) {
            tracing::error!("{which} has panicked");
        }
    }
}

/// Starts a thread of the library's own. No signal handler of the program runs in it, not even before its first line.
/// The handler might wait for a page that this thread is to bring in.
pub(crate) fn spawn<Answer: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> Answer + Send + 'static,
) -> io::Result<OwnThread<Answer>> {
    // The thread inherits the signal mask of the thread that starts it.
    let _signals = SignalsBlocked::new();
    let handle = std::thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(OwnThread(OfProcess::new(handle)?))
}
