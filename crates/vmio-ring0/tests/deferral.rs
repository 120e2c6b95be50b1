//! Signals that wait for the end of a deferral, which takes no exit.

#![allow(clippy::unwrap_used)]

#[path = "support/managed.rs"]
mod managed;
mod support;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use vmio_ring0::{Level, Machine, SignalsDeferred, is_at_ring_0, leave};

static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn take(_: libc::c_int) {
    assert!(!is_at_ring_0());
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

fn taken() -> u32 {
    TAKEN.load(Ordering::Relaxed)
}

fn handle(signal: i32, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: the handlers do what handlers may.
    unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
}

fn send_to_itself() {
    // SAFETY: sends a signal that is handled.
    unsafe { libc::raise(libc::SIGUSR1) };
}

/// A machine at ring 0 that the calling thread has entered, and a handler of SIGUSR1.
fn entered() -> Option<&'static Machine> {
    let machine = support::machine()?;
    if machine.level() == Level::Ring3 {
        test_depth::skipped("signals are deferred at ring 0 alone");
        return None;
    }
    handle(libc::SIGUSR1, take);
    machine.enter().unwrap();
    Some(machine)
}

fn mask() -> Vec<i32> {
    // SAFETY: the C library writes the set, and reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set);
        (1..=64).filter(|signal| libc::sigismember(&raw const set, *signal) == 1).collect()
    }
}

fn set_mask(how: libc::c_int, signal: libc::c_int) {
    // SAFETY: the C library writes the set, and the kernel reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
    }
}

/// With the signals of the C library.
fn kernels_mask() -> u64 {
    let mut set = 0_u64;
    // SAFETY: the kernel writes the set.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut set, 8) };
    set
}

