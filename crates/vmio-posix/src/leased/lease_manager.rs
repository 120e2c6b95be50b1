//! The thread that takes leases of the files that the program uses, and returns them when the kernel breaks them.
//!
//! Threads of the program's send it requests through a queue, since they may be in signal handlers and must neither allocate nor wait for
//! locks.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::getpid;
use vmio::{Cache, Engine, SignalsBlocked, Stats};

use super::answer::Answer;
use super::description::State;
use super::descriptors;
use super::lease::{self, BREAK_SIGNAL};
use super::leased_file::{Counts, LeasedFile};
use super::mode::{self, is_in_this_process, is_strict};
use super::own_descriptor::OwnDescriptor;
use super::report;
use super::strict::{self, Logs, SharedWrite, replay_dead_logs};
use super::unserved_descriptions;
use crate::entry;
use crate::messages;
use crate::own_descriptors;
use crate::settings::Settings;
use crate::table::is_regular;

/// The length of the queue. If the queue is full, the sender asks again; a leased file that it wants freed stays in memory for good.
const REQUESTS_MAX: usize = 256;

/// How often it looks for descriptors that were closed without our noticing, while vmio has descriptors of its own.
const FIND_CLOSED_EVERY: Duration = Duration::from_secs(1);

/// There is no thread yet, or it could not be started.
const NO_THREAD: libc::pid_t = 0;
/// One is being started.
const STARTING: libc::pid_t = -1;

/// The size of a signal set in the kernel's interface.
const KERNEL_SIGSET_BYTES: usize = 8;

enum Request {
    /// Take a lease of a descriptor's file, if that is possible.
    Lease(RawFd),
    /// The same, for a writer that waits.
    LeaseNow(RawFd, *const Answer),
    /// Write to a file that other processes have open.
    Write(*const SharedWrite<'static>, *const Answer),
    /// Replay the logs of dead processes.
    Replay(*const Answer),
    /// Find descriptors that were closed without our noticing.
    FindClosed,
    /// Remove the logs: the process is about to end, or to run another program.
    CloseLogs(*const Answer),
    /// Free the leased file of a description.
    Dispose(Disposed),
}

// SAFETY: the sender keeps the pointers' targets and waits until there is an answer; descriptors and buffers may be used by any thread.
unsafe impl Send for Request {}

/// A leased file that nobody else owns.
struct Disposed(*mut LeasedFile);
// SAFETY: the pointer comes from a box, of a type that may go to another thread.
unsafe impl Send for Disposed {}

/// The requests and counts of the lease manager's thread.
struct LeaseManager {
    requests: ArrayQueue<Request>,
    /// The counts of returned leases.
    counts: Counts,
    /// Leases taken by this thread.
    leases_taken: AtomicU64,
    /// The process's cache, from the first lease on; none if it cannot be built.
    cache: OnceLock<Option<Cache>>,
}

/// The thread's number; [`NO_THREAD`] until it runs, and in a forked child.
static THREAD: AtomicI32 = AtomicI32::new(NO_THREAD);
/// Null until the thread runs, and in a forked child.
static MANAGER: AtomicPtr<LeaseManager> = AtomicPtr::new(ptr::null_mut());

fn manager() -> Option<&'static LeaseManager> {
    // SAFETY: the manager stored there is never freed.
    unsafe { MANAGER.load(Ordering::Acquire).as_ref() }
}

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
    descriptors::reset_in_child();
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
    let manager = Box::into_raw(Box::new(LeaseManager {
        requests: ArrayQueue::new(REQUESTS_MAX),
        counts: Counts::default(),
        leases_taken: AtomicU64::new(0),
        cache: OnceLock::new(),
    }));
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
        if let Some(description) = descriptors::adopt(fd.as_raw_fd()) {
            description.is_outside.store(true, Ordering::Relaxed);
        }
        return Logging::NotNeeded;
    }
    if start_for(fd) { Logging::Available } else { Logging::Unavailable }
}

/// Asks for a lease of a descriptor's file, without waiting for it; false if the queue is full.
pub(super) fn request_lease(fd: RawFd) -> bool {
    ask(Request::Lease(fd))
}

/// Asks for a search for descriptors that were closed without our noticing. If the queue is full, the next regular search will do.
pub(super) fn find_closed() {
    ask(Request::FindClosed);
}

