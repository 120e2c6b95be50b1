//! SIGBUS, which copies from and to mapped files may raise. The program cannot block the signal. Its own handler gets the faults that are
//! not vmio's.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigaction as Action, sigset_t, size_t, timespec};

use crate::entry;
use crate::leased;
use crate::machine;
use crate::real;
use crate::settings::Settings;

/// Whether vmio may have a handler of the signal: of SIGBUS, and with `--engine ring0` of SIGSEGV, by which threads enter the machine.
pub(super) fn is_shared(signal: c_int) -> bool {
    let is_ours = signal == libc::SIGBUS || signal == libc::SIGSEGV && machine::is_wanted();
    is_ours && Settings::of_this_process().is_some() && !entry::is_inside()
}

/// Sets the program's action for a signal of which vmio has a handler, and returns the previous one; `None` if vmio has none.
///
/// # Safety
/// The action is one that sigaction(2) takes.
pub(super) unsafe fn shared_action(signal: c_int, action: Option<Action>) -> Option<Action> {
    // SAFETY: by the caller.
    unsafe {
        match signal {
            libc::SIGBUS => vmio::sigbus_action(action),
            #[cfg(target_arch = "x86_64")]
            libc::SIGSEGV => vmio::ring0::segv_action(action),
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    if is_shared(signal) {
        // SAFETY: by the caller it is null or an action.
        let action = unsafe { action.as_ref() }.copied();
        // SAFETY: by the caller it is an action that sigaction takes.
        if let Some(was) = unsafe { shared_action(signal, action) } {
            if !before.is_null() {
                // SAFETY: by the caller there is room for one.
                unsafe { before.write(was) };
            }
            return 0;
        }
    }
    // SAFETY: by the caller.
    unsafe { with_mask_unblocked(signal, action, before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    // SAFETY: by the caller.
    unsafe { sigaction(signal, action, before) }
}

/// The signals, from the lowest bit on, for whose handlers the program has asked to block SIGBUS.
static ASKED_FOR: AtomicU64 = AtomicU64::new(0);

/// The C library's sigaction without [`never_blocked`] in the handler's mask, since the handler may touch a file. Of SIGBUS, the program still reads back
/// the mask that it set.
///
/// # Safety
/// As of sigaction(2).
unsafe fn with_mask_unblocked(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    // SAFETY: by the caller it is null or an action.
    let mut ours = unsafe { action.as_ref() }.copied().filter(|_| never_blocked().next().is_some());
    let asks = ours.as_mut().is_some_and(|action| {
        // SAFETY: the set is ours.
        unsafe {
            let asks = never_blocked().any(|never| never == libc::SIGBUS)
                && libc::sigismember(&raw const action.sa_mask, libc::SIGBUS) == 1;
            never_blocked().for_each(|signal| _ = libc::sigdelset(&raw mut action.sa_mask, signal));
            asks
        }
    });
    // SAFETY: by the caller; the copy is ours.
    let status = unsafe { real::sigaction(signal, ours.as_ref().map_or(action, ptr::from_ref), before) };
    let Some(bit) = u32::try_from(signal - 1).ok().and_then(|bit| 1_u64.checked_shl(bit)).filter(|_| status == 0)
    else {
        return status;
    };
    let asked = match (&ours, asks) {
        (None, _) => ASKED_FOR.load(Ordering::Relaxed),
        (Some(_), true) => ASKED_FOR.fetch_or(bit, Ordering::Relaxed),
        (Some(_), false) => ASKED_FOR.fetch_and(!bit, Ordering::Relaxed),
    };
    if asked & bit != 0 && !before.is_null() {
        // SAFETY: by the caller it is an action, which was filled.
        unsafe { libc::sigaddset(&raw mut (*before).sa_mask, libc::SIGBUS) };
    }
    status
}

/// The signals by which vmio finds a thread's touches of mapped files: the kernel kills a thread that blocks them. vmio itself blocks SIGBUS, and never
/// SIGSEGV: a handler of the program's that interrupts it may touch a file.
fn never_blocked() -> impl Iterator<Item = c_int> {
    let of_leases = (leased::is_on() && !entry::is_inside()).then_some(libc::SIGBUS);
    let of_machine = machine::is_on().then_some(libc::SIGSEGV);
    of_leases.into_iter().chain(of_machine)
}

/// A mask without [`never_blocked`].
///
/// # Safety
/// `set` is null or a set.
pub(super) unsafe fn unblocked(how: c_int, set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: by the caller.
    let mut set = unsafe { set.as_ref() }.copied().filter(|_| how != libc::SIG_UNBLOCK)?;
    // SAFETY: the copy is ours.
    let removed = never_blocked().map(|signal| unsafe { libc::sigdelset(&raw mut set, signal) }).count();
    (removed > 0).then_some(set)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: by the caller.
    let ours = unsafe { unblocked(how, set) };
    // SAFETY: by the caller.
    unsafe { real::sigprocmask(how, ours.as_ref().map_or(set, ptr::from_ref), before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    if never_blocked().any(|never| never == signal) {
        return 0;
    }
    // SAFETY: by the caller.
    unsafe { real::sighold(signal) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: by the caller.
    let ours = unsafe { unblocked(how, set) };
    // SAFETY: by the caller.
    unsafe { real::pthread_sigmask(how, ours.as_ref().map_or(set, ptr::from_ref), before) }
}

/// Makes a call that waits, with a mask without [`never_blocked`], since handlers may run meanwhile.
///
/// # Safety
/// `set` is null or a set, and `call` lasts no longer than this.
unsafe fn waiting<T>(set: *const sigset_t, call: impl FnOnce(*const sigset_t) -> T) -> T {
    // SAFETY: by the caller.
    let ours = unsafe { unblocked(libc::SIG_SETMASK, set) };
    call(ours.as_ref().map_or(set, ptr::from_ref))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigsuspend(set: *const sigset_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::sigsuspend(set)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(files: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::ppoll(files, count, timeout, set)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    files: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    set: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::__ppoll_chk(files, count, timeout, set, room)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    set: *const sigset_t,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::pselect(count, readable, writable, exceptional, timeout, set)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    set: *const sigset_t,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::epoll_pwait(epoll, events, count, timeout_ms, set)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    set: *const sigset_t,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { waiting(set, |set| real::epoll_pwait2(epoll, events, count, timeout, set)) }
}
