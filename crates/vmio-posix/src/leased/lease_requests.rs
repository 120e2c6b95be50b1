//! The lease manager as other threads see it: their requests to its thread, and its counts.
//!
//! Threads of the program's send it requests through a queue, since they may be in signal handlers and must neither allocate nor wait for
//! locks.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering, fence};
use std::thread;

use crossbeam_queue::ArrayQueue;
use rustix::io::Errno;
use vmio::{Cache, Engine, SignalsBlocked, Stats};

use super::answer::Answer;
use super::lease_messages;
use super::leased_file::{Counts, LeasedFile};
use super::mode::{is_in_this_process, is_strict};
use super::strict::{SharedWrite, replay_dead_logs};
use crate::entry;
use crate::own_descriptors;
use crate::settings::Settings;

/// The length of the queue. If the queue is full, the sender asks again; a leased file that it wants freed stays in memory for good.
const REQUESTS_MAX: usize = 256;

/// There is no thread yet, or it could not be started.
pub(super) const NO_THREAD: libc::pid_t = 0;
/// One is being started.
pub(super) const STARTING: libc::pid_t = -1;

/// The signal by which the kernel announces that it breaks a lease, and by which this process wakes the lease manager. It goes to that
/// thread alone, and nobody else sends it. Real-time signals and SIGIO will not do: programs wait for these, and a real-time signal is lost
/// if too many are pending.
pub(super) const BREAK_SIGNAL: c_int = libc::SIGSTKFLT;

/// A request to the lease manager's thread.
pub(super) enum Request {
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
pub(super) struct Disposed(pub(super) *mut LeasedFile);
// SAFETY: the pointer comes from a box, of a type that may go to another thread.
unsafe impl Send for Disposed {}

/// The requests and counts of the lease manager's thread.
pub(super) struct LeaseManager {
    pub(super) requests: ArrayQueue<Request>,
    /// The counts of returned leases.
    pub(super) counts: Counts,
    /// Leases taken by this thread.
    pub(super) leases_taken: AtomicU64,
    /// The process's cache, from the first lease on; none if it cannot be built.
    cache: OnceLock<Option<Cache>>,
}

/// The thread's number; [`NO_THREAD`] until it runs, and in a forked child.
pub(super) static THREAD: AtomicI32 = AtomicI32::new(NO_THREAD);
/// Null until the thread runs, and in a forked child.
pub(super) static MANAGER: AtomicPtr<LeaseManager> = AtomicPtr::new(ptr::null_mut());

/// The lease manager, if its thread runs.
pub(super) fn manager() -> Option<&'static LeaseManager> {
    // SAFETY: the manager stored there is never freed.
    unsafe { MANAGER.load(Ordering::Acquire).as_ref() }
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
pub(super) fn replay() -> Result<(), Errno> {
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

impl LeaseManager {
    /// Without requests.
    pub(super) fn new() -> Self {
        LeaseManager {
            requests: ArrayQueue::new(REQUESTS_MAX),
            counts: Counts::default(),
            leases_taken: AtomicU64::new(0),
            cache: OnceLock::new(),
        }
    }

    /// The cache of leased files, built for the first lease.
    pub(super) fn cache(&self, settings: &Settings) -> Option<&Cache> {
        let build = |bytes: &u64| {
            let cache = Cache::builder().engine(Engine::Sigbus).capacity(*bytes).build();
            cache.inspect_err(lease_messages::no_cache).ok()
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
