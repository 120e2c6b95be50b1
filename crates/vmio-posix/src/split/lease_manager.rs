//! The thread that warms descriptions up, and gives leases back that the kernel wants back.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rustix::fs::{Mode as FileMode, OFlags, SeekFrom, fcntl_getfl, fstat, seek};
use rustix::io::Errno;
use rustix::process::getpid;
use vmio::{Access, Cache, Engine, SignalsBlocked, Stats};

use super::all_left;
use super::answer::Answer;
use super::cached_file::CachedFile;
use super::description::{Description, State};
use super::descriptors;
use super::own_descriptor::OwnDescriptor;
use super::refusal::Refusal;
use super::report;
use super::strict::{self, Logged, Logs, SharedWrite, replay_of_the_dead};
use super::warm::{Counts, Warm};
use crate::entry;
use crate::messages;
use crate::own_descriptors;
use crate::settings::{Mode, Settings};
use crate::table::is_regular;

/// What waits for the lease manager at most; what finds no room is asked for again, or never freed.
const REQUESTS_MAX: usize = 256;

/// How often descriptors are looked for that were closed without our knowing, while files are warm.
const LOOKS_AFTER: Duration = Duration::from_secs(1);

/// There is no thread yet, or it could not be started.
const NO_THREAD: libc::pid_t = 0;
/// One is being started.
const STARTING: libc::pid_t = -1;

/// fcntl's, for which the libc crate has no names.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

/// By which the kernel, when it wants a lease back, and this process wake the lease manager: it is sent to that thread alone. Programs wait for
/// real-time signals and SIGIO themselves, and where as many signals are pending as may be, the former do not arrive; this one nobody
/// else sends.
const WAKE_SIGNAL: c_int = libc::SIGSTKFLT;
/// Those of a set of signals that the kernel reads.
const KERNEL_SIGSET_BYTES: usize = 8;

#[repr(C)]
struct Owner {
    kind: c_int,
    id: libc::pid_t,
}

enum Request {
    /// To look at a descriptor's description.
    Look(RawFd),
    /// The same, of one that is about to be written to by somebody who waits.
    LookNow(RawFd, *const Answer),
    /// To write to a file that others have open.
    Write(*const SharedWrite<'static>, *const Answer),
    /// To replay the logs of processes that have died.
    Replay(*const Answer),
    /// To look for descriptors that were closed without our knowing.
    LookForClosed,
    /// The process is about to end, or to become another program: to remove its logs.
    CloseLogs(*const Answer),
    /// To free what a description has had.
    Dispose(Disposed),
}

// SAFETY: who sends what is pointed at waits, and keeps it, until there is an answer; descriptors and buffers are any thread's.
unsafe impl Send for Request {}

/// Owned by nobody else.
struct Disposed(*mut Warm);
// SAFETY: it is a box that was taken apart, of a type that may go to another thread.
unsafe impl Send for Disposed {}

/// The lease manager's thread, and what has been asked of it.
struct LeaseManager {
    requests: ArrayQueue<Request>,
    /// What was done by descriptions that have been left.
    counts: Counts,
    /// Descriptions that it has warmed up.
    warmed: AtomicU64,
    /// The frames of the process's own, once a file is warm; none if they cannot be had.
    frames: OnceLock<Option<Cache>>,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static IS_STRICT: AtomicBool = AtomicBool::new(false);
static HAS_FRAMES: AtomicBool = AtomicBool::new(false);
/// The process, and not its child before that is another program (vfork).
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Its thread; [`NO_THREAD`] until there is one, which a forked child does not have.
static THREAD: AtomicI32 = AtomicI32::new(NO_THREAD);
/// Null before there is a thread, and in a forked child.
static MANAGER: AtomicPtr<LeaseManager> = AtomicPtr::new(ptr::null_mut());

fn manager() -> Option<&'static LeaseManager> {
    // SAFETY: what was stored is never freed.
    unsafe { MANAGER.load(Ordering::Acquire).as_ref() }
}

/// Whether the process was started with a mode.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether each write is to be durable and atomic.
#[inline]
pub(crate) fn is_strict() -> bool {
    IS_STRICT.load(Ordering::Relaxed)
}

/// Whether bytes of warm files are in frames of this process, of which the kernel knows what was written back.
#[inline]
pub(crate) fn has_frames() -> bool {
    HAS_FRAMES.load(Ordering::Relaxed)
}

/// The library has been loaded: whether there is anything to do for this process.
pub(crate) fn start() {
    let settings = Settings::of_this_process();
    let mode = settings.and_then(|settings| settings.mode);
    HAS_FRAMES.store(settings.is_some_and(|settings| settings.frames_bytes.is_some()), Ordering::Relaxed);
    let is_on = mode.is_some();
    IS_ON.store(is_on, Ordering::Relaxed);
    IS_STRICT.store(mode == Some(Mode::Strict), Ordering::Relaxed);
    belongs_to_this_process();
}

fn belongs_to_this_process() {
    PROCESS.store(getpid().as_raw_nonzero().get(), Ordering::Relaxed);
    report::belongs_to_this_process();
}

/// Whether the caller is not a child that has the memory of its parent until it is another program (vfork).
pub(super) fn is_in_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == getpid().as_raw_nonzero().get()
}

