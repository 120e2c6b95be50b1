//! What a fork does to what the process has of vmio.
//!
//! A child has the memory of its parent and one thread: what other threads were in the middle of stays as it was. So the thread that forks
//! has whatever must be whole there to itself meanwhile. Of what a child has then, the cache is its parent's alone, and it begins anew: with a
//! cache of its own, once it maps a file itself, or at once where it has the files that its parent has mapped.

use std::cell::Cell;
use std::ffi::c_long;
use std::sync::MutexGuard;

use vmio::SignalsBlocked;

use crate::entry::{self, Inside};
use crate::last_thread;
use crate::left_to_linux;
use crate::messages;
use crate::own_descriptors;
use crate::own_heap;
use crate::process::{self, Process};
use crate::refused;
use crate::settings::Settings;
use crate::split::{self, AllLeft};
use crate::table::LockedTable;

/// What the thread holds while it forks.
struct Forking {
    all_left: Option<AllLeft>,
    _opening_logs: Option<MutexGuard<'static, ()>>,
    _starting: MutexGuard<'static, process::Start>,
    _table: Option<LockedTable<'static>>,
    _left_to_linux: MutexGuard<'static, left_to_linux::Files>,
    refused: MutexGuard<'static, refused::Files>,
    // Other libraries are told of the fork as well, and what they call meanwhile would want the locks.
    _inside: Inside,
    // After the locks: a handler of the program's may want them.
    _no_handlers: SignalsBlocked,
}

thread_local! {
    static FORKING: Cell<Option<Forking>> = const { Cell::new(None) };
}

/// The library has been loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_some() {
        // SAFETY: all three are safe functions without arguments.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// A call that makes a child with a copy of this process's memory, and of which the C library does not tell.
pub(crate) fn around(call: impl FnOnce() -> c_long) -> c_long {
    if Settings::of_this_process().is_none() {
        return call();
    }
    before();
    let outcome = call();
    match outcome {
        0 => in_child(),
        _ => {
            // SAFETY: the address of the thread's errno is always valid.
            let error = unsafe { *libc::__errno_location() };
            in_parent();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = error };
        }
    }
    outcome
}

/// fork has returned in a child, and whoever is told of forks has been told.
pub(crate) fn begin_child() {
    entry::as_vmio_undisturbed(Process::adopt_from_parent);
}

extern "C" fn before() {
    let no_handlers = SignalsBlocked::new();
    let inside = Inside::new();
    let forking = Forking {
        all_left: split::is_on().then(AllLeft::new),
        // After that: what is being warmed up may be making a log, and is waited for there.
        _opening_logs: split::is_strict().then(split::opening_logs),
        _starting: process::starting(),
        _table: Process::current().map(|process| process.table.lock()),
        _left_to_linux: left_to_linux::files(),
        refused: refused::files(),
        _inside: inside,
        _no_handlers: no_handlers,
    };
    FORKING.set(Some(forking));
}

extern "C" fn in_parent() {
    drop(FORKING.take());
}

pub(crate) extern "C" fn in_child() {
    own_heap::is_the_childs();
    let Some(mut forking) = FORKING.take() else { return };
    // It is counted in the parent.
    std::mem::forget(forking.all_left.take());
    refused::are_left_to_parent(&mut forking.refused);
    Process::is_left_to_parent();
    if split::is_on() {
        split::begin_anew();
    }
    // It may close what descriptors it finds.
    own_descriptors::clear();
    messages::are_the_childs();
    last_thread::is_the_childs();
}
