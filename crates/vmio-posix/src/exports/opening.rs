//! Opening files.
//!
//! `open` and its kin take a mode only with some flags: it is passed on as the register that it comes in.

use std::ffi::{c_char, c_int};

use libc::mode_t;

use super::{is_of_mode, told_status};
use crate::real;
use crate::split;
use crate::synchronous;

/// An open of the program's, by what takes its flags.
fn opened(flags: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    if !synchronous::is_on() {
        return noticed(open(flags), false);
    }
    match synchronous::open(flags, open) {
        Ok(opened) => noticed(opened.fd, opened.is_made_durable),
        Err(error) => told_status(Some(Err(error))).unwrap_or(-1),
    }
}

fn noticed(fd: c_int, hides_dsync: bool) -> c_int {
    if is_of_mode(fd) {
        split::opened(fd, hides_dsync);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    opened(flags, |flags| unsafe { real::open(path, flags, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    opened(flags, |flags| unsafe { real::openat(folder, path, flags, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { openat(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { openat(folder, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { openat(folder, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat64(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { creat(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    opened(flags | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, |flags| unsafe {
        real::mkostemps(template, suffix, flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp(template: *mut c_char) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, 0, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, 0, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp64(template: *mut c_char) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, 0, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, 0, flags) }
}
