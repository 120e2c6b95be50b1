//! A file's attributes, and its length by its path.

use std::ffi::{c_char, c_int, c_void};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, off_t, size_t, timespec, timeval, uid_t, utimbuf};

use super::durably;
use crate::leased;
use crate::real;
use crate::synchronous::Target;

/// # Safety
/// The path is null or a C string.
unsafe fn at_or_itself(folder: c_int, path: *const c_char, flags: c_int) -> Option<Target> {
    // SAFETY: by the caller.
    unsafe {
        // Some calls take a null path for the descriptor itself.
        let is_empty = path.is_null() || (*path == 0 && flags & libc::AT_EMPTY_PATH != 0);
        match flags & AT_SYMLINK_NOFOLLOW {
            _ if is_empty => Target::of(folder),
            0 => Target::at(folder, path),
            _ => Target::at_itself(folder, path),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: *const c_char, len: off_t) -> c_int {
    leased::replay_before_changes();
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::truncate(path, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::chmod(path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::fchmod(fd, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [at_or_itself(folder, path, flags)] }, || unsafe { real::fchmodat(folder, path, mode, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::chown(path, user, group) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at_itself(AT_FDCWD, path)] }, || unsafe { real::lchown(path, user, group) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::fchown(fd, user, group) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchownat(folder: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [at_or_itself(folder, path, flags)] },
        || unsafe { real::fchownat(folder, path, user, group, flags) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::utime(path, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::utimes(path, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at_itself(AT_FDCWD, path)] }, || unsafe { real::lutimes(path, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::futimes(fd, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(folder, path)] }, || unsafe { real::futimesat(folder, path, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::futimens(fd, times) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::setxattr(path, name, value, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lsetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [Target::at_itself(AT_FDCWD, path)] },
        || unsafe { real::lsetxattr(path, name, value, len, flags) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsetxattr(
    fd: c_int,
    name: *const c_char,
    value: *const c_void,
    len: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::fsetxattr(fd, name, value, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at(AT_FDCWD, path)] }, || unsafe { real::removexattr(path, name) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::at_itself(AT_FDCWD, path)] }, || unsafe { real::lremovexattr(path, name) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| [Target::of(fd)], || unsafe { real::fremovexattr(fd, name) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimensat(folder: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [at_or_itself(folder, path, flags)] },
        || unsafe { real::utimensat(folder, path, times, flags) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: *const c_char, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { truncate(path, len) }
}
