//! Threads that vmio starts: all their calls count as vmio's. Threads of the program begin in its virtual machine, if it has one.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};

use crate::entry;
use crate::last_thread::Own;
use crate::machine;
use crate::real;

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

/// The start routine and argument of a thread of vmio's.
struct Start {
    routine: Routine,
    argument: *mut c_void,
}

extern "C" fn run_inside(start: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` made it for this thread alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    entry::stay_inside();
    let _own = Own::new();
    (start.routine)(start.argument)
}

extern "C" fn run_in_machine(start: *mut c_void) -> *mut c_void {
    // SAFETY: as in `run_inside`.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let Start { routine, argument } = *start;
    let _ = entry::enter::<()>(|| {
        machine::enter();
        None
    });
    routine(argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let begin: Routine = match entry::is_inside() {
        true => run_inside,
        false if machine::is_wanted() => run_in_machine,
        // SAFETY: by the caller.
        false => return unsafe { real::pthread_create(thread, attributes, routine, argument) },
    };
    let start = Box::into_raw(Box::new(Start { routine, argument }));
    // SAFETY: by the caller; the new thread takes the box of `start`.
    let status = unsafe { real::pthread_create(thread, attributes, begin, start.cast()) };
    if status != 0 {
        // SAFETY: no thread was started that could have taken the box.
        drop(unsafe { Box::from_raw(start) });
    }
    status
}
