//! A lock for the monitor and for fault handlers: it sleeps by a system call of its own, and needs nothing of the thread.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::raw;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;

/// A lock without data.
#[derive(Default)]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// A free one.
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock, sleeping until it is free.
    pub(crate) fn take(&self) -> Taken<'_> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
                self.call(libc::FUTEX_WAIT, AWAITED);
            }
        }
        Taken(self)
    }

    /// Frees the lock, whose [`Taken`] was forgotten.
    pub(crate) fn free(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            self.call(libc::FUTEX_WAKE, 1);
        }
    }

    fn call(&self, operation: i32, value: u32) {
        let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as u64;
        // SAFETY: futex(2) reads the word, which lives as long as the lock. Whatever it answers, callers look again.
        unsafe { raw::call(libc::SYS_futex as u64, [self.0.as_ptr() as u64, operation, u64::from(value), 0, 0, 0]) };
    }
}

/// Holds the lock until dropped.
pub(crate) struct Taken<'a>(&'a Lock);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_it_at_a_time() {
        struct Shared(Lock, std::cell::UnsafeCell<u32>);
        // SAFETY: the number is touched by whoever holds the lock.
        unsafe impl Sync for Shared {}
        let shared = Shared(Lock::default(), 0.into());
        let shared = &shared;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let _taken = shared.0.take();
                        // SAFETY: the lock is held.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        // SAFETY: the threads have ended.
        assert_eq!(unsafe { *shared.1.get() }, 20_000);
    }
}
