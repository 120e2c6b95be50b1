//! Duplicating descriptors, and closing many at once.

use std::ffi::{c_int, c_uint};

use super::{is_of_mode, returned_status};
use crate::entry;
use crate::errno::Errno;
use crate::leased;
use crate::own_descriptors;
use crate::real;

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: by the caller.
    let duplicate = unsafe { real::dup(fd) };
    if is_of_mode(duplicate) {
        leased::duplicated(fd, duplicate);
    }
    duplicate
}

/// Calls dup2 or dup3, which replace a descriptor unless they fail.
fn replaced(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if fd != to && own_descriptors::contains(to) && !entry::is_inside() {
        // vmio reads or writes by this descriptor: the new file would get bytes that are meant for vmio's.
        return returned_status(Some(Err(Errno::BADF))).unwrap_or(-1);
    }
    let is_of_mode = is_of_mode(to) && fd != to;
    if is_of_mode {
        leased::replacing(to);
    }
    let duplicate = call();
    if is_of_mode && duplicate >= 0 {
        leased::closed(to);
        leased::duplicated(fd, duplicate);
    }
    duplicate
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: by the caller.
    replaced(fd, to, || unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { dup2(fd, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    replaced(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let unshare = libc::CLOSE_RANGE_UNSHARE as c_int;
    let others = flags & !unshare;
    // No descriptor has this number: the kernel says whether it has the call, and these flags.
    // SAFETY: the call does not access memory.
    if first > last || unsafe { real::close_range(c_uint::MAX, c_uint::MAX, others) } != 0 {
        // SAFETY: by the caller.
        return unsafe { real::close_range(first, last, flags) };
    }
    // SAFETY: the call does not access memory.
    if flags & unshare != 0 && unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return -1;
    }
    if is_of_mode(0) && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        if flags & unshare != 0 {
            // Other threads keep their descriptors.
            leased::stop_serving_range(first..=last);
        } else {
            leased::closed_range(first..=last);
        }
    }
    close_around(first, last, others)
}

/// Closes the program's descriptors in a range, and not vmio's own.
fn close_around(mut first: c_uint, last: c_uint, flags: c_int) -> c_int {
    while let Some(own) = own_descriptors::first_in(first, last) {
        if own > first {
            // SAFETY: by the caller; the range leaves out vmio's own descriptors.
            let status = unsafe { real::close_range(first, own - 1, flags) };
            if status != 0 {
                return status;
            }
        }
        first = own + 1;
    }
    // SAFETY: by the caller.
    if first <= last { unsafe { real::close_range(first, last, flags) } } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    if is_of_mode(0) {
        leased::closed_range(first.max(0) as c_uint..=c_uint::MAX);
    }
    close_around(first.max(0) as c_uint, c_uint::MAX, 0);
}
