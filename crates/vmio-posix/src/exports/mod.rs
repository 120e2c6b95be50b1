//! The functions of the C library that the program calls in its place. Each asks the rest of the crate, and else the C
//! library; their contracts are those of the C library.
//!
//! They are stable Rust, which cannot define functions with a variable number of arguments: `fcntl`, `ioctl` and `open` take their last as
//! the register that it comes in, on the architectures that pass it as any other (x86-64, AArch64), as do those of `system_calls`; the rest is in
//! `variadic`.

mod attributes;
mod control;
mod descriptors;
mod files;
#[cfg(target_arch = "x86_64")]
mod jumps;
mod makers;
mod memory;
mod names;
mod opening;
mod process;
mod signals;
mod signals_of_old;
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
use crate::messages;
use crate::own_descriptors;
use crate::process::Process;
use crate::real;
use crate::settings::Settings;
use crate::split::{self, Way};
use crate::synchronous::{self, Target};
use crate::unseen;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    real::look_up();
    #[cfg(target_arch = "x86_64")]
    variadic::look_up();
    let _ = entry::enter::<()>(|| {
        messages::start();
        if Settings::of_this_process().is_some() {
            std::panic::set_hook(Box::new(|about| messages::say(format_args!("a defect of vmio's: {about}"))));
        }
        split::start();
        synchronous::start();
        fork::start();
        unseen::start();
        last_thread::start();
        None
    });
}

/// What the program gets for an answer; nothing if the C library is to be asked.
fn told<T, R>(answer: Answer<T>, good: impl FnOnce(T) -> R, failure: R) -> Option<R> {
    match answer? {
        Ok(value) => Some(good(value)),
        Err(error) => {
            // SAFETY: the address of the thread's errno is always valid.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            Some(failure)
        }
    }
}

/// As [`told`], for functions that return 0 or -1.
fn told_status(answer: Answer<()>) -> Option<c_int> {
    told(answer, |()| 0, -1)
}

/// As [`told`], for the functions that return an error's number.
fn told_number(answer: Answer<()>) -> Option<c_int> {
    answer.map(|outcome| outcome.err().map_or(0, |error| error.raw_os_error()))
}

/// Asks about a descriptor of the program's, if any file is mapped.
fn of_mapped<T>(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
    let is_busy = Process::current().is_some_and(|process| !process.uses_page_cache() && !process.table.is_empty());
    if is_busy { of_file(fd, call) } else { None }
}

/// Asks about a descriptor of the program's.
fn of_file<T>(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
    if fd < 0 || own_descriptors::contains(fd) {
        return None;
    }
    // SAFETY: the program has it open during its call, or gets its error.
    entry::enter(|| call(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// A call that returns 0 or -1, after which what it has changed is durable, if that is wanted.
fn durably<const TARGETS: usize>(
    targets: impl FnOnce() -> [Option<Target>; TARGETS],
    call: impl FnOnce() -> c_int,
) -> c_int {
    if !synchronous::is_on() {
        return call();
    }
    let done = synchronous::make_durable(targets, || if call() == 0 { Some(()) } else { None });
    told_status(done).unwrap_or(-1)
}

/// Whether a call is to be looked at by the data path of a mode.
fn is_of_mode(fd: c_int) -> bool {
    split::is_on() && fd >= 0 && !entry::is_inside()
}

/// A call that the data path of a mode may do, or else the C library.
#[inline]
fn by_mode(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> Way, otherwise: impl FnOnce() -> ssize_t) -> ssize_t {
    if !is_of_mode(fd) {
        return otherwise();
    }
    // SAFETY: the program has it open during its call, or gets its error.
    match call(unsafe { BorrowedFd::borrow_raw(fd) }) {
        Way::Done(outcome) => told(Some(outcome), |count| count as ssize_t, -1).unwrap_or(-1),
        // As long as there is the call nothing changes about the description.
        Way::Linux(_call) => otherwise(),
    }
}
