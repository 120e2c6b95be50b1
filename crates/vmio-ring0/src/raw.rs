//! System calls that touch neither errno nor the thread's own data: the monitor shares both with the program that it runs.

use std::arch::asm;

/// A system call with its six arguments; an error is -errno.
///
/// # Safety
/// The caller vouches for what the call does with its arguments.
pub(crate) unsafe fn call(number: u64, arguments: [u64; 6]) -> u64 {
    let answer;
    // SAFETY: the caller vouches for the call. Its instruction changes these registers and, as the call says, memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// The error in an answer, if it is one.
pub(crate) fn error_of(answer: u64) -> Option<i32> {
    let answer = answer as i64;
    (-4095..0).contains(&answer).then_some(-answer as i32)
}

/// ioctl(2) with a pointer or a number.
///
/// # Safety
/// The caller vouches for what the request does with its argument.
pub(crate) unsafe fn ioctl(descriptor: i32, request: u64, argument: u64) -> u64 {
    // SAFETY: the caller vouches for it.
    unsafe { call(libc::SYS_ioctl as u64, [descriptor as u64, request, argument, 0, 0, 0]) }
}

/// Has the kernel grow a stack of the process down to an address where nothing is mapped yet. False if something is, or no stack is above. The caller
/// has all signals blocked.
pub(crate) fn stack_grows_to(address: u64) -> bool {
    const PAGE_BYTES: u64 = 4096;
    let mut state = 0_u8;
    let page = address & !(PAGE_BYTES - 1);
    // SAFETY: the kernel writes a byte for the page.
    let told = unsafe { call(libc::SYS_mincore as u64, [page, PAGE_BYTES, &raw mut state as u64, 0, 0, 0]) };
    if error_of(told) != Some(libc::ENOMEM) {
        return false;
    }
    // A touch by the kernel, for which it grows a stack as for the program's own; what others do by the process's addresses, as KVM does, is not one.
    // SAFETY: the kernel reads a set there if it can, and blocks its signals, which are blocked.
    let touched = unsafe { call(libc::SYS_rt_sigprocmask as u64, [libc::SIG_BLOCK as u64, page, 0, 8, 0, 0]) };
    error_of(touched).is_none()
}

/// The handler of a signal, past libraries that replace sigaction(2): an address, or SIG_DFL or SIG_IGN.
pub(crate) fn handler_of(signal: i32) -> u64 {
    // As the kernel has an action: handler, flags, restorer, mask.
    let mut action = [0_u64; 4];
    // SAFETY: the kernel writes the structure, whose mask has eight bytes.
    unsafe { call(libc::SYS_rt_sigaction as u64, [signal as u64, 0, action.as_mut_ptr() as u64, 8, 0, 0]) };
    action[0]
}

/// Sets a signal's action back to the default, in the same way.
pub(crate) fn set_default_action(signal: i32) {
    let action = [0_u64; 4];
    // SAFETY: the kernel reads the structure, whose mask has eight bytes; the default action runs no code.
    unsafe { call(libc::SYS_rt_sigaction as u64, [signal as u64, action.as_ptr() as u64, 0, 8, 0, 0]) };
}

/// Ends the process with a message, where nothing else can be said: by SIGABRT, so that there is a core dump.
pub(crate) fn die(message: &str, number: u64) -> ! {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    while at > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for part in ["vmio-ring0: ".as_bytes(), message.as_bytes(), b" ", &digits[at..], b"\n"] {
        // SAFETY: write(2) reads a slice that lives meanwhile.
        unsafe { call(libc::SYS_write as u64, [2, part.as_ptr() as u64, part.len() as u64, 0, 0, 0]) };
    }
    // SAFETY: neither call touches memory of the process; with the default action in place the signal ends it.
    unsafe {
        let none = 0_u64;
        set_default_action(libc::SIGABRT);
        call(libc::SYS_rt_sigprocmask as u64, [libc::SIG_SETMASK as u64, &raw const none as u64, 0, 8, 0, 0]);
        let process = call(libc::SYS_getpid as u64, [0; 6]);
        call(libc::SYS_kill as u64, [process, libc::SIGABRT as u64, 0, 0, 0, 0]);
        loop {
            call(libc::SYS_exit_group as u64, [134, 0, 0, 0, 0, 0]);
        }
    }
}
