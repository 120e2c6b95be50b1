//! The end of a process: stores must reach the files first.

use std::ffi::{CStr, c_char, c_int};
use std::mem;
use std::os::fd::BorrowedFd;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::process::getpid;

use super::{returned_status, streams};
use crate::entry;
use crate::leased::{self, AllUnserved};
use crate::messages;
use crate::process::Process;
use crate::real;
use crate::uncovered_programs::{self, Examined, Named, environment};

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = end;

/// The program's atexit handlers have run by now. Its other threads may still touch mapped memory, so nothing is unmapped.
extern "C" fn end() {
    streams::end();
    finish_for_good();
}

/// When a process prints its report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reports {
    Now,
    Later,
}

/// Writes all stores, if the caller is the process that has files mapped and not its child before exec. The call may come from a signal
/// handler that ends the program in the middle of another call.
#[must_use = "other threads go on until the process has ended"]
fn finish(reports: Reports) -> Option<AllUnserved> {
    // From now on writes of other threads go to the kernel at once.
    let all_unserved = (leased::is_on() && !entry::is_own_thread()).then(AllUnserved::new);
    if all_unserved.is_some() {
        leased::close_logs();
        if reports == Reports::Now {
            entry::as_vmio(leased::report);
        }
    }
    let Some(process) = Process::current() else { return all_unserved };
    let _ = entry::enter::<()>(|| {
        if process.is_caller() {
            process.sync_all();
            if reports == Reports::Now {
                process.report();
            }
        }
        None
    });
    all_unserved
}

/// The process ends: vmio serves nothing any more.
fn finish_for_good() {
    mem::forget(finish(Reports::Now));
}

/// Ends vmio's service, before a call from `system_calls` that ends the program.
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

/// The number of /dev/null.
const NULL_DEVICE: libc::dev_t = libc::makedev(1, 3);

// The C library's function ends the parent without calling `_exit` by its name.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keeps_folder: c_int, keeps_streams: c_int) -> c_int {
    // SAFETY: these are the calls that the program makes by this one; the path is a string.
    unsafe {
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => _exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if keeps_folder == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if keeps_streams != 0 {
            return 0;
        }
        messages::give_up();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        if null == -1 {
            return -1;
        }
        let mut about = mem::zeroed::<libc::stat>();
        if libc::fstat(null, &raw mut about) != 0
            || about.st_mode & libc::S_IFMT != libc::S_IFCHR
            || about.st_rdev != NULL_DEVICE
        {
            libc::close(null);
            return returned_status(Some(Err(Errno::NODEV))).unwrap_or(-1);
        }
        (0..=2).for_each(|stream| _ = libc::dup2(null, stream));
        if null > 2 {
            libc::close(null);
        }
        0
    }
}

// Handlers of at_quick_exit run afterwards: their stores are lost.
#[unsafe(no_mangle)]
unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    finish_for_good();
    // SAFETY: by the caller.
    unsafe { real::quick_exit(status) }
}

/// Names a program by a descriptor. If the descriptor is not open, the C library's call fails anyway.
fn by_descriptor(fd: c_int) -> Named<'static> {
    // SAFETY: the program has it open during its call.
    if fd < 0 { at_path(c"") } else { Named::Open(unsafe { BorrowedFd::borrow_raw(fd) }) }
}

/// Names a program as execveat does: by a path from a folder, or by a descriptor.
fn by_folder(folder: c_int, path: &CStr, flags: c_int) -> Named<'_> {
    if flags & libc::AT_EMPTY_PATH != 0 && path.is_empty() {
        return by_descriptor(folder);
    }
    // SAFETY: the program has it open during its call.
    if folder < 0 { at_path(path) } else { Named::At(unsafe { BorrowedFd::borrow_raw(folder) }, path) }
}

/// Names a program by a path from the working directory; `None` if the path is null.
///
/// # Safety
/// The path is null or a C string that outlives the returned value.
unsafe fn at<'a>(path: *const c_char) -> Option<Named<'a>> {
    // SAFETY: by the caller.
    (!path.is_null()).then(|| at_path(unsafe { CStr::from_ptr(path) }))
}

/// Names a program that exec looks up in `PATH`.
///
/// # Safety
/// As of [`at`].
unsafe fn in_path<'a>(file: *const c_char) -> Option<Named<'a>> {
    // SAFETY: by the caller.
    (!file.is_null()).then(|| Named::Searched(unsafe { CStr::from_ptr(file) }))
}

fn at_path(path: &CStr) -> Named<'_> {
    Named::At(CWD, path)
}

/// Examines a program before it starts. If the call names none, the C library's call fails anyway.
///
/// # Safety
/// The environment is null or a list of C strings that ends with null.
unsafe fn examine(named: Option<Named<'_>>, environment: *const *const c_char) -> Result<Examined, Errno> {
    let none = Examined { is_there: false, why: None };
    // SAFETY: by the caller.
    named.map_or(Ok(none), |named| unsafe { uncovered_programs::check(named, environment) })
}

