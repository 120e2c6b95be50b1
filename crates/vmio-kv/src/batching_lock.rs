//! A lock that many threads take again and again, each for a short time, where there may be more of them than processors.
//!
//! With a plain one each that lets go wakes another, who finds it taken again, or takes it and all that is in the other processor's cache: a
//! system call and a switch of threads for each time it is taken. Here nobody wakes anybody for it. Whoever has it takes it again and again; who has
//! waited in vain for some microseconds looks again after a sleep, one at a time, in the order in which they came.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// How often it is tried before a thread sleeps, and how long it waits in between: some microseconds in all, longer than a put takes.
const TRIES: usize = 8;
const SPINS: usize = 8;
/// How long the first of those who wait sleeps at first, and how often, twice as long each time: whoever looks keeps a processor from somebody,
/// who may be the one who has the lock. Then he is woken, and gets it within a millisecond.
const SLEEP: Duration = Duration::from_micros(50);
const SLEEPS: u32 = 5;

/// The lock, and what it protects.
#[derive(Default)]
pub(crate) struct BatchingLock<T> {
    of: Mutex<T>,
    /// Of those who wait one has it: he alone looks.
    first: Mutex<()>,
}

impl<T> BatchingLock<T> {
    pub(crate) fn new(of: T) -> Self {
        BatchingLock { of: Mutex::new(of), first: Mutex::new(()) }
    }

    /// Waits until nobody has it.
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
    fn one_thread_at_a_time_has_it_and_each_gets_it() {
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
