//! A lock for many threads that each take it often and for a short time, where there may be more threads than processors.
//!
//! A plain lock wakes a waiter at each release. The waiter finds the lock taken again, or takes it and pulls its data out of the other
//! processor's cache: a system call and a context switch each time. Here a release wakes no one, so that one thread takes the lock many
//! times in a row. A waiter spins for some microseconds, and then polls between sleeps. Waiters poll one at a time, in the order of their
//! arrival.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// How often a thread tries the lock before it sleeps, and how long it spins between: some microseconds in all, longer than a put takes.
const TRIES: usize = 8;
const SPINS: usize = 8;
/// How long the first waiter sleeps at first, and how often; each sleep is twice as long as the one before. A waiter that polls takes a
/// processor that the lock's owner may need. So after these sleeps it waits to be woken, and gets the lock within a millisecond.
const SLEEP: Duration = Duration::from_micros(50);
const SLEEPS: u32 = 5;

/// The lock, and what it protects.
#[derive(Default)]
pub(crate) struct BatchingLock<T> {
    of: Mutex<T>,
    /// The first waiter has it, and alone polls.
    first: Mutex<()>,
}

impl<T> BatchingLock<T> {
    pub(crate) fn new(of: T) -> Self {
        BatchingLock { of: Mutex::new(of), first: Mutex::new(()) }
    }

    /// Waits until no other thread has the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(guard) = self.try_some() {
            return guard;
        }
        let first = self.first.lock();
        let guard = self.lock_as_first();
        MutexGuard::unlock_fair(first);
        guard
    }

    fn lock_as_first(&self) -> MutexGuard<'_, T> {
        for sleeps in 0..SLEEPS {
            if let Some(guard) = self.try_some() {
                return guard;
            }
            std::thread::sleep(SLEEP * (1 << sleeps));
        }
        self.of.lock()
    }

    fn try_some(&self) -> Option<MutexGuard<'_, T>> {
        for _ in 0..TRIES {
            if let Some(guard) = self.of.try_lock() {
                return Some(guard);
            }
            (0..SPINS).for_each(|_| std::hint::spin_loop());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_lock_and_each_gets_it() {
        let lock = BatchingLock::new((0_u64, false));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut guard = lock.lock();
                        assert!(!std::mem::replace(&mut guard.1, true));
                        guard.0 += 1;
                        guard.1 = false;
                    }
                });
            }
        });
        assert_eq!(lock.lock().0, 80_000);
    }
}