/// Makes the process run another program.
///
/// # Safety
/// As of [`examine`].
unsafe fn become_program(
    named: Option<Named<'_>>,
    environment: *const *const c_char,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: by the caller.
    let looked = match unsafe { examine(named, environment) } {
        Ok(looked) => looked,
        Err(error) => return returned_status(Some(Err(error))).unwrap_or(-1),
    };
    let _all_unserved = report_before_exec(named, looked);
    let status = call();
    // The exec has failed: the process goes on, and reports again at its end.
    leased::exec_failed();
    if let Some(process) = Process::current().filter(|process| process.is_caller()) {
        process.exec_failed();
    }
    status
}

/// Reports before an exec. Without an executable program the process does not report yet.
fn report_before_exec(named: Option<Named<'_>>, looked: Examined) -> Option<AllUnserved> {
    if !looked.is_there {
        return finish(Reports::Later);
    }
    if let Some(named) = named {
        uncovered_programs::report(named, looked, getpid().as_raw_nonzero().get());
    }
    finish(Reports::Now)
}

/// Reports before an exec that another function makes, and that this one cannot fail. If `--strict-coverage` refuses the program, this ends
/// the process, as if the exec had failed.
///
/// # Safety
/// The path is null or a string.
pub(super) unsafe extern "C" fn becoming(path: *const c_char) {
    // SAFETY: by the caller.
    unsafe { becoming_named(at(path), environment()) }
}

/// The same for an exec that looks in `PATH`.
///
/// # Safety
/// As of [`becoming`].
pub(super) unsafe extern "C" fn becoming_searched(file: *const c_char) {
    // SAFETY: by the caller.
    unsafe { becoming_named(in_path(file), environment()) }
}

/// The same for an exec that gets an environment.
///
/// # Safety
/// As of [`becoming`].
pub(super) unsafe fn becoming_with(path: *const c_char, environment: *const *const c_char) {
    // SAFETY: by the caller.
    unsafe { becoming_named(at(path), environment) }
}

/// # Safety
/// As of [`examine`].
unsafe fn becoming_named(named: Option<Named<'_>>, environment: *const *const c_char) {
    // SAFETY: by the caller.
    let Ok(looked) = (unsafe { examine(named, environment) }) else {
        // SAFETY: a process may always end.
        unsafe { _exit(NOT_EXECUTABLE) }
    };
    // If there is no such program, the process goes on.
    if looked.is_there {
        mem::forget(report_before_exec(named, looked));
    }
}

/// The status that shells return for a program that they cannot run.
const NOT_EXECUTABLE: c_int = 126;

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { become_program(at(path), environment, || real::execve(path, arguments, environment)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: by the caller.
    unsafe { become_program(at(path), environment(), || real::execv(path, arguments)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: by the caller.
    unsafe { become_program(in_path(file), environment(), || real::execvp(file, arguments)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { become_program(in_path(file), environment, || real::execvpe(file, arguments, environment)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
    let named = Some(by_descriptor(fd));
    // SAFETY: by the caller.
    unsafe { become_program(named, environment, || real::fexecve(fd, arguments, environment)) }
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
    let named = (!path.is_null()).then(|| by_folder(folder, unsafe { CStr::from_ptr(path) }, flags));
    // SAFETY: by the caller.
    let call = || unsafe { real::execveat(folder, path, arguments, environment, flags) };
    // SAFETY: by the caller.
    unsafe { become_program(named, environment, call) }
}

/// Stops serving all descriptions before another process shares the descriptors.
#[must_use = "it does so later"]
fn share() -> Option<AllUnserved> {
    (leased::is_on() && !entry::is_own_thread()).then(AllUnserved::new)
}

/// Starts another process that runs a program.
///
/// # Safety
/// As of [`examine`]; there is room for the process's number, or none.
unsafe fn spawn(
    process: *mut pid_t,
    named: Option<Named<'_>>,
    environment: *const *mut c_char,
    call: impl FnOnce(*mut pid_t) -> c_int,
) -> c_int {
    // SAFETY: by the caller.
    let looked = match unsafe { examine(named, environment.cast()) } {
        Ok(looked) => looked,
        Err(error) => return error.raw_os_error(),
    };
    let _all_unserved = share();
    let mut number = 0;
    let error = call(&raw mut number);
    if error == 0 {
        if !process.is_null() {
            // SAFETY: by the caller.
            unsafe { process.write(number) };
        }
        if let Some(named) = named {
            uncovered_programs::report(named, looked, number);
        }
    }
    error
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
    // SAFETY: by the caller, here and below.
    let call = |process| unsafe { real::posix_spawn(process, path, actions, attributes, arguments, environment) };
    // SAFETY: by the caller.
    unsafe { spawn(process, at(path), environment, call) }
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
    // SAFETY: by the caller, here and below.
    let call = |process| unsafe { real::posix_spawnp(process, file, actions, attributes, arguments, environment) };
    // SAFETY: by the caller.
    unsafe { spawn(process, in_path(file), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let _all_unserved = share();
    // SAFETY: by the caller.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let _all_unserved = share();
    // SAFETY: by the caller.
    streams::noticed(unsafe { real::popen(command, mode) })
}