/// Runs a body in a child, and returns the child's status.
fn status_of(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child does what children may, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = body();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_signal_waits_for_the_end() {
    let Some(_) = entered() else { return };
    let deferred = SignalsDeferred::new().unwrap();
    let inner = SignalsDeferred::new().unwrap();
    send_to_itself();
    drop(inner);
    // Calls that wait are made outside, where none comes, either.
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(taken(), 0);
    drop(deferred);
    assert_eq!(taken(), 1);
    assert!(is_at_ring_0());
    send_to_itself();
    assert_eq!(taken(), 2);
    leave();
}

#[test]
fn a_signal_of_another_thread_waits() {
    static IS_SENT: AtomicBool = AtomicBool::new(false);
    let Some(_) = entered() else { return };
    // SAFETY: names the thread, which waits for the sender.
    let thread = unsafe { libc::pthread_self() };
    let deferred = SignalsDeferred::new().unwrap();
    let sender = std::thread::spawn(move || {
        // SAFETY: as above.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        IS_SENT.store(true, Ordering::Release);
    });
    while !IS_SENT.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    assert_eq!(taken(), 0);
    drop(deferred);
    // The processor may be told some instructions later.
    while taken() == 0 {
        std::hint::spin_loop();
    }
    sender.join().unwrap();
    leave();
}

/// Those of the thread's own instructions are not blocked by the kernel, either.
#[test]
fn a_sigbus_does_not_wait() {
    let Some(_) = entered() else { return };
    handle(libc::SIGBUS, take);
    let _deferred = SignalsDeferred::new().unwrap();
    // SAFETY: sends a signal that is handled.
    unsafe { libc::raise(libc::SIGBUS) };
    assert_eq!(taken(), 1);
    assert!(is_at_ring_0());
    leave();
}

/// Nor is that of a page which nobody could bring in, whatever the program blocks.
#[test]
fn a_refusal_does_not_wait() {
    let Some(machine) = entered() else { return };
    leave();
    handle(libc::SIGBUS, take);
    managed::manage(machine);
    for page in 0..2 {
        if page == 1 {
            set_mask(libc::SIG_BLOCK, libc::SIGBUS);
        }
        assert!(managed::touch(9) && is_at_ring_0());
        let deferred = SignalsDeferred::new().unwrap();
        managed::REFUSALS.store(1, Ordering::Relaxed);
        assert!(managed::touch(page));
        assert_eq!(taken(), page as u32 + 1);
        drop(deferred);
        assert_eq!(mask().contains(&libc::SIGBUS), page == 1);
        leave();
    }
}

#[test]
fn a_mask_that_is_set_meanwhile_counts() {
    let Some(_) = entered() else { return };
    let before = mask();
    let deferred = SignalsDeferred::new().unwrap();
    assert!(mask().contains(&libc::SIGUSR1));
    send_to_itself();
    assert_eq!(taken(), 0);
    set_mask(libc::SIG_UNBLOCK, libc::SIGUSR1);
    assert_eq!(taken(), 1);
    set_mask(libc::SIG_BLOCK, libc::SIGUSR1);
    let inner = SignalsDeferred::new().unwrap();
    send_to_itself();
    drop(inner);
    assert_eq!(taken(), 1);
    drop(deferred);
    assert_eq!((taken(), mask()), (2, before));
    leave();
}

/// In a deferral, and in the fault handler.
#[test]
fn abort_ends_the_process() {
    let Some(_) = entered() else { return };
    leave();
    for in_handler in [false, true] {
        let status = status_of(|| {
            // SAFETY: nothing dumps core here.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
            let machine = entered().unwrap();
            if in_handler {
                leave();
                managed::manage(machine);
                managed::AT_FAULT.set(|| std::process::abort()).unwrap();
                return managed::touch(0);
            }
            let _deferred = SignalsDeferred::new().unwrap();
            std::process::abort();
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:x}, {in_handler}");
    }
}

#[test]
fn a_deferral_needs_no_exit() {
    let Some(machine) = entered() else { return };
    let before = machine.counts_of_thread();
    for _ in 0..1000 {
        drop(SignalsDeferred::new().unwrap());
    }
    assert_eq!(machine.counts_of_thread().exits, before.exits);
    leave();
}

/// Faults on managed memory are handled meanwhile.
#[test]
fn a_signal_waits_through_faults() {
    let Some(machine) = entered() else { return };
    leave();
    managed::manage(machine);
    assert!(managed::touch(0) && is_at_ring_0());
    let deferred = SignalsDeferred::new().unwrap();
    send_to_itself();
    assert!((1..9).all(managed::touch));
    assert_eq!(taken(), 0);
    drop(deferred);
    assert_eq!(taken(), 1);
    leave();
}

/// A thread that leaves because of an access that the host refuses comes back, and has its own mask again afterwards.
#[test]
fn a_signal_waits_while_the_thread_is_outside() {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn allow(_: libc::c_int) {
        send_to_itself();
        let page = PAGE.load(Ordering::Relaxed) as *mut libc::c_void;
        // SAFETY: the page is the test's.
        assert_eq!(unsafe { libc::mprotect(page, managed::PAGE_BYTES, libc::PROT_READ) }, 0);
        assert_eq!(taken(), 0);
    }
    let Some(_) = entered() else { return };
    handle(libc::SIGSEGV, allow);
    // SAFETY: a new mapping.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), managed::PAGE_BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    PAGE.store(page as usize, Ordering::Relaxed);
    let before = mask();
    let deferred = SignalsDeferred::new().unwrap();
    // SAFETY: the handler has allowed loads before this returns.
    assert_eq!(unsafe { page.cast::<u8>().read_volatile() }, 0);
    assert!(is_at_ring_0());
    assert_eq!(taken(), 0);
    drop(deferred);
    assert_eq!(taken(), 1);
    assert_eq!(mask(), before);
    leave();
    assert_eq!(mask(), before);
}

#[test]
fn a_deferral_may_end_outside() {
    let Some(_) = entered() else { return };
    let before = mask();
    let deferred = SignalsDeferred::new().unwrap();
    send_to_itself();
    leave();
    assert_eq!(taken(), 0);
    drop(deferred);
    assert_eq!(taken(), 1);
    assert_eq!(mask(), before);
}

#[test]
fn threads_and_processes_that_begin_meanwhile_have_signals_blocked() {
    let Some(machine) = entered() else { return };
    let before = mask();
    let deferred = SignalsDeferred::new().unwrap();
    let of_thread = std::thread::spawn(|| (mask(), kernels_mask())).join().unwrap();
    let mut deferred = Some(deferred);
    let status = status_of(|| {
        let meanwhile = mask();
        drop(deferred.take());
        meanwhile.contains(&libc::SIGUSR1) && mask() == before
    });
    assert_eq!(status, 0);
    drop(deferred);
    for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGALRM] {
        assert!(of_thread.0.contains(&signal), "{signal}");
    }
    // The C library has all threads answer these.
    assert_eq!(of_thread.1 & (0b11 << (32 - 1)), 0, "{:x}", of_thread.1);
    assert_eq!(std::thread::spawn(mask).join().unwrap(), before);
    machine.enter().unwrap();
    leave();
}

/// The next thread with the processor has its signals.
#[test]
fn a_thread_that_ends_amid_a_deferral_leaves_nothing_behind() {
    let Some(machine) = entered() else { return };
    leave();
    let thread = || {
        machine.enter().unwrap();
        std::mem::forget(SignalsDeferred::new().unwrap());
        leave();
    };
    std::thread::spawn(thread).join().unwrap();
    let thread = || {
        machine.enter().unwrap();
        send_to_itself();
        assert_eq!(taken(), 1);
        leave();
    };
    std::thread::spawn(thread).join().unwrap();
}
