//! SIGBUS, which copies from and to mapped files may come upon: the program's own handler is called for what is none of theirs.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{sigaction as Action, sighandler_t, sigset_t};
use vmio::sigbus_action;

use crate::entry;
use crate::real;
use crate::split;

/// Whether vmio may have a handler of the signal.
fn is_shared(signal: c_int) -> bool {
    signal == libc::SIGBUS && split::is_on() && !entry::is_inside()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    if is_shared(signal) {
        // SAFETY: by the caller it is null or an action.
        let action = unsafe { action.as_ref() }.copied();
        let shared = entry::enter(|| sigbus_action(action).map(Ok));
        if let Some(Ok(was)) = shared {
            if !before.is_null() {
                // SAFETY: by the caller there is room for one.
                unsafe { before.write(was) };
            }
            return 0;
        }
    }
    // SAFETY: by the caller.
    unsafe { real::sigaction(signal, action, before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::signal(signal, handler) };
    }
    // SAFETY: zeros are valid: no flags, an empty set.
    let (mut action, mut before) =
        unsafe { (MaybeUninit::<Action>::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both are ours.
    if unsafe { sigaction(signal, &raw const action, &raw mut before) } == 0 {
        before.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}

/// A mask without SIGBUS, which kills who blocks it and comes upon one.
///
/// # Safety
/// `set` is null or a set.
unsafe fn unblocked(how: c_int, set: *const sigset_t) -> Option<sigset_t> {
    if !split::is_on() || entry::is_inside() || set.is_null() || how == libc::SIG_UNBLOCK {
        return None;
    }
    // SAFETY: by the caller; the copy is ours.
    unsafe {
        let mut set = *set;
        libc::sigdelset(&raw mut set, libc::SIGBUS);
        Some(set)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: by the caller.
    let ours = unsafe { unblocked(how, set) };
    // SAFETY: by the caller.
    unsafe { real::sigprocmask(how, ours.as_ref().map_or(set, ptr::from_ref), before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: by the caller.
    let ours = unsafe { unblocked(how, set) };
    // SAFETY: by the caller.
    unsafe { real::pthread_sigmask(how, ours.as_ref().map_or(set, ptr::from_ref), before) }
}
