//! Keeps pthread_cancel out of vmio.

use std::cell::Cell;
use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: c_int = 1;

thread_local! {
    /// The state to restore when the thread leaves vmio.
    static BEFORE: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// While it exists, its thread is not cancelled: cancellation unwinds the stack, which vmio's frames do not support.
pub(crate) struct NotCancelled(());

impl NotCancelled {
    /// Turns cancellation off for a thread that has no such value yet.
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

/// The thread has left vmio, perhaps by a jump past the drop of this.
pub(crate) fn is_abandoned() {
    let mut unused = 0;
    if let Some(before) = BEFORE.take() {
        // SAFETY: the pointer is that of a local variable, and the state is one that was in force.
        unsafe { pthread_setcancelstate(before, &mut unused) };
    }
}
