//! Opening files.
//!
//! `open` and the related calls use the mode only with some flags. We always pass its register on.

use std::ffi::{c_char, c_int, c_long};

use libc::{AT_FDCWD, mode_t, open_how};
use rustix::io::Errno;

use super::{is_of_mode, returned, returned_status};
use crate::leased;
use crate::real;
use crate::sharing;
use crate::synchronous;

/// Opens a file for the program, by a function that takes the flags.
///
/// # Safety
/// The path is null or a C string.
unsafe fn opened(folder: c_int, path: *const c_char, flags: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    let attempt = |flags| match open(flags) {
        // SAFETY: the address of the thread's errno is always valid.
        -1 => Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() })),
        fd => Ok(fd),
    };
    // SAFETY: by the caller.
    let may_refuse = is_of_mode(0) && unsafe { sharing::may_refuse(folder, path, flags) };
    let open = |flags| {
        let outcome = if may_refuse {
            sharing::open(flags, attempt)
        } else if flags & libc::O_NONBLOCK != 0 && is_of_mode(0) {
            leased::retry_after_returning_leases(|| attempt(flags))
        } else {
            attempt(flags)
        };
        returned(Some(outcome), |fd| fd, -1).unwrap_or(-1)
    };
    if !synchronous::is_on() {
        return noticed(open(flags), false);
    }
    if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
        leased::replay_before_changes();
    }
    // SAFETY: by the caller.
    match unsafe { synchronous::open(folder, path, flags, open) } {
        Ok(opened) => noticed(opened.fd, opened.is_made_durable),
        Err(error) => returned_status(Some(Err(error))).unwrap_or(-1),
    }
}

fn noticed(fd: c_int, hides_dsync: bool) -> c_int {
    if is_of_mode(fd) {
        leased::opened(fd, hides_dsync);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { opened(AT_FDCWD, path, flags, |flags| real::open(path, flags, mode)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { open(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
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
    unsafe { opened(folder, path, flags, |flags| real::openat(folder, path, flags, mode)) }
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

/// openat2, for which the C library has no function. A `how` that is longer than the one known here goes to the kernel unchanged.
///
/// # Safety
/// As of the system call.
pub(super) unsafe fn openat2(folder: c_int, path: *const c_char, how: c_long, how_bytes: c_long) -> c_long {
    // SAFETY: by the caller.
    let open = |how| unsafe { real::syscall(libc::SYS_openat2, folder.into(), path as c_long, how, how_bytes, 0, 0) };
    if how == 0 || how_bytes as usize != size_of::<open_how>() {
        return noticed(open(how) as c_int, false).into();
    }
    // SAFETY: by the caller.
    let asked = unsafe { *(how as *const open_how) };
    let with = |flags: c_int| {
        let mut how = asked;
        // The kernel refuses unknown flags.
        how.flags = asked.flags >> 32 << 32 | u64::from(flags as u32);
        open((&raw const how) as c_long) as c_int
    };
    // SAFETY: by the caller.
    unsafe { opened(folder, path, asked.flags as c_int, with) }.into()
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
    let fixed = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: by the caller; the call changes the last name alone.
    unsafe {
        opened(AT_FDCWD, template, flags | fixed, |flags| {
            real::mkostemps(template, suffix, flags & !(libc::O_ACCMODE | fixed))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, suffix, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, suffix, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { mkostemps(template, suffix, 0) }
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
