//! Keeping pthread_cancel(3) out of critical sections outside misses, in which the C library's calls would end the thread.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const DISABLE: c_int = 1;

/// While it exists, the calling thread is not cancelled: it would leave locks and page words as they are, for which others wait.
pub(crate) struct NotCancelled {
    before: c_int,
}

impl NotCancelled {
    pub(crate) fn new() -> NotCancelled {
        NotCancelled { before: set(DISABLE) }
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Sets the thread's state, and returns the one before.
fn set(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the C library writes the variable. The state is one of its two.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}