/// In a forked child, which has no lease manager.
pub(crate) fn begin_anew() {
    THREAD.store(NO_THREAD, Ordering::Relaxed);
    // The thread may have been in the middle of taking something out: what it had stays as it is, unused.
    MANAGER.store(ptr::null_mut(), Ordering::Relaxed);
    descriptors::belong_to_child();
    all_left::begin_anew();
    strict::close_descriptors_of_parent();
    belongs_to_this_process();
}

/// Whether there is a thread. It is started by the first open of a file under the folders.
pub(super) fn is_there(fd: BorrowedFd<'_>) -> bool {
    if THREAD.load(Ordering::Acquire) > 0 {
        return true;
    }
    let is_under = || Settings::of_this_process().is_some_and(|settings| settings.covers_open(fd));
    entry::enter(|| Some(Ok(is_under() && begin()))).is_some_and(|outcome| outcome == Ok(true))
}

/// Starts the thread, or waits until another has; false if it cannot be had, as where there may be no more of them. Later it may be.
fn begin() -> bool {
    // A child that has the memory of its parent would start its own, and take that away when it becomes another program.
    if !is_in_this_process() {
        return false;
    }
    // The thread inherits the mask: no handler of the program's runs there. Nor does one here, which would wait for this.
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
        warmed: AtomicU64::new(0),
        frames: OnceLock::new(),
    }));
    // SAFETY: it is freed below if there is no thread, and never if there is one.
    let shared: &'static LeaseManager = unsafe { &*manager };
    if thread::Builder::new().name("vmio-leases".to_owned()).spawn(move || serve_requests(shared)).is_ok() {
        while THREAD.load(Ordering::Acquire) == STARTING {
            thread::yield_now();
        }
        return true;
    }
    // SAFETY: there is no thread that has it, and nobody else was told of it.
    drop(unsafe { Box::from_raw(manager) });
    THREAD.store(NO_THREAD, Ordering::Release);
    false
}

/// Whether there is somebody to log a write of a descriptor that nothing may be known of.
pub(super) enum ForWrites {
    IsThere,
    /// The kernel writes: the file is under none of the folders, or the caller a child that has the memory of its parent.
    NotNeeded,
    /// There is no thread, and none can be started.
    NotToBeHad,
}

/// A forked child, or one that has inherited its files, may have opened nothing under the folders, and writes there all the same.
pub(super) fn for_writes(fd: BorrowedFd<'_>) -> ForWrites {
    if THREAD.load(Ordering::Acquire) > 0 {
        return ForWrites::IsThere;
    }
    if !is_in_this_process() {
        return ForWrites::NotNeeded;
    }
    if !Settings::of_this_process().is_some_and(|settings| settings.covers_open(fd)) {
        // So that its next write need not ask.
        if let Some(description) = descriptors::adopted(fd.as_raw_fd()) {
            description.is_outside.store(true, Ordering::Relaxed);
        }
        return ForWrites::NotNeeded;
    }
    if is_there(fd) { ForWrites::IsThere } else { ForWrites::NotToBeHad }
}

/// Has a descriptor's description looked at; false if too much else is to be done.
pub(super) fn look_at(fd: RawFd) -> bool {
    ask(Request::Look(fd))
}

/// Has descriptors looked for that were closed without our knowing. If nobody is there now, that is done in time.
pub(super) fn look_for_closed() {
    ask(Request::LookForClosed);
}

/// Frees what a description has had, in time.
///
/// # Safety
/// It is a box that was taken apart, and nobody else's any more.
pub(super) unsafe fn dispose(warm: *mut Warm) {
    // SAFETY: by the caller.
    if let (Some(about), Some(manager)) = (unsafe { warm.as_ref() }, manager()) {
        if let Some(counts) = about.counts() {
            manager.counts.absorb(counts);
        }
        ask(Request::Dispose(Disposed(warm)));
    }
}

