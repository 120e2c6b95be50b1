//! While another process gets at the descriptors, or this one is about to end, none of them is warm.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{descriptors, lease_manager};

/// How many of them there are.
static HELD: AtomicU32 = AtomicU32::new(0);

/// As long as there is one, all descriptions are Linux's: those that were warm have been left, and none becomes so.
pub(crate) struct AllLeft {
    /// Not by a child that has the memory of its parent until it is another program (vfork): it never gives it back.
    is_counted: bool,
}

impl AllLeft {
    pub(crate) fn new() -> Self {
        let is_counted = lease_manager::is_in_this_process();
        if is_counted {
            // Before: what the lease manager begins to warm up from here on it gives up again.
            HELD.fetch_add(1, Ordering::SeqCst);
        }
        descriptors::leave_all();
        AllLeft { is_counted }
    }
}

impl Drop for AllLeft {
    fn drop(&mut self) {
        if self.is_counted {
            // The other process may have what was opened since.
            descriptors::leave_all();
            HELD.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether nothing may become warm.
pub(super) fn is_held() -> bool {
    HELD.load(Ordering::SeqCst) != 0
}

/// A forked child has one thread, which holds none.
pub(super) fn begin_anew() {
    HELD.store(0, Ordering::SeqCst);
}
