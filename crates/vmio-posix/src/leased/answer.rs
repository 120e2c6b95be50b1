//! The lease manager's answer to a request. A thread of the program's waits for it.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use rustix::io::Errno;

const OPEN: u32 = 0;
const GIVEN: u32 = 1;

/// The outcome of a request: a count or an error. It lies in the frame of the thread that waits.
pub(super) struct Answer {
    state: AtomicU32,
    outcome: AtomicI64,
}

impl Answer {
    pub(super) const fn new() -> Self {
        Answer { state: AtomicU32::new(OPEN), outcome: AtomicI64::new(0) }
    }

    /// Wakes the thread that waits. The answer may not exist any more when this returns.
    pub(super) fn give(&self, outcome: Result<usize, Errno>) {
        let outcome = outcome.map_or_else(|error| -i64::from(error.raw_os_error()), |count| count as i64);
        self.outcome.store(outcome, Ordering::Relaxed);
        let state = self.state.as_ptr();
        self.state.store(GIVEN, Ordering::Release);
        // SAFETY: the kernel uses the address as a number only. If the frame has gone, nobody waits there, or a waiter wakes once too
        // often.
        unsafe { libc::syscall(libc::SYS_futex, state, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }

    pub(super) fn wait(&self) -> Result<usize, Errno> {
        while self.state.load(Ordering::Acquire) == OPEN {
            let (state, operation) = (self.state.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
            // SAFETY: the word is in `self`; a null pointer means no timeout.
            unsafe { libc::syscall(libc::SYS_futex, state, operation, OPEN, std::ptr::null::<libc::timespec>()) };
        }
        match self.outcome.load(Ordering::Relaxed) {
            error @ ..0 => Err(Errno::from_raw_os_error(-error as i32)),
            count => Ok(count as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_what_the_other_gets() {
        for outcome in [Ok(0), Ok(usize::MAX >> 1), Err(Errno::NOSPC)] {
            let answer = Answer::new();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| answer.wait());
                answer.give(outcome);
                assert_eq!(waiting.join().unwrap(), outcome);
            });
        }
    }
}