/// Asks for something, and waits until it is done; `None` if there is nobody to ask.
fn demand(request: impl Fn(*const Answer) -> Request) -> Option<Result<usize, Errno>> {
    if !is_in_this_process() || MANAGER.load(Ordering::Relaxed).is_null() {
        return None;
    }
    // A handler that asks, too, would not be told before this is; one that leaves this frame for good, never.
    let _signals = SignalsBlocked::new();
    let answer = Answer::new();
    while !ask(request(&answer)) {
        thread::yield_now();
    }
    Some(answer.wait())
}

/// Has a descriptor's description looked at before this returns.
pub(super) fn look_now(fd: RawFd) {
    demand(|answer| Request::LookNow(fd, answer));
}

/// Has the lease manager write to a file that others have open.
pub(super) fn write(write: &SharedWrite<'_>) -> Option<Result<usize, Errno>> {
    demand(|answer| Request::Write(ptr::from_ref(write).cast(), answer))
}

/// Before the bytes of a file are replaced otherwise than by a write: what processes have logged that died since would come over
/// them when the next write is logged.
pub(crate) fn replay_before_changes() {
    if is_strict() && !entry::is_inside() && demand(Request::Replay).is_none() {
        // There is no thread for it yet, or not in this process.
        let _ = entry::as_vmio_undisturbed(replay);
    }
}

/// Where that is not possible the next write fails, and says so.
fn replay() -> Result<(), Errno> {
    let mut folders = Settings::of_this_process().into_iter().flat_map(|settings| &settings.under);
    folders.try_for_each(|folder| replay_of_the_dead(folder))
}

/// Removes the logs of the process, whose files have all been left.
pub(crate) fn close_logs() {
    if is_strict() {
        demand(Request::CloseLogs);
    }
}

fn ask(request: Request) -> bool {
    let Some(manager) = manager() else { return false };
    if manager.requests.push(request).is_err() {
        return false;
    }
    // With the one in `serve_requests`: either the thread finds the request when it begins, or it is seen here.
    fence(Ordering::SeqCst);
    let thread = THREAD.load(Ordering::Relaxed);
    if thread > 0 {
        // SAFETY: has no effect on memory.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, WAKE_SIGNAL) };
    }
    true
}

/// Waits for the signal. One that is pending already stands for all that come: whatever it says, it may be about a lease, too. False if it is
/// time to look for descriptors that were closed without our knowing.
fn await_signal() -> bool {
    let mut awaited = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut about = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: all is ours. The signal is blocked in this thread, as all are; zeroes are a siginfo, of no signal. Not the C library's call,
    // which takes a signal for the thread for one for the process.
    let mut about = unsafe {
        libc::sigemptyset(awaited.as_mut_ptr());
        libc::sigaddset(awaited.as_mut_ptr(), WAKE_SIGNAL);
        let end = libc::timespec { tv_sec: LOOKS_AFTER.as_secs() as libc::time_t, tv_nsec: 0 };
        let end = if OwnDescriptor::are_there() { ptr::from_ref(&end) } else { ptr::null() };
        libc::syscall(libc::SYS_rt_sigtimedwait, awaited.as_ptr(), about.as_mut_ptr(), end, KERNEL_SIGSET_BYTES);
        about.assume_init()
    };
    if about.si_signo == 0 {
        return false;
    }
    let is_sent_by_hand = about.si_signo == WAKE_SIGNAL && about.si_code <= 0 && about.si_code != libc::SI_TKILL;
    // SAFETY: such a signal has a sender. Nobody is one for which there was no room in the queue, as may be with this process's own.
    if is_sent_by_hand && unsafe { about.si_pid() } != 0 {
        // What is sent to the process is taken from it here. Its first thread may have it: from the process the lease manager would take it again.
        if about.si_code == libc::SI_USER {
            // Which the kernel has nobody say for another.
            about.si_code = libc::SI_QUEUE;
        }
        let process = getpid().as_raw_nonzero().get();
        // SAFETY: what it is about is read, and is ours.
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, process, WAKE_SIGNAL, &raw const about) };
    }
    true
}

