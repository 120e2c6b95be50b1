//! vmio's part in a fork.
//!
//! A child has the memory of its parent and one thread: changes that other threads were making stay half done. So the thread that forks
//! holds the locks of all state that must be whole in the child. The cache stays with the parent. The child gets a cache of its own once it
//! maps a file itself, or at once if it inherits mapped files.

use std::cell::Cell;
use std::ffi::c_long;
use std::sync::MutexGuard;

use vmio::SignalsBlocked;

use crate::entry::{self, Inside};
use crate::files_kept_open;
use crate::last_thread;
use crate::leased::{self, AllUnserved};
use crate::lock_calls::LOCK_CALLS;
use crate::messages;
use crate::own_descriptors;
use crate::own_heap;
use crate::process::{self, Process};
use crate::program_maps;
use crate::settings::Settings;
use crate::table::LockedTable;
use crate::unserved_files;

/// The locks that the thread holds while it forks.
struct Forking {
    all_unserved: Option<AllUnserved>,
    _opening_logs: Option<MutexGuard<'static, ()>>,
    _starting: MutexGuard<'static, process::Start>,
    _table: Option<LockedTable<'static>>,
    _unserved_files: MutexGuard<'static, unserved_files::Files>,
    kept_open: MutexGuard<'static, files_kept_open::Files>,
    program_maps: Option<program_maps::HeldStill>,
    // Other libraries' fork handlers run meanwhile, and their calls must not wait for the locks.
    _inside: Inside,
    // Dropped after the locks, since a signal handler of the program's may need them.
    _no_handlers: SignalsBlocked,
}

thread_local! {
    static FORKING: Cell<Option<Forking>> = const { Cell::new(None) };
}

/// Registers the fork handlers, when the library is loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_some() {
        // SAFETY: all three are safe functions without arguments.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// Makes a call that forks without the C library's fork handlers.
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
            // SAFETY: the address of the thread's errno is always valid.
            unsafe { *libc::__errno_location() = error };
        }
    }
    outcome
}

/// Lets the child adopt its parent's files, when fork returns there after all fork handlers.
pub(crate) fn begin_child() {
    entry::as_vmio_undisturbed(|| {
        Process::adopt_from_parent();
        program_maps::adopt_from_parent();
    });
}

extern "C" fn before() {
    let no_handlers = SignalsBlocked::new();
    let inside = Inside::new();
    let forking = Forking {
        all_unserved: leased::is_on().then(AllUnserved::new),
        // After `all_unserved`, which waits for threads that are taking leases: they may be making a log.
        _opening_logs: leased::is_strict().then(leased::opening_logs),
        _starting: process::starting(),
        _table: Process::current().map(|process| process.table.lock()),
        _unserved_files: unserved_files::files(),
        // Before the files: a thread that maps looks there with these held.
        program_maps: Some(program_maps::hold_still()),
        kept_open: files_kept_open::files(),
        _inside: inside,
        _no_handlers: no_handlers,
    };
    FORKING.set(Some(forking));
}

extern "C" fn in_parent() {
    drop(FORKING.take());
}

pub(crate) extern "C" fn in_child() {
    own_heap::belongs_to_child();
    let Some(mut forking) = FORKING.take() else { return };
    // The parent counts this value.
    std::mem::forget(forking.all_unserved.take());
    files_kept_open::are_left_to_parent(&mut forking.kept_open);
    LOCK_CALLS.reset_in_child();
    Process::is_left_to_parent();
    if leased::is_on() {
        leased::reset_in_child();
    }
    // The child may close the descriptors that it has inherited.
    own_descriptors::clear();
    messages::belongs_to_child();
    last_thread::belongs_to_child();
    // Before the program's handlers of signals run: they find mappings where its parent had some.
    if let Some(held) = forking.program_maps.take() {
        entry::as_vmio(|| program_maps::are_left_to_parent(held));
    }
    drop(forking);
}
