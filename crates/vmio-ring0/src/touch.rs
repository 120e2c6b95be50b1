//! Threads outside that touch managed memory enter the machine: those that never did, and those that have left it because of a trap.
//!
//! Outside, managed memory is not there, and the touch is a SIGSEGV. Its handler has all registers of the program, so the thread goes on in the
//! machine with the very instruction.

use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{Error, Result};
use crate::machine::{self, Machine};
use crate::raw;
use crate::signals;

/// The program's action, from [`Box`]; none while the handler is not installed. Former ones stay, since a handler may be about to call them.
static PROGRAMS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Sets the program's action for a SIGSEGV that is not of managed memory, and returns the previous one; without an action only returns it. `None` if
/// [`Machine::enter_on_touch`] has not installed its handler: the caller then calls the C library. For libraries that replace sigaction(2).
///
/// # Safety
/// The action's handler must be valid for sigaction(2). From now on any thread may call it.
pub unsafe fn segv_action(action: Option<libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: actions stay for good.
    let before = unsafe { PROGRAMS.load(Ordering::Acquire).as_ref() }?;
    let Some(action) = action else { return Some(*before) };
    let before = PROGRAMS.swap(Box::into_raw(Box::new(action)), Ordering::AcqRel);
    // SAFETY: as above; it was not null, and nobody makes it so.
    Some(unsafe { *before })
}

/// The error code of a store, in a context.
const STORE: i64 = 1 << 1;

impl Machine {
    /// From now on a thread enters when it touches managed memory outside. A page that the program's handler cannot bring in is a SIGBUS then, as
    /// with a mapped file. Other SIGSEGVs are those of the program's action, which must be there already.
    ///
    /// # Errors
    ///
    /// Those of sigaction(2).
    pub fn enter_on_touch(&'static self) -> Result<()> {
        let failed = "installing a handler of SIGSEGV";
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: reads the present action into a structure of ours, which is valid as zeros.
        let previous = unsafe {
            if libc::sigaction(libc::SIGSEGV, ptr::null(), previous.as_mut_ptr()) != 0 {
                return Err(Error::system(failed)(std::io::Error::last_os_error()));
            }
            previous.assume_init()
        };
        let handler = on_segv as *const () as usize;
        if previous.sa_sigaction == handler {
            return Ok(());
        }
        let kept = Box::into_raw(Box::new(previous));
        if PROGRAMS.compare_exchange(ptr::null_mut(), kept, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(kept) });
        }
        // SAFETY: a zeroed action is valid; the handler is of the kind that the flags say, and does what handlers may.
        let done = unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut())
        };
        signals::come_back_after_all();
        if done == 0 { Ok(()) } else { Err(Error::system(failed)(std::io::Error::last_os_error())) }
    }
}

extern "C" fn on_segv(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both to such a handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_fault = code > 0;
    if is_fault && let Some(machine) = machine::of_process().filter(|machine| machine.space.is_managed(address)) {
        if !machine::take_refusal(machine, address) {
            // SAFETY: the context is this handler's, which has all signals blocked. It returns if the thread cannot enter.
            unsafe { machine.enter_from(context.cast()) };
        }
        // SAFETY: as above.
        let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
        if error & STORE == 0 || !machine.space.is_read_only(address) {
            // SAFETY: as above.
            return unsafe { send_sigbus(address, &mut *context.cast()) };
        }
    }
    chain(signal, info, context);
}

/// Has the thread take a SIGBUS for the address when the handler returns, with the registers of the touch.
fn send_sigbus(address: usize, context: &mut libc::ucontext_t) {
    insist_on_sigbus(context);
    #[repr(C)]
    struct Info {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        address: usize,
        rest: [usize; 13],
    }
    const _: () = assert!(size_of::<Info>() == 128 && offset_of!(Info, address) == 16);
    let info = Info { signal: libc::SIGBUS, errno: 0, code: libc::BUS_ADRERR, padding: 0, address, rest: [0; 13] };
    // SAFETY: the kernel reads the structure. A process may send itself a signal that looks like the kernel's.
    unsafe {
        let process = raw::call(libc::SYS_getpid as u64, [0; 6]);
        let thread = raw::call(libc::SYS_gettid as u64, [0; 6]);
        let arguments = [process, thread, libc::SIGBUS as u64, &raw const info as u64, 0, 0];
        raw::call(libc::SYS_rt_tgsigqueueinfo as u64, arguments);
    }
}

/// As the kernel does with the signal of a fault: a program that ignores or blocks it ends.
fn insist_on_sigbus(context: &mut libc::ucontext_t) {
    // SAFETY: the set is the context's.
    let is_blocked = unsafe { libc::sigismember(&raw const context.uc_sigmask, libc::SIGBUS) } == 1;
    if is_blocked || raw::handler_of(libc::SIGBUS) == libc::SIG_IGN as u64 {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut context.uc_sigmask, libc::SIGBUS) };
        raw::set_default_action(libc::SIGBUS);
    }
}

/// Does what would have happened without this handler.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: actions stay for good.
    let Some(previous) = (unsafe { PROGRAMS.load(Ordering::Acquire).as_ref() }) else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction is executed again, and ends the process.
            raw::set_default_action(signal);
            // SAFETY: the kernel passes the structure to such a handler. Sent by a process, the signal does not come again by itself.
            unsafe {
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        // SAFETY: the program has installed this address as a handler of the kind that its flags say.
        handler => unsafe {
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        },
    }
}
