//! The ends of a program: what is in memory alone must reach the files first.

use std::ffi::{CStr, c_char, c_int};
use std::mem;
use std::os::fd::BorrowedFd;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::fs::CWD;
use rustix::io::Errno;

use super::{streams, told_number, told_status};
use crate::entry;
use crate::process::Process;
use crate::real;
use crate::split::{self, AllLeft};
use crate::unseen::{self, Named};

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = end;

/// The program's own handlers have run by now. Its other threads may still touch mapped memory, so that nothing is unmapped.
extern "C" fn end() {
    streams::end();
    finish_for_good();
}

/// Syncs, if the caller is the process that has files mapped, and not its child before exec. Also where a handler ends the
/// program in the middle of a call.
#[must_use = "other threads go on until the process has ended"]
fn finish(then: impl FnOnce(&Process)) -> Option<AllLeft> {
    // What other threads write from now on is the kernel's at once.
    let all_left = (split::is_on() && !entry::is_own_thread()).then(AllLeft::new);
    if all_left.is_some() {
        split::close_logs();
        entry::as_vmio(split::report);
    }
    let Some(process) = Process::current() else { return all_left };
    let _ = entry::enter::<()>(|| {
        if process.is_caller() {
            process.sync_all();
            then(process);
        }
        None
    });
    all_left
}

/// The process ends, and nothing of it is vmio's any more.
fn finish_for_good() {
    mem::forget(finish(Process::report));
}

/// Before a call that ends the program, but is made elsewhere.
pub(super) fn ending() {
    finish_for_good();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    finish_for_good();
    // SAFETY: by the caller.
    unsafe { real::_exit(status) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: by the caller.
    unsafe { _exit(status) }
}

// What the program has told at_quick_exit runs afterwards: stores of that are lost.
#[unsafe(no_mangle)]
unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    finish_for_good();
    // SAFETY: by the caller.
    unsafe { real::quick_exit(status) }
}

/// The status of an exec of a program that is refused; none if it may begin.
///
/// # Safety
/// The path is null or a string.
unsafe fn refused(path: *const c_char, named: impl FnOnce(&CStr) -> Named<'_>) -> Option<c_int> {
    // SAFETY: by the caller.
    unsafe { check(path, named) }.err().and_then(|error| told_status(Some(Err(error))))
}

/// # Safety
/// As of [`refused`].
unsafe fn check(path: *const c_char, named: impl FnOnce(&CStr) -> Named<'_>) -> Result<(), Errno> {
    if path.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller.
    unseen::check(named(unsafe { CStr::from_ptr(path) }))
}

/// By a descriptor of the program's: if it is none, that is the call's error.
fn by_descriptor(fd: c_int) -> Named<'static> {
    // SAFETY: the program has it open during its call.
    if fd < 0 { at_path(c"") } else { Named::Open(unsafe { BorrowedFd::borrow_raw(fd) }) }
}

/// execveat's way: by a path from a folder, or by a descriptor alone.
fn by_folder(folder: c_int, path: &CStr, flags: c_int) -> Named<'_> {
    if flags & libc::AT_EMPTY_PATH != 0 && path.is_empty() {
        return by_descriptor(folder);
    }
    // SAFETY: likewise.
    if folder < 0 { at_path(path) } else { Named::At(unsafe { BorrowedFd::borrow_raw(folder) }, path) }
}

/// By a path from the working directory.
fn at_path(path: &CStr) -> Named<'_> {
    Named::At(CWD, path)
}

fn in_path(name: &CStr) -> Named<'_> {
    Named::Searched(name)
}

/// Before one of the execs that are defined elsewhere, which cannot be refused: the process ends as if it could not become the program.
///
/// # Safety
/// The path is null or a string.
pub(super) unsafe extern "C" fn becoming(path: *const c_char) {
    // SAFETY: by the caller.
    unsafe { becoming_named(path, at_path) }
}

/// The same of one that looks in `PATH`.
///
/// # Safety
/// As of [`becoming`].
pub(super) unsafe extern "C" fn becoming_searched(file: *const c_char) {
    // SAFETY: by the caller.
    unsafe { becoming_named(file, in_path) }
}

/// # Safety
/// As of [`becoming`].
unsafe fn becoming_named(path: *const c_char, named: impl FnOnce(&CStr) -> Named<'_>) {
    // SAFETY: by the caller; a process may always end.
    unsafe {
        if check(path, named).is_err() {
            _exit(NOT_EXECUTABLE);
        }
    }
    finish_for_good();
}

/// The status of a shell for a program that it cannot run.
const NOT_EXECUTABLE: c_int = 126;

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    if let Some(status) = unsafe { refused(path, at_path) } {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: by the caller.
    if let Some(status) = unsafe { refused(path, at_path) } {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execv(path, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: by the caller.
    if let Some(status) = unsafe { refused(file, in_path) } {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execvp(file, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    if let Some(status) = unsafe { refused(file, in_path) } {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execvpe(file, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
    if let Some(status) = unseen::check(by_descriptor(fd)).err().and_then(|error| told_status(Some(Err(error)))) {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::fexecve(fd, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller.
    if let Some(status) = unsafe { refused(path, |path| by_folder(folder, path, flags)) } {
        return status;
    }
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execveat(folder, path, arguments, environment, flags) }
}

/// Another process is about to share the descriptors.
#[must_use = "it does so later"]
fn share() -> Option<AllLeft> {
    (split::is_on() && !entry::is_own_thread()).then(AllLeft::new)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    // SAFETY: by the caller.
    if let Some(error) = unsafe { check(path, at_path) }.err().and_then(|error| told_number(Some(Err(error)))) {
        return error;
    }
    let _all_left = share();
    // SAFETY: by the caller.
    unsafe { real::posix_spawn(process, path, actions, attributes, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    // SAFETY: by the caller.
    if let Some(error) = unsafe { check(file, in_path) }.err().and_then(|error| told_number(Some(Err(error)))) {
        return error;
    }
    let _all_left = share();
    // SAFETY: by the caller.
    unsafe { real::posix_spawnp(process, file, actions, attributes, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let _all_left = share();
    // SAFETY: by the caller.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let _all_left = share();
    // SAFETY: by the caller.
    streams::noticed(unsafe { real::popen(command, mode) })
}
