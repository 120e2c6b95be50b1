//! The base of GS is the same in the machine and outside, whoever sets it.

#![allow(clippy::unwrap_used)]

#[path = "support/in_call.rs"]
mod in_call;
mod support;

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio_ring0::{is_inside, leave};

fn base() -> u64 {
    let mut base = 0_u64;
    const ARCH_GET_GS: i32 = 0x1004;
    // SAFETY: the kernel writes the word.
    assert_eq!(unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) }, 0);
    base
}

/// By the instruction, in a register that its encoding has in another byte.
fn read() -> u64 {
    let base;
    // SAFETY: the test has asked the kernel whether the instruction is allowed.
    unsafe { asm!("rdgsbase r13", out("r13") base, options(nomem, nostack, preserves_flags)) };
    base
}

fn write(base: u64) {
    // SAFETY: as above. Nobody uses GS.
    unsafe { asm!("wrgsbase {}", in(reg) base, options(nomem, nostack, preserves_flags)) };
}

fn has_instructions() -> bool {
    const HWCAP2_FS_GS_BASE: u64 = 1 << 1;
    // SAFETY: asks for a number.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FS_GS_BASE != 0;
    if !has {
        test_depth::skipped("the processor or the kernel has no WRGSBASE");
    }
    has
}

static SEEN: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);

extern "C" fn sees(_: libc::c_int) {
    SEEN.store(read(), Ordering::Relaxed);
    let next = NEXT.load(Ordering::Relaxed);
    if next != 0 {
        write(next);
    }
}

#[test]
fn a_base_goes_in_and_out() {
    let Some(machine) = support::machine() else { return };
    if !has_instructions() {
        return;
    }
    // SAFETY: the handler reads and writes a register that nobody uses.
    unsafe { libc::signal(libc::SIGUSR1, sees as *const () as libc::sighandler_t) };
    machine.enter().unwrap();
    let raise = || {
        // SAFETY: the handler is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
        SEEN.load(Ordering::Relaxed)
    };
    for value in [0x1234_5000, 0x7000_0000_0000_u64, 7] {
        write(value);
        assert_eq!((read(), base(), raise(), read(), is_inside()), (value, value, value, value, true));
    }
    leave();
    assert_eq!((read(), base()), (7, 7));
    write(8);
    machine.enter().unwrap();
    assert_eq!((read(), base(), raise()), (8, 8, 8));
    write(9);
    // SAFETY: the child ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(read() != 9));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!((status, read()), (0, 9));
    }
    leave();
}

#[test]
fn a_handler_amid_a_call_changes_a_base() {
    let Some(machine) = support::machine() else { return };
    if !has_instructions() {
        return;
    }
    // SAFETY: as above; the thread is named until it has joined the sender.
    unsafe { libc::signal(libc::SIGUSR1, sees as *const () as libc::sighandler_t) };
    machine.enter().unwrap();
    write(0x5000);
    NEXT.store(0x6000, Ordering::Relaxed);
    let sender = in_call::signal_in_call(libc::SYS_clock_nanosleep);
    let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
    // SAFETY: the kernel reads the time.
    assert_eq!(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) }, -1);
    assert_eq!((SEEN.load(Ordering::Relaxed), read(), is_inside()), (0x5000, 0x6000, true));
    sender.join().unwrap();
    leave();
}
