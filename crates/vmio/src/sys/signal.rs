//! SIGBUS in the faulting thread, and keeping other signal handlers out of critical sections.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::cancellation::NotCancelled;
use crate::sys::chained_action::{self, Chained};
use crate::sys::errno::PreservedErrno;
use crate::sys::extent_leases::stores_in_turn;
use crate::sys::guest_mode::SignalsDeferred;
#[cfg(target_arch = "x86_64")]
use crate::sys::persistent_memory;

/// The access of the interrupted instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultAccess {
    /// A load.
    Load,
    /// A store, or a read-modify-write.
    Store,
    /// The architecture does not tell.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    Unknown,
}

/// The result of a fault handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The access will succeed now: run the instruction again.
    Resolved,
    /// The address is not vmio's, or its page is not available: the previous handler decides.
    Declined,
}

/// Resolves a fault at an address; must be async-signal-safe.
pub(crate) type FaultHandler = fn(address: usize, access: FaultAccess) -> Resolution;

/// The sources of faults that have resolvers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultSource {
    /// Pages that are registered with a userfaultfd.
    Userfaultfd,
    /// Pages of the kernel module that have not been verified yet.
    Module,
    /// Parts of files whose extents are not leased yet.
    Leases,
}

/// The handler of each source.
static RESOLVERS: [OnceLock<FaultHandler>; 3] = [const { OnceLock::new() }; 3];
/// Sees the faults that no resolver has resolved.
static UNRESOLVED: OnceLock<fn(usize, bool) -> bool> = OnceLock::new();
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// From now on, calls `handler` for every SIGBUS of this process. Faults that all handlers decline go to the action
/// that was there before. The first call for a source decides; later ones do nothing.
pub(crate) fn install_sigbus_handler(source: FaultSource, handler: FaultHandler) -> io::Result<()> {
    RESOLVERS[source as usize].get_or_init(|| handler);
    if IS_INSTALLED.load(Ordering::Acquire) { Ok(()) } else { install() }
}

/// Calls `look` for each fault by SIGBUS of this process that vmio does not resolve, before the program's own action.
///
/// `look` gets the address, and whether the access was a store (true where the architecture does not tell). If it
/// returns true, the instruction runs again. The first call of this function decides. It is for libraries on top of
/// this one, which know why Linux could not serve an address.
///
/// Bad memory, and pages that reader threads refuse, are such faults too.
///
/// # Errors
///
/// The errors of sigaction(2).
///
/// # Safety
///
/// A handler of the signal calls `look`, in any thread: `look` must be async-signal-safe.
pub unsafe fn on_unresolved_sigbus(look: fn(address: usize, is_store: bool) -> bool) -> io::Result<()> {
    UNRESOLVED.get_or_init(|| look);
    if IS_INSTALLED.load(Ordering::Acquire) { Ok(()) } else { install() }
}

/// From now on, makes copies of persistent memory return where they meet a SIGBUS. Not inside the handler itself, where
/// a SIGBUS kills the process: an alternate stack of 8 KiB has no space for a second one.
pub(crate) fn recover_copies() -> io::Result<()> {
    if IS_INSTALLED.load(Ordering::Acquire) { Ok(()) } else { install() }
}

/// Sets the action for a SIGBUS that is not vmio's, and returns the previous one; without an action only returns it.
///
/// `None` if vmio has no handler of SIGBUS in this process: the caller then calls the C library. For libraries that
/// replace sigaction(2). Async-signal-safe, as sigaction(2) is.
///
/// # Safety
///
/// The action's handler must be valid for sigaction(2): `SIG_DFL`, `SIG_IGN`, or a function of the kind that its flags
/// give. From now on any thread may call it.
pub unsafe fn sigbus_action(action: Option<libc::sigaction>) -> Option<libc::sigaction> {
    let before = chained_action::current()?.action;
    action.map_or(Some(before), |action| chained_action::replace(&action))
}

