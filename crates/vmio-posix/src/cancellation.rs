//! pthread_cancel, kept out of vmio.

use std::cell::Cell;
use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: c_int = 1;

thread_local! {
    /// The state that is to be put back when the thread leaves vmio.
    static BEFORE: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// While it lives, its thread is not cancelled: that unwinds the stack, which vmio's frames take no part in.
pub(crate) struct NotCancelled(());

impl NotCancelled {
    /// Of a thread that has none.
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the pointer is that of a local variable.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
        BEFORE.set(Some(before));
        NotCancelled(())
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        is_abandoned();
    }
}

/// The thread has left vmio, also by a jump past what would have ended this.
pub(crate) fn is_abandoned() {
    let mut unused = 0;
    if let Some(before) = BEFORE.take() {
        // SAFETY: as above; the state is one that was in force.
        unsafe { pthread_setcancelstate(before, &mut unused) };
    }
}
