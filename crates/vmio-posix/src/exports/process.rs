//! The ends of a program: what is in memory alone must reach the files first.

use std::ffi::{c_char, c_int};
use std::mem;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::streams;
use crate::entry;
use crate::process::Process;
use crate::real;
use crate::split::{self, AllLeft};

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

/// Before one of the calls that end the program, but are defined elsewhere.
pub(super) extern "C" fn ending() {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execv(path, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
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
    let _all_left = finish(Process::report);
    // SAFETY: by the caller.
    unsafe { real::execvpe(file, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
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
    unsafe { real::popen(command, mode) }
}