/// Installs the handler. Of threads that do so at once, each returns with the handler installed, and the action before
/// the first of them is kept. Takes no lock: a forked child would inherit it held.
fn install() -> io::Result<()> {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the present action into a zeroed sigaction of ours, which is valid as it is if that fails.
    let present = unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), present.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        present.assume_init()
    };
    // If the present action were vmio's own, an earlier one would be kept already, and this would change nothing.
    chained_action::begin_with(&present);
    // SAFETY: a zeroed sigaction is valid; the fields that matter are set below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    // The handler runs on the alternate stack where there is one: Go and other runtimes insist. Nothing may interrupt
    // it, so that a nested fault of the same thread cannot wait for itself.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: fills a set that we own, and installs a handler that is async-signal-safe by the contract of
    // FaultHandler. The handler reads only RESOLVERS and the chained action, which is set by now.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    IS_INSTALLED.store(true, Ordering::Release);
    Ok(())
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let _errno = PreservedErrno::new();
    let Some(previous) = chained_action::current() else { return };
    // SAFETY: the kernel passes a valid siginfo and ucontext to an SA_SIGINFO handler.
    let (code, address, access) = unsafe { ((*info).si_code, (*info).si_addr() as usize, access_of(context)) };
    // Only BUS_ADRERR comes from a page fault; anything sent by kill() has a code of 0 or less.
    // SAFETY: the context is the one that the kernel has passed to this handler.
    let is_in_turn = stores_in_turn() && unsafe { landing_in(context) }.is_some();
    let may_resolve =
        |source: usize| code == libc::BUS_ADRERR && !(is_in_turn && source == FaultSource::Leases as usize);
    let all = RESOLVERS.iter().enumerate().filter(|(source, _)| may_resolve(*source));
    let mut resolvers = all.filter_map(|(_, resolver)| resolver.get());
    if resolvers.any(|resolve| resolve(address, access) == Resolution::Resolved) {
        return;
    }
    // BUS_MCEERR_AR is a touch of a bad cell of memory, or of a page that a reader thread refuses.
    let is_fault = matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
    // SAFETY: the context is the one that the kernel has passed to this handler.
    if is_fault && unsafe { end_copy(context) } {
        return;
    }
    if is_fault && UNRESOLVED.get().is_some_and(|look| look(address, access != FaultAccess::Load)) {
        return;
    }
    chain(&previous, signal, info, context);
}

/// If a copy of persistent memory was interrupted, makes it return. Returns whether that was so.
///
/// # Safety
/// `context` must be the ucontext that the kernel gave to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn end_copy(context: *mut libc::c_void) -> bool {
    // SAFETY: by the caller.
    let Some(landing) = (unsafe { landing_in(context) }) else { return false };
    // SAFETY: the caller vouches that the context is one that the kernel gave to a signal handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = landing as i64;
    true
}

/// Where the copy of persistent memory that was interrupted continues; `None` if there was none.
///
/// # Safety
/// `context` must be the ucontext that the kernel gave to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn landing_in(context: *mut libc::c_void) -> Option<usize> {
    // SAFETY: the caller vouches that the context is one that the kernel gave to a signal handler.
    let instruction = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    persistent_memory::landing_of(instruction as usize)
}

/// # Safety
/// No requirements: this architecture has no such copies.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn landing_in(_context: *mut libc::c_void) -> Option<usize> {
    None
}

/// # Safety
/// No requirements: this architecture has no such copies.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn end_copy(_context: *mut libc::c_void) -> bool {
    false
}

/// # Safety
/// `context` must be the ucontext that the kernel gave to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn access_of(context: *mut libc::c_void) -> FaultAccess {
    const WRITE: i64 = 1 << 1;
    // SAFETY: the caller vouches that the context is one that the kernel gave to a signal handler.
    let error_code = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    if error_code & WRITE != 0 { FaultAccess::Store } else { FaultAccess::Load }
}

/// # Safety
/// No requirements: the context is not used.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn access_of(_context: *mut libc::c_void) -> FaultAccess {
    FaultAccess::Unknown
}

