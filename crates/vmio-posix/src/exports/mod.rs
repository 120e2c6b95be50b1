//! The functions that the program calls in place of the C library's. Each lets the rest of the crate serve the call, or calls the C
//! library. They have the contracts of the C library's functions.
//!
//! Stable Rust cannot define functions with a variable number of arguments. `fcntl`, `ioctl`, `open` and the functions of `system_calls` take
//! the last argument as a fixed one: x86-64 and AArch64 pass both in the same register. The others are in `variadic`.

mod attributes;
mod control;
mod descriptor_makers;
mod descriptors;
mod files;
#[cfg(target_arch = "x86_64")]
mod jumps;
mod memory;
mod names;
mod obsolete_signal_calls;
mod opening;
mod process;
mod signals;
mod sockets;
mod streams;
mod system_calls;
mod threads;
mod transfers;
#[cfg(target_arch = "x86_64")]
mod variadic;

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use libc::ssize_t;

use crate::entry::{self, Answer};
use crate::fork;
use crate::last_thread;
use crate::leased::{self, Way};
use crate::machine;
use crate::messages;
use crate::own_descriptors;
use crate::process::Process;
use crate::real;
use crate::settings::Settings;
use crate::synchronous::{self, Target};
use crate::uncovered_programs;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    real::look_up();
    #[cfg(target_arch = "x86_64")]
    variadic::look_up();
    let _ = entry::enter::<()>(|| {
        messages::start();
        if let Err(wrong) = Settings::checked() {
            messages::say(format_args!("the program does not start: {wrong}"));
            // SAFETY: nothing has begun that would have to end.
            unsafe { real::_exit(NOT_STARTED) }
        }
        if Settings::of_this_process().is_some() {
            std::panic::set_hook(Box::new(|about| messages::say(format_args!("a bug in vmio: {about}"))));
        }
        leased::start();
        synchronous::start();
        fork::start();
        uncovered_programs::start();
        last_thread::start();
        None
    });
    // The first thread; others follow as they start.
    let _ = entry::enter::<()>(|| {
        machine::enter();
        None
    });
}

/// The status of a program that cannot run with vmio, as `vmio run` has it, too.
const NOT_STARTED: c_int = 126;

/// The return value for the program; `None` if the C library must do the call.
fn returned<T, R>(answer: Answer<T>, good: impl FnOnce(T) -> R, failure: R) -> Option<R> {
    match answer? {
        Ok(value) => Some(good(value)),
        Err(error) => {
            // SAFETY: the address of the thread's errno is always valid.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            Some(failure)
        }
    }
}

/// As [`returned`], for functions that return 0 or -1.
fn returned_status(answer: Answer<()>) -> Option<c_int> {
    returned(answer, |()| 0, -1)
}

/// As [`returned`], for functions that return an error number.
fn returned_error(answer: Answer<()>) -> Option<c_int> {
    answer.map(|outcome| outcome.err().map_or(0, |error| error.raw_os_error()))
}

/// Calls a function with a descriptor of the program's, if any file is mapped through vmio.
fn of_mapped<T>(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
    let is_busy = Process::current().is_some_and(|process| !process.uses_page_cache() && !process.table.is_empty());
    if is_busy { of_file(fd, call) } else { None }
}

/// Calls a function with a descriptor of the program's.
fn of_file<T>(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
    if fd < 0 || own_descriptors::contains(fd) {
        return None;
    }
    // SAFETY: the program has it open during its call, or gets its error.
    entry::enter(|| call(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// Makes a call that returns 0 or -1. In the modes sync and strict its changes are then durable.
fn durably<const TARGETS: usize>(
    targets: impl FnOnce() -> [Option<Target>; TARGETS],
    call: impl FnOnce() -> c_int,
) -> c_int {
    if !synchronous::is_on() {
        return call();
    }
    let done = synchronous::make_durable(targets, || if call() == 0 { Some(()) } else { None });
    returned_status(done).unwrap_or(-1)
}

/// Whether the data path of a mode handles a call.
fn is_of_mode(fd: c_int) -> bool {
    leased::is_on() && fd >= 0 && !entry::is_inside()
}

/// Lets the data path of a mode do a call, or else the C library.
#[inline]
fn by_mode(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Way, otherwise: impl FnOnce() -> ssize_t) -> ssize_t {
    if !is_of_mode(fd) {
        return otherwise();
    }
    // SAFETY: the program has it open during its call, or gets its error.
    match call(unsafe { BorrowedFd::borrow_raw(fd) }) {
        Way::Done(outcome) => returned(Some(outcome), |count| count as ssize_t, -1).unwrap_or(-1),
        // The description does not change while the value exists.
        Way::Linux(_call) => otherwise(),
    }
}
