//! System calls of threads in the machine: the host executes them in the same thread, so that nearly all of them mean the same.

use libc::{CLONE_VFORK, CLONE_VM, ENOSYS, SIGCHLD};

use crate::bases;
use crate::calls::held::{self, Turn};
use crate::calls::memory::{Call, put_word, value_at};
use crate::calls::waits;
use crate::counters::Counters;
use crate::monitor::Monitor;
use crate::native;
use crate::raw;
use crate::resume::{self, BASIC, BASIC_BYTES, ChildFrame, State};
use crate::signals::{Action, Signals};

/// A call that Linux does not have: the thread goes on outside. Outside it fails with ENOSYS.
pub(crate) const LEAVE: u64 = 0x0766_1000;
/// Another: whether the thread is in the machine.
pub(crate) const IS_INSIDE: u64 = 0x0766_1001;

/// Of the stub alone: the program's fault handler has run at ring 3.
pub(crate) const HANDLED: u64 = 0x0766_1002;
/// Of the stub alone: the program's holder has had its turn.
pub(crate) const HELD: u64 = 0x0766_1004;

/// Executes the call in the program's registers.
pub(crate) fn system_call(monitor: &mut Monitor<'_>) {
    Counters::count(&monitor.block.counters.system_calls);
    let registers = *monitor.registers();
    let call = Call::of(&registers);
    let [first, second, third, fourth, fifth, _] = call.arguments;
    const SPAWN: u64 = SIGCHLD as u64;
    const VFORK: u64 = (CLONE_VFORK | CLONE_VM | SIGCHLD) as u64;
    let number = call.number;
    let answer = match number as i64 {
        libc::SYS_clone => clone(monitor, first, second, third, fourth, fifth),
        libc::SYS_fork => clone(monitor, SPAWN, 0, 0, 0, 0),
        libc::SYS_vfork => clone(monitor, VFORK, 0, 0, 0, 0),
        // The C library takes clone(2) then, whose arguments are all in registers.
        libc::SYS_clone3 => -ENOSYS as u64,
        libc::SYS_exit => end_thread(monitor, first),
        libc::SYS_arch_prctl if bases::are_set(first) => monitor.arch_prctl(first, second),
        libc::SYS_rt_sigreturn => return monitor.return_from_handler(registers.rsp),
        _ if number == LEAVE => leave(monitor),
        _ if number == IS_INSIDE => 1,
        _ if number == HANDLED => return monitor.handled(first & 1 == 1),
        _ if number == HELD => return monitor.held(first),
        libc::SYS_rt_sigprocmask if monitor.is_in_handler() => keep_mask(&call),
        // No signal comes while it is at work, and it has what it needs.
        // SAFETY: the call and its arguments are the program's own, which may do all that its process may.
        _ if monitor.is_in_handler() => unsafe { raw::call(number, call.arguments) },
        _ if held::is_needed(monitor.block.machine, &call) => match held::refusal_of(&call) {
            None => return monitor.have_turn(Turn::Begin),
            Some(refusal) => refusal,
        },
        _ => make(monitor, &call),
    };
    monitor.return_from_call(answer);
}

/// Makes a call of the program's.
fn make(monitor: &mut Monitor<'_>, call: &Call) -> u64 {
    match call.number as i64 {
        libc::SYS_rt_sigprocmask => set_mask(monitor, call),
        libc::SYS_rt_sigaction => set_action(call),
        // It may ask for a base.
        libc::SYS_arch_prctl => {
            monitor.bases_go_out();
            // SAFETY: as in `system_call`.
            unsafe { raw::call(call.number, call.arguments) }
        }
        _ if waits::may_wait(call) => monitor.call_outside(),
        // SAFETY: as in `system_call`.
        _ => unsafe { raw::call(call.number, call.arguments) },
    }
}

/// Makes the call in the program's registers, whose memory is held.
pub(crate) fn make_held(monitor: &mut Monitor<'_>) {
    let call = Call::of(monitor.registers());
    let answer = make(monitor, &call);
    end(monitor, answer);
}

