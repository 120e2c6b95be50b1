//! Threads of the program that wait for a moment, since memory comes in faster than it can be given up.
//!
//! A process without rights can stop one of its threads only by a signal. SIGURG is for that: by default it is ignored, also where it comes too
//! late, in a program that has taken this one's place; and calls that it interrupts go on (SA_RESTART).

use std::io;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys::futex;

/// Threads that are sent the signal wait while this is 1.
static IS_HOLDING: AtomicU32 = AtomicU32::new(0);
/// How long, at most, and in how many parts: a handler of the program's ends a part. Whoever is held may have a lock that somebody else waits for.
const PART: Duration = Duration::from_millis(25);
const PARTS: u32 = 8;

/// From now on threads that are sent the signal wait. False if the program has taken the signal for itself.
pub(crate) fn begin() -> io::Result<bool> {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the present action into a sigaction of ours.
    if unsafe { libc::sigaction(libc::SIGURG, ptr::null(), present.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are a valid sigaction, and the kernel has written one.
    let present = unsafe { present.assume_init() }.sa_sigaction;
    if present == libc::SIG_DFL {
        if !install()? {
            return Ok(false);
        }
    } else if present != on_signal as *const () as usize {
        return Ok(false);
    }
    IS_HOLDING.store(1, Ordering::SeqCst);
    Ok(true)
}

/// Those that wait go on.
pub(crate) fn end() {
    if IS_HOLDING.swap(0, Ordering::SeqCst) != 0 {
        futex::wake_all(&IS_HOLDING);
    }
}

/// Has a thread of this process wait, once it is in the program's own code.
pub(crate) fn thread(id: i32) {
    // SAFETY: a signal whose handler is ours; where the thread has ended nothing happens, and where it blocks it, it stays pending.
    unsafe { libc::syscall(libc::SYS_tgkill, process::id() as libc::pid_t, id, libc::SIGURG) };
}

/// False if the program has installed a handler meanwhile, which stays.
fn install() -> io::Result<bool> {
    // SAFETY: a zeroed sigaction is valid; the fields that matter are set below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler does as handlers must: it waits, and touches nothing but a word that is never freed.
    unsafe {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        if libc::sigaction(libc::SIGURG, &action, before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let is_free = before.assume_init_ref().sa_sigaction == libc::SIG_DFL;
        if !is_free {
            libc::sigaction(libc::SIGURG, before.as_ptr(), ptr::null_mut());
        }
        Ok(is_free)
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: the address of the thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    for _ in 0..PARTS {
        if IS_HOLDING.load(Ordering::SeqCst) == 0 {
            break;
        }
        futex::wait_for(&IS_HOLDING, 1, PART);
    }
    // SAFETY: the address of the thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::sys::task_stat;

    fn state_of(id: i32) -> char {
        let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap();
        task_stat::state(&stat).unwrap()
    }

    #[test]
    fn a_thread_waits_until_it_may_go_on() {
        let (count, (tell, told)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
        let its = Arc::clone(&count);
        let worker = thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            while its.fetch_add(1, Ordering::Relaxed) < 1 << 60 {}
        });
        let id = told.recv().unwrap();
        assert!(begin().unwrap());
        super::thread(id);
        while state_of(id) != 'S' {
            thread::yield_now();
        }
        // Asleep, it counts no further until it may.
        let seen = count.load(Ordering::Relaxed);
        end();
        while count.load(Ordering::Relaxed) == seen {
            thread::yield_now();
        }
        // The signal by itself is nothing to it, and a handler of the program's has nobody held.
        super::thread(id);
        // SAFETY: ignores a signal.
        let ours = unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        assert!(!begin().unwrap());
        // SAFETY: what it was.
        unsafe { libc::signal(libc::SIGURG, ours) };
        count.store(1 << 60, Ordering::Relaxed);
        worker.join().unwrap();
    }
}
