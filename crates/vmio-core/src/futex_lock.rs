//! A lock of four bytes. It may lie in zeroed memory, and another thread than the owner may release it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
const CONTENDED: u32 = 2;

/// A lock without data. All zeros is unlocked.
#[derive(Default)]
pub struct FutexLock(AtomicU32);

impl FutexLock {
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_acquire(&self) -> bool {
        self.0.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, and waits for it if need be.
    #[inline]
    pub fn acquire(&self) {
        if self.try_acquire() {
            return;
        }
        while self.0.swap(CONTENDED, Ordering::Acquire) != UNLOCKED {
            futex::wait(&self.0, CONTENDED);
        }
    }

    /// Releases the lock, by its owner or on behalf of its owner.
    #[inline]
    pub fn release(&self) {
        if self.0.swap(UNLOCKED, Ordering::Release) == CONTENDED {
            futex::wake_one(&self.0);
        }
    }
}