fn serve_requests(manager: &'static LeaseManager) {
    // SAFETY: tells a number.
    let thread = unsafe { libc::gettid() };
    MANAGER.store(ptr::from_ref(manager).cast_mut(), Ordering::Release);
    THREAD.store(thread, Ordering::Release);
    fence(Ordering::SeqCst);
    entry::stay_inside();
    let mut logs = Logs::default();
    loop {
        while let Some(request) = manager.requests.pop() {
            match request {
                Request::Look(fd) => warm_up(fd, thread, &mut logs),
                Request::LookNow(fd, answer) => {
                    warm_up(fd, thread, &mut logs);
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(Ok(0));
                }
                Request::Write(write, answer) => {
                    // SAFETY: by `Request`.
                    let (write, answer) = unsafe { (&*write, &*answer) };
                    // Another thread may have had it looked at since, and found warm: then the log and the frames would not know of this.
                    let held = descriptors::held(write.fd.as_raw_fd());
                    let settings = Settings::of_this_process().ok_or(Errno::IO);
                    let outcome = settings.and_then(|settings| write.perform(&mut logs, settings));
                    drop(held);
                    answer.give(outcome);
                }
                Request::Replay(answer) => {
                    let outcome = replay().map(|()| 0);
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(outcome);
                }
                Request::LookForClosed => descriptors::look_for_closed(),
                Request::CloseLogs(answer) => {
                    logs.close();
                    // SAFETY: by `Request`.
                    unsafe { &*answer }.give(Ok(0));
                }
                Request::Dispose(Disposed(warm)) => {
                    // SAFETY: who asked has given it up.
                    drop(unsafe { Box::from_raw(warm) });
                }
            }
        }
        if await_signal() {
            descriptors::leave_those_asked_back(report::asked_back);
        } else {
            descriptors::look_for_closed();
        }
    }
}

/// Warms the description of a descriptor up, if it may be, and is worth it.
fn warm_up(fd: RawFd, thread: libc::pid_t, logs: &mut Logs) {
    let known = descriptors::of_descriptor(fd);
    let Some(description) = known.or_else(|| is_strict().then(|| descriptors::adopted(fd))?) else { return };
    if is_strict() {
        // SAFETY: as below.
        let is_under =
            Settings::of_this_process().and_then(|settings| settings.path_under(unsafe { BorrowedFd::borrow_raw(fd) }));
        description.is_outside.store(is_under.is_none(), Ordering::Relaxed);
    }
    // SAFETY: if it is closed meanwhile, that is an error, or another file, which is looked at again once vmio has a descriptor of its own.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    // Calls about anything else may last as long as they like.
    let is_file = fstat(opened).is_ok_and(|stat| is_regular(&stat));
    if !description.change(State::Cold, State::Warming) {
        return;
    }
    // From here on who closes the last descriptor of the description waits, and so does who is about to fork.
    if all_left::is_held() || is_file && !description.drain() {
        description.ask_again();
        description.change(State::Warming, State::Cold);
        return;
    }
    let taken = take(opened, thread, description, logs);
    let is_warm = taken.is_ok();
    if let (true, Some(manager)) = (is_warm, manager()) {
        manager.warmed.fetch_add(1, Ordering::Relaxed);
    }
    report::looked_at(opened, taken);
    description.change(State::Warming, if is_warm { State::Warm } else { State::Linux });
}

/// Takes a lease of a file under the folders, and maps it.
fn take(fd: BorrowedFd<'_>, thread: libc::pid_t, description: &Description, logs: &mut Logs) -> Result<(), Refusal> {
    let settings = Settings::of_this_process().ok_or(Refusal::NotAsked)?;
    let stat = fstat(fd).ok().filter(is_regular).ok_or(Refusal::NotAsked)?;
    let path = settings.path_under(fd).ok_or(Refusal::NotAsked)?;
    // Writes take such rights away, stores do not.
    if FileMode::from_raw_mode(stat.st_mode).intersects(FileMode::SUID | FileMode::SGID) {
        return Err(Refusal::Rights);
    }
    let flags = fcntl_getfl(fd)?;
    if flags.intersects(OFlags::DIRECT | OFlags::PATH) {
        return Err(Refusal::Flags);
    }
    let (access, lease) = match flags & OFlags::RWMODE {
        OFlags::RDONLY => (Access::ReadOnly, libc::F_RDLCK),
        OFlags::RDWR => (Access::ReadWrite, libc::F_WRLCK),
        OFlags::WRONLY if is_strict() => (Access::ReadOnly, libc::F_WRLCK),
        _ => return Err(Refusal::WritesAlone),
    };
    lease_to(fd, thread, lease).map_err(Refusal::Lease)?;
    let own = match own_descriptor(description, fd, lease) {
        Ok(own) => own,
        Err(error) => {
            give_back(fd);
            return Err(error.into());
        }
    };
    let warmed = (|fd: BorrowedFd<'_>| {
        // Only now nobody changes it any more.
        let len = fstat(fd)?.st_size as u64;
        let position = seek(fd, SeekFrom::Current(0))?;
        let mut warm = match flags & OFlags::RWMODE {
            OFlags::WRONLY => Warm::of_writes_alone(),
            // Written back by such a descriptor, a page would be appended.
            _ if flags.contains(OFlags::APPEND) => Warm::new(fd, len, access, settings.stores_after_bytes)?,
            _ => mapped(fd, len, access, settings)?,
        };
        if settings.report.is_some() {
            warm = warm.counted();
        }
        if is_strict() && lease == libc::F_WRLCK {
            let logged = Logged::new(logs, settings, fd, &path)?;
            description.log_key.store(logged.key(), Ordering::Release);
            warm = warm.with_log(logged);
        }
        description.put_warm(Box::new(warm));
        description.flags.store(flags.bits() as i32, Ordering::Relaxed);
        description.known_len.store(len, Ordering::Relaxed);
        description.position.store(position, Ordering::Relaxed);
        Ok(())
    })(own);
    if warmed.is_err() {
        give_back(own);
    }
    warmed
}

