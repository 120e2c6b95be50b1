//! The older functions that install signal handlers, and the kernel's own call. The C library's versions do not call `sigaction` by name,
//! so these replace them.

use std::ffi::{c_int, c_long, c_uint, c_ulong};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sigaction as Action, sighandler_t, sigset_t};

use super::signals::{is_shared, shared_action, sigaction, sigprocmask, unblocked};
use crate::real;

/// `SIG_HOLD` of the C library: blocks the signal, or says that it was blocked.
const SIG_HOLD: sighandler_t = 2;

/// Whether SIGBUS interrupts system calls under handlers that `signal` installs from now on; set by `siginterrupt`.
static INTERRUPTS: AtomicBool = AtomicBool::new(false);

/// A set of that signal alone, or of none.
fn set_of(signal: Option<c_int>) -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the set is ours, and zeros are an empty set.
    unsafe {
        signal.map(|signal| libc::sigaddset(set.as_mut_ptr(), signal));
        set.assume_init()
    }
}

/// Installs a handler of SIGBUS with these flags; returns the former handler, or `SIG_ERR`.
fn handled(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: zeros are valid: no flags, an empty set.
    let (mut action, mut before) =
        unsafe { (MaybeUninit::<Action>::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: both are ours; the program has passed the handler as one.
    match unsafe { sigaction(signal, &raw const action, &raw mut before) } {
        0 => before.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::signal(signal, handler) };
    }
    handled(signal, handler, if INTERRUPTS.load(Ordering::Relaxed) { 0 } else { libc::SA_RESTART })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: by the caller.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: by the caller.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::__sysv_signal(signal, handler) };
    }
    handled(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: by the caller.
    unsafe { __sysv_signal(signal, handler) }
}

/// Blocks or unblocks a signal; returns whether it was blocked.
fn masked(how: c_int, signal: c_int) -> bool {
    let (set, mut before) = (set_of(Some(signal)), set_of(None));
    // SAFETY: both are ours.
    unsafe {
        sigprocmask(how, &raw const set, &raw mut before) == 0 && libc::sigismember(&raw const before, signal) == 1
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::sigset(signal, handler) };
    }
    let mut before = MaybeUninit::<Action>::zeroed();
    if handler == SIG_HOLD {
        let was_held = masked(libc::SIG_BLOCK, signal);
        // SAFETY: the action is ours, and zeros are a valid one.
        let before = unsafe {
            sigaction(signal, ptr::null(), before.as_mut_ptr());
            before.assume_init().sa_sigaction
        };
        return if was_held { SIG_HOLD } else { before };
    }
    let before = handled(signal, handler, 0);
    if masked(libc::SIG_UNBLOCK, signal) { SIG_HOLD } else { before }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::sigignore(signal) };
    }
    if handled(signal, libc::SIG_IGN, 0) == libc::SIG_ERR { -1 } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if !is_shared(signal) {
        // SAFETY: by the caller.
        return unsafe { real::siginterrupt(signal, interrupts) };
    }
    INTERRUPTS.store(interrupts != 0, Ordering::Relaxed);
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: the action is ours, and `sigaction` has filled it.
    unsafe {
        if sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
            return -1;
        }
        let mut action = action.assume_init();
        action.sa_flags =
            if interrupts != 0 { action.sa_flags & !libc::SA_RESTART } else { action.sa_flags | libc::SA_RESTART };
        sigaction(signal, &raw const action, ptr::null_mut())
    }
}

/// The structure of `sigvec`, which only old programs use.
#[repr(C)]
struct OldAction {
    handler: sighandler_t,
    mask: c_uint,
    flags: c_int,
}

/// Its flags, and their present names; the second has the opposite meaning.
const SV_ONSTACK: c_int = 1;
const SV_INTERRUPT: c_int = 2;
const SV_RESETHAND: c_int = 4;

