//! No description is leased while another process may get the descriptors, or while this process is about to end.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{descriptors, mode};

/// The number of [`AllUnserved`] that exist.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// While one exists the kernel serves all descriptions: leases have been returned, and none is taken.
pub(crate) struct AllUnserved {
    /// Not in a child by vfork, which shares its parent's memory until it runs another program: it never drops the value.
    is_counted: bool,
}

impl AllUnserved {
    pub(crate) fn new() -> Self {
        let is_counted = mode::is_in_this_process();
        if is_counted {
            // First, so that a lease that the lease manager begins to take from here on is given up.
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
        descriptors::stop_serving_all();
        AllUnserved { is_counted }
    }
}

impl Drop for AllUnserved {
    fn drop(&mut self) {
        if self.is_counted {
            // The other process may have descriptors that were opened since.
            descriptors::stop_serving_all();
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether no lease may be taken.
pub(super) fn are_all() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

/// A forked child has one thread, which holds none.
pub(super) fn reset_in_child() {
    COUNT.store(0, Ordering::SeqCst);
}