/// A descriptor of vmio's own for what was leased by one of the program's. What is not what was leased has been closed by it meanwhile.
fn own_descriptor(description: &Description, fd: BorrowedFd<'_>, lease: c_int) -> Result<BorrowedFd<'static>, Errno> {
    let own = description.own.get().map_or_else(|| description.own.take(fd), Ok)?;
    let is_known = descriptors::of_descriptor(fd.as_raw_fd()).is_some_and(|now| ptr::eq(now, description));
    let is_leased = control(own, libc::F_GETLEASE, 0) == lease;
    if is_known && is_leased { Ok(own) } else { Err(Errno::BADF) }
}

/// A mapping of a leased file: over frames of this process if there are any, and the file is not persistent memory anyway.
fn mapped(fd: BorrowedFd<'_>, len: u64, access: Access, settings: &Settings) -> std::io::Result<Warm> {
    let shared = || Warm::new(fd, len, access, settings.stores_after_bytes);
    let Some(cache) = manager().and_then(|manager| manager.cache(settings)) else { return shared() };
    if let Ok(shared) = shared()
        && shared.is_persistent()
    {
        return Ok(shared);
    }
    let cached = CachedFile::open(cache, fd, len, access);
    cached.map_or_else(shared, |file| Ok(Warm::of_cached(file, access)))
}

impl LeaseManager {
    /// The frames, made by the first file that is warm.
    fn cache(&self, settings: &Settings) -> Option<&Cache> {
        let build = |bytes: &u64| {
            let cache = Cache::builder().engine(Engine::Sigbus).capacity(*bytes).build();
            cache.inspect_err(report::no_frames).ok()
        };
        let cache = self.frames.get_or_init(|| {
            let cache = settings.frames_bytes.as_ref().and_then(build)?;
            cache.descriptors().iter().for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
            Some(cache)
        });
        cache.as_ref()
    }
}

/// Takes a lease; the lease manager is told when it is asked back.
fn lease_to(fd: BorrowedFd<'_>, thread: libc::pid_t, lease: c_int) -> Result<(), Errno> {
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    let is_leased = control(fd, F_SETSIG, WAKE_SIGNAL as usize) == 0
        && control(fd, F_SETOWN_EX, &raw const owner as usize) == 0
        && control(fd, libc::F_SETLEASE, lease as usize) == 0;
    // SAFETY: the address of the thread's errno is always valid.
    is_leased.then_some(()).ok_or_else(|| Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

/// Gives a lease back.
pub(super) fn give_back(fd: BorrowedFd<'_>) {
    control(fd, libc::F_SETLEASE, libc::F_UNLCK as usize);
}

/// Whether the kernel wants the lease of a warm description back.
pub(super) fn is_asked_back(description: &Description) -> bool {
    let wanted = if description.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == libc::O_RDONLY {
        libc::F_RDLCK
    } else {
        libc::F_WRLCK
    };
    description.own.get().is_some_and(|own| control(own, libc::F_GETLEASE, 0) != wanted)
}

/// fcntl, and not the one that the program calls.
fn control(fd: BorrowedFd<'_>, command: c_int, argument: usize) -> c_int {
    // SAFETY: the commands above take numbers, but for one, which reads a structure that the caller has.
    entry::as_vmio(|| unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) })
}

/// What the cache of this process has done, if there is one.
pub(super) fn cache_stats() -> Option<Stats> {
    manager()?.frames.get()?.as_ref().map(Cache::stats)
}

/// How many descriptions were warmed up.
pub(super) fn warmed() -> u64 {
    manager().map_or(0, |manager| manager.warmed.load(Ordering::Relaxed))
}

/// What was done without a system call so far.
pub(super) fn counts() -> Counts {
    let total = Counts::default();
    if let Some(manager) = manager() {
        total.absorb(&manager.counts);
    }
    descriptors::add_counts(&total);
    total
}