// For all signals: the C library hides its own function from new programs, and so from us.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigvec(signal: c_int, action: *const OldAction, before: *mut OldAction) -> c_int {
    // SAFETY: by the caller the pointer is null or an action; zeros are a valid action, too.
    let (ours, mut found) = unsafe {
        let ours = action.as_ref().map(|old| {
            let mut action: Action = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = old.handler;
            (&raw mut action.sa_mask).cast::<u64>().write_unaligned(old.mask.into());
            for (is_asked, flag) in [
                (old.flags & SV_ONSTACK != 0, libc::SA_ONSTACK),
                (old.flags & SV_INTERRUPT == 0, libc::SA_RESTART),
                (old.flags & SV_RESETHAND != 0, libc::SA_RESETHAND),
            ] {
                action.sa_flags |= if is_asked { flag } else { 0 };
            }
            action
        });
        (ours, MaybeUninit::<Action>::zeroed().assume_init())
    };
    // SAFETY: both are ours; the program has passed the handler as one.
    let status = unsafe { sigaction(signal, ours.as_ref().map_or(ptr::null(), ptr::from_ref), &raw mut found) };
    if status == 0 && !before.is_null() {
        let flags = [
            (found.sa_flags & libc::SA_ONSTACK != 0, SV_ONSTACK),
            (found.sa_flags & libc::SA_RESTART == 0, SV_INTERRUPT),
            (found.sa_flags & libc::SA_RESETHAND != 0, SV_RESETHAND),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        // SAFETY: a set is longer than the old mask. By the caller there is room for one action.
        unsafe {
            let mask = (&raw const found.sa_mask).cast::<c_uint>().read();
            before.write(OldAction { handler: found.sa_sigaction, mask, flags });
        }
    }
    status
}

/// The kernel's structure, on the architectures that vmio is built for.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

/// The kernel's rt_sigaction by `syscall`; `None` if the kernel must do it.
///
/// # Safety
/// The arguments are those of the system call.
pub(super) unsafe fn rt_sigaction(signal: c_int, action: c_long, before: c_long, set_bytes: c_long) -> Option<c_long> {
    if !is_shared(signal) || set_bytes != size_of::<u64>() as c_long || vmio_has_none(signal) {
        return None;
    }
    // SAFETY: by the caller the pointer is null or an action of the kernel's; zeros are a valid action of the C library's.
    let (ours, mut found) = unsafe {
        let ours = (action as *const KernelAction).as_ref().map(|theirs| {
            let mut action: Action = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = theirs.handler;
            action.sa_flags = theirs.flags as c_int;
            (&raw mut action.sa_mask).cast::<u64>().write_unaligned(theirs.mask);
            action
        });
        (ours, MaybeUninit::<Action>::zeroed().assume_init())
    };
    // SAFETY: both are ours; the program has passed the handler as one.
    let status = unsafe { sigaction(signal, ours.as_ref().map_or(ptr::null(), ptr::from_ref), &raw mut found) };
    if status == 0 && before != 0 {
        // SAFETY: a set is longer than the kernel's mask. By the caller there is room for one action of the kernel's.
        unsafe {
            let mask = (&raw const found.sa_mask).cast::<u64>().read_unaligned();
            let (handler, flags) = (found.sa_sigaction, found.sa_flags as c_uint as c_ulong);
            (before as *mut KernelAction).write(KernelAction { handler, flags, restorer: 0, mask });
        }
    }
    Some(status.into())
}

/// Whether vmio has no handler of the signal in this process.
fn vmio_has_none(signal: c_int) -> bool {
    // SAFETY: the call only stores the present action, in this frame.
    unsafe { shared_action(signal, None) }.is_none()
}

/// The set to pass to the kernel's rt_sigprocmask by `syscall`; `None` to pass the program's own.
///
/// # Safety
/// As of the system call.
pub(super) unsafe fn rt_sigprocmask_set(how: c_int, set: c_long, set_bytes: c_long) -> Option<u64> {
    if set == 0 || set_bytes != size_of::<u64>() as c_long {
        return None;
    }
    // SAFETY: by the caller it is a set of the kernel's, and the copy is as long as one of the C library's.
    unsafe {
        let mut copy = set_of(None);
        (&raw mut copy).cast::<u64>().write_unaligned((set as *const u64).read_unaligned());
        unblocked(how, &raw const copy).map(|set| (&raw const set).cast::<u64>().read_unaligned())
    }
}
