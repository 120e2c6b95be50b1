//! The lock of what the maps of this process show.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::gettid;

/// Held while a part of any map gets something else to show. A thread that forks may hold it: the child then inherits no extent.
static SHOWING: Mutex<()> = Mutex::new(());
/// The thread that keeps all maps as they are; 0 for none.
static HOLDING: AtomicI32 = AtomicI32::new(0);

/// While it exists, the thread may let a part show something else.
pub(super) struct Showing(#[allow(dead_code, reason = "it unlocks")] Option<MutexGuard<'static, ()>>);

/// While it exists, no other thread lets a map show anything else.
pub(crate) struct HeldStill(#[allow(dead_code, reason = "it unlocks")] MutexGuard<'static, ()>);

fn lock() -> MutexGuard<'static, ()> {
    SHOWING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn this_thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Waits for the lock, unless this very thread keeps all maps as they are: a fork handler of the program's touches a part then. The part will be left out
/// of the child before the thread forks.
pub(super) fn showing() -> Showing {
    let held_by = HOLDING.load(Ordering::Relaxed);
    Showing((held_by == 0 || held_by != this_thread()).then(lock))
}

/// Keeps all maps as they are, but for touches by this thread.
pub(crate) fn hold_still() -> HeldStill {
    let held = HeldStill(lock());
    HOLDING.store(this_thread(), Ordering::Relaxed);
    held
}

impl Drop for HeldStill {
    fn drop(&mut self) {
        HOLDING.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_holds_all_still_does_not_wait_for_itself() {
        let held = hold_still();
        drop((showing(), showing()));
        let is_free = || std::thread::spawn(|| SHOWING.try_lock().is_ok()).join();
        assert_eq!(is_free().ok(), Some(false));
        drop(held);
        let shown = showing();
        assert_eq!((HOLDING.load(Ordering::Relaxed), shown.0.is_some()), (0, true));
    }
}
