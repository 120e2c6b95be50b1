//! Opens of files that another process has a lease of: they wait for it, or fail with `--when-shared refuse`.
//!
//! An open with O_NONBLOCK does not wait for a lease (EWOULDBLOCK). For a regular file the flag changes nothing else.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::BorrowedFd;

use libc::{AT_FDCWD, O_NONBLOCK, O_PATH};
use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::Errno;

use crate::entry;
use crate::leased;
use crate::settings::Settings;
use crate::synchronous::Before;
use crate::unshared_fd_thread;

/// Whether an open with these flags must fail where it would wait.
///
/// # Safety
/// The path is null or a C string.
pub(crate) unsafe fn may_refuse(folder: c_int, path: *const c_char, flags: c_int) -> bool {
    if !Settings::refuse_shared() || flags & (O_NONBLOCK | O_PATH) != 0 {
        return false;
    }
    // SAFETY: by the caller.
    let before = entry::as_vmio(|| unsafe { Before::at(folder, path, OFlags::from_bits_retain(flags as u32)) });
    before.is_under && !before.is_special
}

/// Makes a call that opens a regular file with flags, without waiting: EBUSY if it would have to wait.
pub(crate) fn open(flags: c_int, call: impl Fn(c_int) -> Result<c_int, Errno>) -> Result<c_int, Errno> {
    let fd = leased::retry_after_returning_leases(|| call(flags | O_NONBLOCK)).map_err(|error| match error {
        Errno::WOULDBLOCK => Errno::BUSY,
        other => other,
    })?;
    // SAFETY: it was just opened.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    // The program has not asked for O_NONBLOCK.
    let _ = entry::as_vmio(|| fcntl_setfl(opened, fcntl_getfl(opened)? - OFlags::NONBLOCK));
    Ok(fd)
}

/// Whether the C library, which opens streams by itself, would wait for a lease.
///
/// # Safety
/// Both are null or C strings.
pub(crate) unsafe fn refuses_stream(path: *const c_char, mode: *const c_char) -> bool {
    if path.is_null() || mode.is_null() {
        return false;
    }
    // SAFETY: by the caller.
    let (name, mode) = unsafe { (CStr::from_ptr(path), CStr::from_ptr(mode).to_bytes()) };
    // A character set may follow a comma.
    let access = match mode.split(|letter| *letter == b',').next() {
        Some(letters) if letters.contains(&b'+') => OFlags::RDWR,
        Some([b'r', ..]) => OFlags::RDONLY,
        _ => OFlags::WRONLY,
    };
    // SAFETY: by the caller.
    if !unsafe { may_refuse(AT_FDCWD, path, access.bits() as c_int) } {
        return false;
    }
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let probe = || {
        entry::as_vmio(|| {
            unshared_fd_thread::run(|| openat(CWD, name, flags, Mode::empty()).map(drop)).unwrap_or(Ok(()))
        })
    };
    leased::retry_after_returning_leases(probe) == Err(Errno::WOULDBLOCK)
}