/// Lets the lease manager free a leased file, without waiting for it.
///
/// # Safety
/// The pointer comes from a box, or is null, and nobody else uses it any more.
pub(super) unsafe fn dispose(leased: *mut LeasedFile) {
    // SAFETY: by the caller.
    if let (Some(about), Some(manager)) = (unsafe { leased.as_ref() }, manager()) {
        if let Some(counts) = about.counts() {
            manager.counts.absorb(counts);
        }
        ask(Request::Dispose(Disposed(leased)));
    }
}

/// Makes a request and waits until it is done; `None` if the thread does not run.
fn ask_and_wait(request: impl Fn(*const Answer) -> Request) -> Option<Result<usize, Errno>> {
    if !is_in_this_process() || MANAGER.load(Ordering::Relaxed).is_null() {
        return None;
    }
    // A signal handler must not make a request of its own in between, nor leave this frame for good.
    let _signals = SignalsBlocked::new();
    let answer = Answer::new();
    while !ask(request(&answer)) {
        thread::yield_now();
    }
    Some(answer.wait())
}

/// Asks for a lease of a descriptor's file, and waits until it is taken or cannot be.
pub(super) fn lease_now(fd: RawFd) {
    ask_and_wait(|answer| Request::LeaseNow(fd, answer));
}

/// Lets the lease manager write to a file that other processes have open.
pub(super) fn write(write: &SharedWrite<'_>) -> Option<Result<usize, Errno>> {
    ask_and_wait(|answer| Request::Write(ptr::from_ref(write).cast(), answer))
}

/// Replays the logs of dead processes, before a call other than a write replaces the bytes of a file. The next logged write would replay
/// them over the new bytes.
pub(crate) fn replay_before_changes() {
    if is_strict() && !entry::is_inside() && ask_and_wait(Request::Replay).is_none() {
        // The thread does not run yet, or not in this process.
        let _ = entry::as_vmio_undisturbed(replay);
    }
}

/// Replays the logs of dead processes in all folders. After a failure the next write fails with the same error.
fn replay() -> Result<(), Errno> {
    let mut folders = Settings::of_this_process().into_iter().flat_map(|settings| &settings.under);
    folders.try_for_each(|folder| replay_dead_logs(folder))
}

/// Removes the logs of the process, which does not serve any file any more.
pub(crate) fn close_logs() {
    if is_strict() {
        ask_and_wait(Request::CloseLogs);
    }
}

fn ask(request: Request) -> bool {
    let Some(manager) = manager() else { return false };
    if manager.requests.push(request).is_err() {
        return false;
    }
    // Pairs with the fence in `serve_requests`: either the thread finds this request when it starts, or its number is seen here.
    fence(Ordering::SeqCst);
    let thread = THREAD.load(Ordering::Relaxed);
    if thread > 0 {
        // SAFETY: the call does not access memory.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, BREAK_SIGNAL) };
    }
    true
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
    let mut logs = Logs::default();
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
            descriptors::return_broken_leases(report::lease_broken);
        } else {
            descriptors::find_closed();
        }
    }
}

/// Takes a lease of a descriptor's file, if the file may be leased.
fn try_lease(fd: RawFd, thread: libc::pid_t, logs: &mut Logs) {
    let known = descriptors::of_descriptor(fd);
    let Some(description) = known.or_else(|| is_strict().then(|| descriptors::adopt(fd))?) else { return };
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
    report::lease_tried(opened, taken);
    description.change(State::Leasing, if is_leased { State::Leased } else { State::Linux });
}

impl LeaseManager {
    /// The cache of leased files, built for the first lease.
    fn cache(&self, settings: &Settings) -> Option<&Cache> {
        let build = |bytes: &u64| {
            let cache = Cache::builder().engine(Engine::Sigbus).capacity(*bytes).build();
            cache.inspect_err(report::no_cache).ok()
        };
        let cache = self.cache.get_or_init(|| {
            let cache = settings.mode_cache_bytes.as_ref().and_then(build)?;
            cache.descriptors().iter().for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
            Some(cache)
        });
        cache.as_ref()
    }
}

/// The counts of this process's cache, if there is one.
pub(super) fn cache_stats() -> Option<Stats> {
    manager()?.cache.get()?.as_ref().map(Cache::stats)
}

/// The number of leases taken so far.
pub(super) fn leases_taken() -> u64 {
    manager().map_or(0, |manager| manager.leases_taken.load(Ordering::Relaxed))
}

/// The transfers without a system call so far.
pub(super) fn counts() -> Counts {
    let total = Counts::default();
    if let Some(manager) = manager() {
        total.absorb(&manager.counts);
    }
    descriptors::add_counts(&total);
    total
}
