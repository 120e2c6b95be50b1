//! Calls that wait, and handlers of signals that do much meanwhile.

#![allow(clippy::unwrap_used)]

#[path = "support/in_call.rs"]
mod in_call;
#[path = "support/managed.rs"]
mod managed;
mod support;

use std::arch::asm;
use std::error::Error as _;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use vmio_ring0::{Error, Level, Machine, is_inside, leave};

/// Sleeps until a signal comes, with a word in a vector register; returns what it finds there.
#[inline(never)]
fn sleep_with(word: u64) -> (i64, u64) {
    let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
    let (answer, found): (i64, u64);
    // SAFETY: the kernel reads the time.
    unsafe {
        asm!(
            "movq xmm9, {word}",
            "syscall",
            "movq {found}, xmm9",
            word = in(reg) word,
            found = lateout(reg) found,
            inlateout("rax") libc::SYS_nanosleep => answer,
            in("rdi") &raw const time,
            in("rsi") 0,
            lateout("rcx") _,
            lateout("r11") _,
            out("xmm9") _,
        );
    }
    (answer, found)
}

#[test]
fn a_call_ends_with_its_own_vector_registers() {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touches(_: libc::c_int) {
        assert!(managed::touch(PAGE.fetch_add(1, Ordering::Relaxed)));
        // SAFETY: a register that handlers may use.
        unsafe { asm!("pxor xmm9, xmm9", out("xmm9") _) };
    }
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    // SAFETY: the handler touches managed memory.
    unsafe { libc::signal(libc::SIGUSR1, touches as *const () as libc::sighandler_t) };
    machine.enter().unwrap();
    for round in 1..7 {
        let sender = in_call::signal_in_call(libc::SYS_nanosleep);
        assert_eq!(sleep_with(round), (-i64::from(libc::EINTR), round));
        assert!(is_inside());
        sender.join().unwrap();
    }
    leave();
}

#[test]
fn a_handler_in_a_call_forks() {
    static CHILD: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn forks(_: libc::c_int) {
        // SAFETY: the child returns from the handler, as its parent does.
        CHILD.store(unsafe { libc::fork() }, Ordering::Relaxed);
    }
    let Some(machine) = support::machine() else { return };
    machine.enter().unwrap();
    // SAFETY: a handler that does what handlers may.
    unsafe { libc::signal(libc::SIGUSR1, forks as *const () as libc::sighandler_t) };
    let mask = |set: Option<u64>| {
        let mut before = 0_u64;
        let set = set.as_ref().map_or(0, |set| &raw const *set as u64);
        // SAFETY: the kernel reads the one set, and writes the other.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, &raw mut before, 8) };
        before
    };
    const USR2: u64 = 1 << (libc::SIGUSR2 - 1);
    mask(Some(USR2));
    let sender = in_call::signal_in_call(libc::SYS_nanosleep);
    let (answer, _) = sleep_with(1);
    let child = CHILD.load(Ordering::Relaxed);
    let is_right = answer == -i64::from(libc::EINTR) && mask(None) == USR2;
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_right || is_inside())) };
    }
    assert!(child > 0 && is_right && is_inside());
    let mut status = -1;
    // SAFETY: the kernel writes the word.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    sender.join().unwrap();
    leave();
}

#[test]
fn a_child_may_forbid_calls_that_linux_does_not_have() {
    extern "C" fn nothing(_: libc::c_int) {}
    let Some(machine) = support::machine() else { return };
    machine.enter().unwrap();
    // SAFETY: the handler does nothing. The child installs a filter, and ends.
    unsafe {
        libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t);
        let child = libc::fork();
        if child == 0 {
            let statement = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
            let filter = [
                statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
                statement(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 1000),
                statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS),
                statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
            libc::raise(libc::SIGUSR1);
            libc::_exit(i32::from(is_inside()));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    leave();
}

/// The kernel tells a thread of its io_uring requests as of a signal, though none comes: KVM then gives up for the time being (EINTR).
#[test]
fn a_machine_is_made_while_requests_end() {
    if support::machine().is_none() {
        return;
    }
    // SAFETY: the child makes a machine of its own, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = std::panic::catch_unwind(|| {
            let mut uring: io_uring::IoUring = io_uring::IoUring::builder().setup_cqsize(32 << 10).build(1).unwrap();
            let tick = io_uring::types::Timespec::new().nsec(20_000);
            let flags = io_uring::types::TimeoutFlags::MULTISHOT;
            let timeout = io_uring::opcode::Timeout::new(&raw const tick).count(0).flags(flags).build();
            // SAFETY: the kernel reads the time now.
            unsafe { uring.submission().push(&timeout).unwrap() };
            uring.submit().unwrap();
            let started = match Machine::start(Level::Ring0) {
                Err(Error::Ring0Emulated | Error::OtherLevel { .. }) => Machine::start(Level::Ring3),
                started => started,
            };
            if let Err(error) = started {
                panic!("{error}: {:?}", error.source());
            }
            assert!(uring.completion().count() > 0, "no request ended");
        });
        // SAFETY: ends the child without its parent's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the kernel writes the word.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