/// Does what the process would do without vmio's handler.
fn chain(previous: &Chained, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gave it to the handler that calls this.
    let code = unsafe { (*info).si_code };
    let action = &previous.action;
    match action.sa_sigaction {
        // A process has sent it, or it is news of bad memory that nobody has touched: that may be ignored.
        libc::SIG_IGN if code <= 0 || code == libc::BUS_MCEERR_AO => {}
        // The kernel does not let a process ignore a fault either. With the default action back in place, the
        // instruction runs again, and the process dies of the same SIGBUS at the same address.
        libc::SIG_DFL | libc::SIG_IGN => {
            do_by_default(signal);
            if code != libc::BUS_ADRERR {
                // SAFETY: has no effect but the signal's.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                chained_action::reset(previous);
            }
            // SAFETY: the caller vouches for the context. The interrupted code has its own mask, which the kernel
            // restores when vmio's handler returns.
            unsafe { mask_for(action, signal, context) };
            // SAFETY: the program installed this address as a handler of this kind.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Blocks the signals that the kernel would have blocked for the program's handler, and no others.
///
/// # Safety
/// `context` must be the ucontext that the kernel gave to a signal handler.
unsafe fn mask_for(action: &libc::sigaction, signal: libc::c_int, context: *mut libc::c_void) {
    // SAFETY: the caller vouches that the context is one that the kernel gave to a signal handler. The kernel's set ends with
    // its first word.
    let interrupted = unsafe { (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read() };
    let itself = if action.sa_flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    let mask = chained_action::set_of(interrupted | chained_action::signals_of(&action.sa_mask) | itself);
    // SAFETY: the set is ours; the mask of a thread has no effects on memory.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut()) };
}

/// Sets the kernel's default action for a signal, by an instruction of vmio's own. A library of vmio's may stand before
/// the C library's `sigaction` and `syscall`, and would take the call for the program's.
fn do_by_default(signal: libc::c_int) {
    // The kernel's structure in zeros is the default action; a set of signals has 8 bytes.
    let default = [0_u64; 4];
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the system call reads the action. Its instruction changes these registers alone.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigaction => _,
            in("rdi") i64::from(signal),
            in("rsi") default.as_ptr(),
            in("rdx") 0,
            in("r10") 8,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the system call reads the action. Its instruction changes this register alone.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") libc::SYS_rt_sigaction,
            inlateout("x0") i64::from(signal) => _,
            in("x1") default.as_ptr(),
            in("x2") 0,
            in("x3") 8,
            options(nostack)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the system call reads the action.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null_mut::<u64>(), 8);
    }
}

/// Blocks every asynchronous signal of the thread until dropped, and has pthread_cancel(3) wait.
///
/// vmio holds it wherever it owns a lock or a page word outside the trap path. Otherwise a handler of the program that
/// then touches mapped memory would wait for its own thread. A thread that is started meanwhile has the signals blocked
/// for good: libraries on top of this one start their threads that way.
///
/// # Examples
///
/// ```
/// let thread = {
///     let _signals = vmio::SignalsBlocked::new();
///     std::thread::spawn(|| println!("no signal handler runs here"))
/// };
/// thread.join().unwrap();
/// ```
pub struct SignalsBlocked {
    by: By,
    /// Of those that begin outside a miss.
    not_cancelled: Option<NotCancelled>,
    /// Only the thread that owns the mask can put it back.
    _of_thread: PhantomData<*const ()>,
}

enum By {
    /// At ring 0, where it takes no system call, until dropped.
    Deferral(#[allow(dead_code)] SignalsDeferred),
    /// The mask from before.
    Mask(libc::sigset_t),
}

impl SignalsBlocked {
    /// Blocks the signals.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let mut blocked = Self::in_miss();
        blocked.not_cancelled = Some(NotCancelled::new());
        blocked
    }

    /// The same amid a miss or a system call, and without a word about cancellation. The C library may cancel the thread at any instruction then:
    /// it would do so here, as soon as it may again. Nothing that vmio does meanwhile is a cancellation point.
    pub(crate) fn in_miss() -> Self {
        if let Some(deferral) = SignalsDeferred::new() {
            return SignalsBlocked { by: By::Deferral(deferral), not_cancelled: None, _of_thread: PhantomData };
        }
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut previous = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are ours; changing the mask of the calling thread has no memory effects. Faults stay
        // deliverable, so that a bug of vmio's is a crash at its place and not a kill without a trace.
        let previous = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr());
            previous.assume_init()
        };
        SignalsBlocked { by: By::Mask(previous), not_cancelled: None, _of_thread: PhantomData }
    }
}

impl SignalsBlocked {
    /// The calling thread is about to jump (siglongjmp) out of all of these, to where its mask of signals is set again.
    pub fn abandon() {
        SignalsDeferred::abandon();
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        let By::Mask(previous) = &self.by else { return };
        // SAFETY: puts back the mask that `new` found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, previous, ptr::null_mut()) };
    }
}