/// Answers the program, after the end of the hold if there is one. The program's registers are as the call has left them.
pub(crate) fn end(monitor: &mut Monitor<'_>, answer: u64) {
    let held = &mut monitor.block.held;
    let answer = held.explain(answer);
    if !held.is_any() {
        return monitor.return_from_call(answer);
    }
    held.answer = answer;
    monitor.have_turn(Turn::End);
}

/// rt_sigprocmask(2): the kernel's mask is the monitor's meanwhile.
fn set_mask(monitor: &mut Monitor<'_>, call: &Call) -> u64 {
    let [how, new, old, bytes, ..] = call.arguments;
    // A thread gets this mask from the one that starts it, by the C library.
    let before = monitor.blocked_outside();
    let changed = match (bytes, new) {
        (8, 0) => None,
        (8, _) => match value_at(new as usize).map(|set| before.changed(how, Signals(set))) {
            Some(Some(changed)) => Some(changed),
            Some(None) => return failed(libc::EINVAL),
            None => return failed(libc::EFAULT),
        },
        _ => return failed(libc::EINVAL),
    };
    if old != 0 && !put_word(old as usize, before.0) {
        return failed(libc::EFAULT);
    }
    if let Some(changed) = changed {
        monitor.block.blocked = changed;
        monitor.block.deferral.is_by_mask_now();
    }
    0
}

/// rt_sigprocmask(2) in the fault handler or the holder: all signals are blocked, and stay so until its end. But abort(3) must end the process.
fn keep_mask(call: &Call) -> u64 {
    let [how, new, old, bytes, ..] = call.arguments;
    match bytes {
        8 if how == libc::SIG_UNBLOCK as u64 && value_at(new as usize) == Some(Signals::of(libc::SIGABRT)) => {
            // SAFETY: as in `system_call`. A handler of the program's would run on the monitor's stack, and the process end after it.
            unsafe { raw::call(call.number, call.arguments) }
        }
        8 if old == 0 || put_word(old as usize, Signals::OF_MONITOR.0) => 0,
        8 => failed(libc::EFAULT),
        _ => failed(libc::EINVAL),
    }
}

/// rt_sigaction(2): the handler brings threads back that it interrupts in the machine.
fn set_action(call: &Call) -> u64 {
    let mut arguments = call.arguments;
    let mut action = match arguments[1] {
        0 => None,
        place => match value_at::<Action>(place as usize) {
            Some(action) => Some(action.coming_back()),
            None => return failed(libc::EFAULT),
        },
    };
    arguments[1] = action.as_mut().map_or(0, |action| &raw mut *action as u64);
    // SAFETY: the call is the program's own; the kernel reads the structure.
    unsafe { raw::call(call.number, arguments) }
}

fn failed(errno: i32) -> u64 {
    -i64::from(errno) as u64
}

/// Goes on outside, after the call.
fn leave(monitor: &mut Monitor<'_>) -> ! {
    let registers = monitor.registers();
    (registers.rax, registers.rip, registers.rflags) = (0, registers.rcx, registers.r11);
    monitor.leave()
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
    monitor.bases_go_out();
    let extended = monitor.extended();
    let mut registers = *monitor.registers();
    (registers.rip, registers.rflags, registers.rax) = (registers.rcx, registers.r11, 0);
    if stack != 0 {
        registers.rsp = stack;
    }
    let frame = ChildFrame::place(registers.rsp);
    let state = State { bytes: &extended.0[..BASIC_BYTES], states: BASIC };
    // SAFETY: the stack is the one that the program has given to the child, its own if it gave none: there the frame is below the red zone. The
    // flags and pointers are the program's.
    unsafe {
        ChildFrame::write(frame, &registers, monitor.blocked_outside(), Some(state));
        resume::clone(flags, frame, parent_thread, child_thread, thread_data)
    }
}

/// The processor is free once the thread is gone.
fn end_thread(monitor: &mut Monitor<'_>, code: u64) -> ! {
    let all = u64::MAX;
    // SAFETY: blocks the signals of a thread that ends; the set lives meanwhile. From then on nothing but `end_thread` uses the stack.
    unsafe {
        let set = [libc::SIG_SETMASK as u64, &raw const all as u64, 0, size_of::<u64>() as u64, 0, 0];
        raw::call(libc::SYS_rt_sigprocmask as u64, set);
        native::end_thread(monitor.block.state.as_ptr(), code)
    }
}
