//! The thread that takes leases of the files that the program uses, and returns them when the kernel breaks them.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::getpid;
use vmio::SignalsBlocked;

use super::description::State;
use super::description_table;
use super::descriptors;
use super::lease;
use super::lease_messages;
use super::lease_requests::{
    BREAK_SIGNAL, Disposed, LeaseManager, MANAGER, NO_THREAD, Request, STARTING, THREAD, manager, replay,
};
use super::mode::{self, is_in_this_process, is_strict};
use super::own_descriptor::OwnDescriptor;
use super::report;
use super::strict::{self, Logs};
use super::unserved_descriptions;
use crate::entry;
use crate::messages;
use crate::settings::Settings;
use crate::table::is_regular;

/// How often it looks for descriptors that were closed without our noticing, while vmio has descriptors of its own.
const FIND_CLOSED_EVERY: Duration = Duration::from_secs(1);

/// The size of a signal set in the kernel's interface.
const KERNEL_SIGSET_BYTES: usize = 8;

/// Prepares the mode and the report, when the library is loaded.
pub(crate) fn start() {
    mode::start();
    report::belongs_to_this_process();
}

/// Resets the state in a forked child, which has no lease manager.
pub(crate) fn reset_in_child() {
    THREAD.store(NO_THREAD, Ordering::Relaxed);
    // The parent's thread may have been in the middle of a request: the child never uses or frees its state.
    MANAGER.store(ptr::null_mut(), Ordering::Relaxed);
    description_table::reset_in_child();
    unserved_descriptions::reset_in_child();
    strict::close_descriptors_of_parent();
    mode::belongs_to_this_process();
    report::belongs_to_this_process();
}

/// Starts the thread if the descriptor is of a file under the folders. Returns whether the thread runs.
pub(super) fn start_for(fd: BorrowedFd<'_>) -> bool {
    if THREAD.load(Ordering::Acquire) > 0 {
        return true;
    }
    let is_under = || Settings::of_this_process().is_some_and(|settings| settings.covers_open(fd));
    entry::enter(|| Some(Ok(is_under() && start_thread()))).is_some_and(|outcome| outcome == Ok(true))
}

/// Starts the thread, or waits until another caller has; false if there can be no more threads now.
fn start_thread() -> bool {
    // A child by vfork would start a thread of its own, which ends when the child runs another program.
    if !is_in_this_process() {
        return false;
    }
    // The thread inherits the signal mask, so that no handler of the program's runs there. A handler here would wait for this very call.
    let _signals = SignalsBlocked::new();
    while let Err(thread) = THREAD.compare_exchange(NO_THREAD, STARTING, Ordering::Acquire, Ordering::Acquire) {
        if thread != STARTING {
            return true;
        }
        thread::yield_now();
    }
    messages::keep();
    let manager = Box::into_raw(Box::new(LeaseManager::new()));
    // SAFETY: it is freed below if no thread could be started, and never if one runs.
    let shared: &'static LeaseManager = unsafe { &*manager };
    if thread::Builder::new().name("vmio-leases".to_owned()).spawn(move || serve_requests(shared)).is_ok() {
        while THREAD.load(Ordering::Acquire) == STARTING {
            thread::yield_now();
        }
        return true;
    }
    // SAFETY: no thread has it, and nobody has stored it anywhere.
    drop(unsafe { Box::from_raw(manager) });
    THREAD.store(NO_THREAD, Ordering::Release);
    false
}

/// Whether writes by a descriptor that may be unknown can be logged.
pub(super) enum Logging {
    Available,
    /// The kernel writes: the file is under none of the folders, or the caller is a child by vfork.
    NotNeeded,
    /// The thread does not run and cannot be started.
    Unavailable,
}

/// Starts the thread for a write if necessary: a process may write under the folders by inherited descriptors without ever opening a file.
pub(super) fn logging_for(fd: BorrowedFd<'_>) -> Logging {
    if THREAD.load(Ordering::Acquire) > 0 {
        return Logging::Available;
    }
    if !is_in_this_process() {
        return Logging::NotNeeded;
    }
    if !Settings::of_this_process().is_some_and(|settings| settings.covers_open(fd)) {
        // So that its next write need not look again.
        if let Some(description) = description_table::adopt(fd.as_raw_fd()) {
            description.is_outside.store(true, Ordering::Relaxed);
        }
        return Logging::NotNeeded;
    }
    if start_for(fd) { Logging::Available } else { Logging::Unavailable }
}

