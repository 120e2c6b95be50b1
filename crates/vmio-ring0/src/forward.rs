//! System calls of threads in the machine: the host executes them in the same thread, so that nearly all of them mean the same.

use std::sync::atomic::Ordering;

use libc::{CLONE_VFORK, CLONE_VM, ENOSYS, SIGCHLD};

use crate::calls::held;
use crate::calls::memory::Call;
use crate::counters::Counters;
use crate::monitor::Monitor;
use crate::native::{self, ChildFrame, Registers};
use crate::raw;

/// A call that Linux does not have: the thread goes on outside. Outside it fails with ENOSYS.
pub(crate) const LEAVE: u64 = 0x0766_1000;
/// Another: whether the thread is in the machine.
pub(crate) const IS_INSIDE: u64 = 0x0766_1001;

/// Of the stub alone: the program's fault handler has run at ring 3.
pub(crate) const HANDLED: u64 = 0x0766_1002;
/// Of the stub alone: the program's holder has made a call.
pub(crate) const MADE: u64 = 0x0766_1003;

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
/// The length of SYSCALL.
const INSTRUCTION_BYTES: u64 = 2;

/// Executes the call in the program's registers.
pub(crate) fn system_call(monitor: &mut Monitor<'_>) {
    Counters::count(&monitor.block.counters.system_calls);
    let registers = *monitor.registers();
    let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    let [first, second, third, fourth, fifth, _] = arguments;
    const SPAWN: u64 = SIGCHLD as u64;
    const VFORK: u64 = (CLONE_VFORK | CLONE_VM | SIGCHLD) as u64;
    let number = registers.rax;
    let answer = match number as i64 {
        libc::SYS_clone => clone(monitor, first, second, third, fourth, fifth),
        libc::SYS_fork => clone(monitor, SPAWN, 0, 0, 0, 0),
        libc::SYS_vfork => clone(monitor, VFORK, 0, 0, 0, 0),
        // The C library takes clone(2) then, whose arguments are all in registers.
        libc::SYS_clone3 => -ENOSYS as u64,
        libc::SYS_exit => end_thread(monitor, first),
        libc::SYS_arch_prctl => set_base(monitor, first, second),
        libc::SYS_rt_sigreturn => outside(monitor),
        _ if number == LEAVE => leave(monitor),
        _ if number == IS_INSIDE => 1,
        _ if number == HANDLED => return monitor.handled(first & 1 == 1),
        _ if number == MADE => monitor.call_was_made(first),
        _ if !monitor.is_in_handler() && held::is_needed(monitor.block.machine, &Call { number, arguments }) => {
            return monitor.have_call_made();
        }
        // SAFETY: the call and its arguments are the program's own, which may do all that its process may.
        _ => unsafe { raw::call(number, arguments) },
    };
    monitor.regain();
    monitor.return_from_call(answer);
}

/// Goes on outside, after the call.
fn leave(monitor: &mut Monitor<'_>) -> ! {
    let registers = monitor.registers();
    (registers.rax, registers.rip, registers.rflags) = (0, registers.rcx, registers.r11);
    monitor.leave()
}

/// Goes on outside with the call itself, which takes its stack for an argument.
fn outside(monitor: &mut Monitor<'_>) -> ! {
    let registers = monitor.registers();
    (registers.rip, registers.rflags) = (registers.rcx - INSTRUCTION_BYTES, registers.r11);
    monitor.depart()
}

/// A new thread or process goes on outside the machine: a thread may enter by itself, and a process is not one of the machine's.
fn clone(
    monitor: &mut Monitor<'_>,
    flags: u64,
    stack: u64,
    parent_thread: u64,
    child_thread: u64,
    thread_data: u64,
) -> u64 {
    let extended = monitor.extended();
    let mut registers = *monitor.registers();
    (registers.rip, registers.rflags, registers.rax) = (registers.rcx, registers.r11, 0);
    if stack != 0 {
        registers.rsp = stack;
    }
    let registers = Registers::of(&registers);
    let frame = ChildFrame::place(&registers);
    // SAFETY: the stack is the one that the program has given to the child, its own if it gave none: there the frame is below the red zone. The
    // flags and pointers are the program's.
    unsafe {
        ChildFrame::write(frame, registers, &extended);
        native::clone(flags, frame, parent_thread, child_thread, thread_data)
    }
}

/// The processor is free once the thread is gone.
fn end_thread(monitor: &mut Monitor<'_>, code: u64) -> ! {
    monitor.block.is_active.store(false, Ordering::Relaxed);
    let all = u64::MAX;
    // SAFETY: blocks the signals of a thread that ends; the set lives meanwhile. From then on nothing but `end_thread` uses the stack.
    unsafe {
        let set = [libc::SIG_SETMASK as u64, &raw const all as u64, 0, size_of::<u64>() as u64, 0, 0];
        raw::call(libc::SYS_rt_sigprocmask as u64, set);
        native::end_thread(monitor.block.state.as_ptr(), code)
    }
}

/// The bases of FS and GS are those of the thread outside, too: there handlers of signals run.
fn set_base(monitor: &mut Monitor<'_>, which: u64, base: u64) -> u64 {
    // SAFETY: the call is the program's own.
    let answer = unsafe { raw::call(libc::SYS_arch_prctl as u64, [which, base, 0, 0, 0, 0]) };
    if answer != 0 || !matches!(which, ARCH_SET_FS | ARCH_SET_GS) {
        return answer;
    }
    let descriptor = monitor.block.descriptor;
    let mut sregs = kvm_bindings::kvm_sregs::default();
    // SAFETY: KVM writes the structure, which lives meanwhile.
    let got = unsafe { raw::ioctl(descriptor, GET_SREGS, &raw mut sregs as u64) };
    let segment = if which == ARCH_SET_FS { &mut sregs.fs } else { &mut sregs.gs };
    segment.base = base;
    // SAFETY: KVM reads the structure.
    let set = unsafe { raw::ioctl(descriptor, SET_SREGS, &raw const sregs as u64) };
    if let Some(error) = raw::error_of(got).or(raw::error_of(set)) {
        raw::die("setting the base of a segment failed, errno", error as u64);
    }
    answer
}
