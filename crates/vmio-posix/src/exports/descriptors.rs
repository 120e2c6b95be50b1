//! Duplicates of descriptors, and many of them closed at once.

use std::ffi::{c_int, c_uint};

use super::is_of_mode;
use crate::real;
use crate::split;

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: by the caller.
    let duplicate = unsafe { real::dup(fd) };
    if is_of_mode(duplicate) {
        split::duplicated(fd, duplicate);
    }
    duplicate
}

/// A descriptor is about to become a duplicate of another, which closes it.
fn replaced(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let is_of_mode = is_of_mode(to) && fd != to;
    if is_of_mode {
        split::closed(to);
    }
    let duplicate = call();
    if is_of_mode && duplicate >= 0 {
        split::duplicated(fd, duplicate);
    }
    duplicate
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: by the caller.
    replaced(fd, to, || unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    replaced(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if is_of_mode(0) && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last {
        split::closed_range(first..=last);
    }
    // SAFETY: by the caller.
    unsafe { real::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    if is_of_mode(0) {
        split::closed_range(first.max(0) as c_uint..=c_uint::MAX);
    }
    // SAFETY: by the caller.
    unsafe { real::closefrom(first) }
}
