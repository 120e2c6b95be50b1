//! Makes threads of the program wait for a moment, while memory comes in faster than it can be given up.
//!
//! A process without privileges can stop one of its threads only by a signal. vmio uses SIGURG. By default it is
//! ignored, even if it arrives late, in a program that this process has executed since. And calls that it interrupts go
//! on (SA_RESTART).

use std::io;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use vmio_core::futex;

/// Threads that get the signal wait while this is 1.
static IS_HOLDING: AtomicU32 = AtomicU32::new(0);
/// The longest wait is [`PARTS`] of these parts: a handler of the program ends a part. The limit is there since a held
/// thread may have a lock that another waits for.
const PART: Duration = Duration::from_millis(25);
const PARTS: u32 = 8;

/// From now on threads that get the signal wait. False if the program uses the signal itself.
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

/// Lets all waiting threads go on.
pub(crate) fn end() {
    if IS_HOLDING.swap(0, Ordering::SeqCst) != 0 {
        futex::wake_all(&IS_HOLDING);
    }
}

/// Makes a thread of this process wait, once it is in the program's own code.
pub(crate) fn thread(id: i32) {
    // SAFETY: the signal has a handler of ours. If the thread has ended nothing happens; if it blocks the signal, that
    // stays pending.
    unsafe { libc::syscall(libc::SYS_tgkill, process::id() as libc::pid_t, id, libc::SIGURG) };
}

/// Installs the handler. False if the program has installed one meanwhile, which stays.
fn install() -> io::Result<bool> {
    // SAFETY: a zeroed sigaction is valid; the fields that matter are set below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler does as handlers must: it waits, and touches only a word that is never freed.
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

#[cfg(test)]
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
        // A thread that sleeps does not count on until it may.
        let seen = count.load(Ordering::Relaxed);
        end();
        while count.load(Ordering::Relaxed) == seen {
            thread::yield_now();
        }
        // Without a hold the signal does nothing to the thread. A handler of the program's prevents holds.
        super::thread(id);
        // SAFETY: ignores a signal.
        let ours = unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        assert!(!begin().unwrap());
        // SAFETY: puts the former action back.
        unsafe { libc::signal(libc::SIGURG, ours) };
        count.store(1 << 60, Ordering::Relaxed);
        worker.join().unwrap();
    }
}
