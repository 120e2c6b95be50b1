//! Keeps all descriptions without a lease while another process may get the descriptors, or while this process is about to end.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{descriptors, mode};

/// The number of [`AllUnserved`] that exist.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// While one exists Linux serves all descriptions: vmio has returned their leases, and takes none.
pub(crate) struct AllUnserved {
    /// False in a child by vfork, which shares its parent's memory until it runs another program: it never drops the value.
    is_counted: bool,
}

impl AllUnserved {
    pub(crate) fn new() -> Self {
        let is_counted = mode::is_in_this_process();
        if is_counted {
            // First, so that the lease manager gives up any lease that it begins to take from here on.
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
        descriptors::stop_serving_all();
        AllUnserved { is_counted }
    }
}

impl Drop for AllUnserved {
    fn drop(&mut self) {
        if self.is_counted {
            // The other process may have descriptors opened since.
            descriptors::stop_serving_all();
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether no lease may be taken.
pub(super) fn are_all() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

/// Resets the count in a forked child: its one thread has no such value.
pub(super) fn reset_in_child() {
    COUNT.store(0, Ordering::SeqCst);
}
