//! Handlers touch managed memory whatever the program blocks: SIGSEGV, by which they enter, is never blocked.

#![allow(clippy::unwrap_used)]

#[path = "support/in_call.rs"]
mod in_call;
#[path = "support/managed.rs"]
mod managed;
mod support;

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vmio_ring0::{is_inside, leave};

const IO_PGETEVENTS: i64 = 333;

static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn touches(_: libc::c_int) {
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    // A page that was not touched before.
    assert!(managed::touch(taken as usize));
}

fn all() -> libc::sigset_t {
    // SAFETY: the C library fills the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

fn of(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn install(signal: i32, mask: libc::sigset_t) {
    // SAFETY: the handler does what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = touches as *const () as usize;
        action.sa_mask = mask;
        assert_eq!(libc::sigaction(signal, &raw const action, ptr::null_mut()), 0);
    }
}

/// Makes a call that a signal interrupts, and whose arguments are in their registers afterwards.
fn interrupted(number: i64, arguments: [u64; 6]) {
    let before = TAKEN.load(Ordering::Relaxed);
    let mut after = arguments;
    let [rdi, rsi, rdx, r10, r8, r9] = &mut after;
    let answer: i64;
    let sender = in_call::signal_in_call(number);
    // SAFETY: the caller's call reads what its arguments point to.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            inout("rdi") *rdi,
            inout("rsi") *rsi,
            inout("rdx") *rdx,
            inout("r10") *r10,
            inout("r8") *r8,
            inout("r9") *r9,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    sender.join().unwrap();
    assert_eq!((answer, after), (-i64::from(libc::EINTR), arguments), "call {number}");
    assert_eq!(TAKEN.load(Ordering::Relaxed), before + 1, "call {number}");
    assert!(is_inside(), "call {number}");
}

#[test]
fn a_handler_in_a_call_with_a_mask_touches_managed_memory() {
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    machine.enter().unwrap();
    install(libc::SIGUSR1, all());
    let set = !of(libc::SIGUSR1);
    let place = &raw const set as u64;
    let structure = [place, 8];
    let pointer = &raw const structure as u64;
    // SAFETY: descriptors of this test.
    let epoll = unsafe { libc::epoll_create1(0) } as u64;
    let mut events = [0_u8; 64];
    let events = events.as_mut_ptr() as u64;
    interrupted(libc::SYS_rt_sigsuspend, [place, 8, 0, 0, 0, 0]);
    interrupted(libc::SYS_ppoll, [0, 0, 0, place, 8, 0]);
    interrupted(libc::SYS_pselect6, [0, 0, 0, 0, 0, pointer]);
    interrupted(libc::SYS_epoll_pwait, [epoll, events, 1, u64::MAX, place, 8]);
    interrupted(libc::SYS_epoll_pwait2, [epoll, events, 1, 0, place, 8]);
    let mut context = 0_u64;
    // SAFETY: the kernel writes the word.
    if unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) } == 0 {
        interrupted(IO_PGETEVENTS, [context, 1, 1, events, 0, pointer]);
    }
    let mut parameters = [0_u8; 120];
    // SAFETY: the kernel writes the structure.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring >= 0 {
        const GET_EVENTS: u64 = 1;
        const HAS_STRUCTURE: u64 = 8;
        interrupted(libc::SYS_io_uring_enter, [ring as u64, 0, 1, GET_EVENTS, place, 8]);
        let arguments = [place, 8, 0];
        let arguments = [ring as u64, 0, 1, GET_EVENTS | HAS_STRUCTURE, &raw const arguments as u64, 24];
        interrupted(libc::SYS_io_uring_enter, arguments);
    }
    leave();
}

#[test]
fn a_handler_that_was_installed_outside_touches_managed_memory() {
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    install(libc::SIGUSR1, all());
    machine.enter().unwrap();
    let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
    interrupted(libc::SYS_nanosleep, [&raw const time as u64, 0, 0, 0, 0, 0]);
    leave();
}

#[test]
fn a_mask_stays_as_it_is_read() {
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    let blocked = || {
        let mut set = 0_u64;
        // SAFETY: the kernel writes the set.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut set, 8) };
        set
    };
    let all = all();
    // SAFETY: blocks signals of this thread; the handler does what handlers may.
    unsafe {
        // As a thread may begin.
        let failed = libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, 0, 8);
        assert_eq!(failed, 0);
        machine.enter().unwrap();
        let all_that_may_be = blocked();
        assert_eq!(all_that_may_be & of(libc::SIGSEGV), 0);
        assert_ne!(all_that_may_be & of(libc::SIGUSR2), 0);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, 0, 8);
        assert_eq!(blocked(), all_that_may_be);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(blocked(), all_that_may_be);
        install(libc::SIGUSR1, std::mem::zeroed());
        libc::raise(libc::SIGUSR1);
        let all_others = !of(libc::SIGUSR1);
        libc::sigsuspend((&raw const all_others).cast());
        assert_eq!((TAKEN.load(Ordering::Relaxed), blocked()), (1, all_that_may_be));
    }
    assert!(is_inside());
    leave();
}

#[test]
fn a_fault_handler_leaves_the_monitors_mask_as_it_is() {
    static MASKS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    fn changes_its_mask() {
        let mut before = [0_u64; 2];
        // SAFETY: the kernel reads and writes the words.
        unsafe {
            let call =
                |how: i32, new: *const u64, old: *mut u64| libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, 8);
            call(libc::SIG_BLOCK, ptr::from_ref(&u64::MAX), &raw mut before[0]);
            // As the C library has it, which never blocks some signals of its own.
            before[0] &= !of(32);
            call(libc::SIG_SETMASK, &raw const before[0], ptr::null_mut());
        }
        let mut text = [0_u8; 4096];
        // SAFETY: reads into an array of ours, by a call that the monitor makes.
        let len = unsafe {
            let file = libc::open(c"/proc/thread-self/status".as_ptr(), libc::O_RDONLY);
            let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
            libc::close(file);
            len.max(0) as usize
        };
        let field = b"SigBlk:\t";
        let at = text[..len].windows(field.len()).position(|part| part == field).map_or(len, |at| at + field.len());
        let digits = text[at..len].iter().map_while(|digit| char::from(*digit).to_digit(16));
        MASKS[0].store(digits.fold(0, |mask, digit| mask << 4 | u64::from(digit)), Ordering::Relaxed);
        MASKS[1].store(before[0] | of(32), Ordering::Relaxed);
    }
    let Some(machine) = support::machine() else { return };
    managed::AT_FAULT.get_or_init(|| changes_its_mask);
    managed::manage(machine);
    machine.enter().unwrap();
    assert!(managed::touch(3));
    leave();
    let all = !(of(libc::SIGKILL) | of(libc::SIGSTOP));
    assert_eq!(
        [&MASKS[0], &MASKS[1]].map(|mask| format!("{:x}", mask.load(Ordering::Relaxed))),
        [0; 2].map(|_| format!("{all:x}"))
    );
}
