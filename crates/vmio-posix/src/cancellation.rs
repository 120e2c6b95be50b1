//! pthread_cancel, kept out of vmio.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: c_int = 1;

/// While it lives, its thread is not cancelled: that unwinds the stack, which vmio's frames take no part in.
pub(crate) struct NotCancelled {
    before: c_int,
}

impl NotCancelled {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the pointer is that of a local variable.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
        NotCancelled { before }
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut unused = 0;
        // SAFETY: as above; the state is one that was in force.
        unsafe { pthread_setcancelstate(self.before, &mut unused) };
    }
}
