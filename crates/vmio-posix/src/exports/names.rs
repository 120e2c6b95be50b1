//! Creating, renaming and removing names.

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_FDCWD, dev_t, mode_t};

use super::{durably, returned};
use crate::real;
use crate::synchronous::{self, Target};

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::mkdir(path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(folder, path)] }, || unsafe { real::mkdirat(folder, path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::rmdir(path) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::unlink(path) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(folder, path)] }, || unsafe { real::unlinkat(folder, path, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::remove(path) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [Target::folder_of(AT_FDCWD, to), Target::folder_of(AT_FDCWD, from)] },
        || unsafe { real::rename(from, to) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(from_folder: c_int, from: *const c_char, to_folder: c_int, to: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [Target::folder_of(to_folder, to), Target::folder_of(from_folder, from)] },
        || unsafe { real::renameat(from_folder, from, to_folder, to) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [Target::folder_of(to_folder, to), Target::folder_of(from_folder, from)] },
        || unsafe { real::renameat2(from_folder, from, to_folder, to, flags) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, to)] }, || unsafe { real::link(from, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller.
    durably(
        || unsafe { [Target::folder_of(to_folder, to)] },
        || unsafe { real::linkat(from_folder, from, to_folder, to, flags) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlink(content: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::symlink(content, path) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlinkat(content: *const c_char, folder: c_int, path: *const c_char) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(folder, path)] }, || unsafe { real::symlinkat(content, folder, path) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::mknod(path, mode, device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mknodat(folder: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(folder, path)] }, || unsafe { real::mknodat(folder, path, mode, device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(AT_FDCWD, path)] }, || unsafe { real::mkfifo(path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifoat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    durably(|| unsafe { [Target::folder_of(folder, path)] }, || unsafe { real::mkfifoat(folder, path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: by the caller.
    let make = || unsafe { real::mkdtemp(template) };
    if !synchronous::is_on() {
        return make();
    }
    // SAFETY: by the caller. The call changes only the last name of the path.
    let targets = || unsafe { [Target::folder_of(AT_FDCWD, template)] };
    let made = synchronous::make_durable(targets, || Some(make()).filter(|path| !path.is_null()));
    returned(made, |path| path, std::ptr::null_mut()).unwrap_or(std::ptr::null_mut())
}