/// Waits for the signal; false if it is time to look for closed descriptors. One pending signal stands for all: for requests, for leases,
/// or for both.
fn await_signal() -> bool {
    let mut awaited = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut about = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the variables are in this frame, the signal is blocked in this thread, and zeros are a valid siginfo. The C library's own
    // function would not do: it mistakes a signal for the thread for one for the process.
    let mut about = unsafe {
        libc::sigemptyset(awaited.as_mut_ptr());
        libc::sigaddset(awaited.as_mut_ptr(), BREAK_SIGNAL);
        let end = libc::timespec { tv_sec: FIND_CLOSED_EVERY.as_secs() as libc::time_t, tv_nsec: 0 };
        let end = if OwnDescriptor::are_there() { ptr::from_ref(&end) } else { ptr::null() };
        libc::syscall(libc::SYS_rt_sigtimedwait, awaited.as_ptr(), about.as_mut_ptr(), end, KERNEL_SIGSET_BYTES);
        about.assume_init()
    };
    if about.si_signo == 0 {
        return false;
    }
    let is_sent_by_hand = about.si_signo == BREAK_SIGNAL && about.si_code <= 0 && about.si_code != libc::SI_TKILL;
    // SAFETY: a signal with such a code has a sender. The sender is 0 where the kernel had no memory to record it.
    if is_sent_by_hand && unsafe { about.si_pid() } != 0 {
        // Another process or thread sent it to the process, and this thread took it from the program. The first thread gets it: sent to the
        // process again, it would come here again.
        if about.si_code == libc::SI_USER {
            // The kernel does not let a process send SI_USER on behalf of another.
            about.si_code = libc::SI_QUEUE;
        }
        let process = getpid().as_raw_nonzero().get();
        // SAFETY: the kernel reads the siginfo, which is in this frame.
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, process, BREAK_SIGNAL, &raw const about) };
    }
    true
}

fn serve_requests(manager: &'static LeaseManager) {
    // SAFETY: the call has no arguments.
    let thread = unsafe { libc::gettid() };
    MANAGER.store(ptr::from_ref(manager).cast_mut(), Ordering::Release);
    THREAD.store(thread, Ordering::Release);
    fence(Ordering::SeqCst);
    entry::stay_inside();
    let mut logs = Logs::new(description_table::own_of_logged);
    loop {
        while let Some(request) = manager.requests.pop() {
            match request {
                Request::Lease(fd) => try_lease(fd, thread, &mut logs),
                Request::LeaseNow(fd, answer) => {
                    try_lease(fd, thread, &mut logs);
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(Ok(0));
                }
                Request::Write(write, answer) => {
                    // SAFETY: by `Request`.
                    let (write, answer) = unsafe { (&*write, &*answer) };
                    // The file may have been leased since, for another thread: this write would then bypass the log and the cache.
                    let suspension = descriptors::suspend(write.fd.as_raw_fd());
                    let settings = Settings::of_this_process().ok_or(Errno::IO);
                    let outcome = settings.and_then(|settings| write.perform(&mut logs, settings));
                    drop(suspension);
                    answer.give(outcome);
                }
                Request::Replay(answer) => {
                    let outcome = replay().map(|()| 0);
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(outcome);
                }
                Request::FindClosed => descriptors::find_closed(),
                Request::CloseLogs(answer) => {
                    logs.close();
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(Ok(0));
                }
                Request::Dispose(Disposed(leased)) => {
                    // SAFETY: the sender has given it up.
                    drop(unsafe { Box::from_raw(leased) });
                }
            }
        }
        if await_signal() {
            descriptors::return_broken_leases(lease_messages::lease_broken);
        } else {
            descriptors::find_closed();
        }
    }
}

/// Takes a lease of a descriptor's file, if the file may be leased.
fn try_lease(fd: RawFd, thread: libc::pid_t, logs: &mut Logs) {
    let known = description_table::of_descriptor(fd);
    let Some(description) = known.or_else(|| is_strict().then(|| description_table::adopt(fd))?) else { return };
    // SAFETY: if the program closes it meanwhile, the calls fail or concern another file: `lease::take` finds that out once vmio has a
    // descriptor of its own.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    if is_strict() {
        let is_under = Settings::of_this_process().and_then(|settings| settings.path_under(opened));
        description.is_outside.store(is_under.is_none(), Ordering::Relaxed);
    }
    // Calls on anything else, such as a pipe or a socket, may last for ever: we do not wait for those.
    let is_file = fstat(opened).is_ok_and(|stat| is_regular(&stat));
    if !description.change(State::Unleased, State::Leasing) {
        return;
    }
    // From here on, a thread that closes the description's last descriptor or is about to fork waits.
    if unserved_descriptions::are_all() || is_file && !description.drain() {
        description.ask_again();
        description.change(State::Leasing, State::Unleased);
        return;
    }
    let taken = lease::take(opened, thread, description, logs, |settings| manager()?.cache(settings));
    let is_leased = taken.is_ok();
    if let (true, Some(manager)) = (is_leased, manager()) {
        manager.leases_taken.fetch_add(1, Ordering::Relaxed);
    }
    lease_messages::lease_tried(opened, taken);
    description.change(State::Leasing, if is_leased { State::Leased } else { State::Linux });
}
