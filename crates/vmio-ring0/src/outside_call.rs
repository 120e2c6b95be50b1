//! System calls that may wait: the thread makes them outside the machine, with the program's registers, stack and mask of signals. So a handler of a
//! signal that comes meanwhile finds what it would find without the machine, and may jump away.
//!
//! Vector registers stay with the virtual processor: a handler that enters by it has them kept first ([`Interrupted`]).
//!
//! The call's own instruction is in this file. Below the red zone of the program's stack is where the program goes on, which debuggers find.

use std::arch::global_asm;
use std::mem::{MaybeUninit, offset_of};
use std::ops::RangeInclusive;

use kvm_bindings::kvm_regs;

use crate::block::Block;
use crate::calls::masks::Replacement;
use crate::calls::memory::Call;
use crate::monitor;
use crate::native::{Extended, Registers, set_general};
use crate::resume::{self, ChildFrame};
use crate::signals::Signals;

/// The program's stack after the call, from the lowest address on.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CallFrame {
    /// After the call, but for those that the instruction changes.
    pub(crate) general: [u64; Registers::GENERAL],
    pub(crate) number: u64,
    pub(crate) block: u64,
    pub(crate) rip: u64,
    /// If the call has a mask of signals for its time.
    pub(crate) mask: Replacement,
}

impl CallFrame {
    /// The program's registers, as SYSCALL leaves them.
    pub(crate) fn registers(&self) -> kvm_regs {
        let mut registers = kvm_regs::default();
        set_general(&mut registers, &self.general);
        registers.rsp = (&raw const *self).addr() as u64 + (size_of::<CallFrame>() + RED_ZONE_BYTES) as u64;
        (registers.rip, registers.rcx, registers.rflags) = (self.rip, self.rip, registers.r11);
        let call = Call { number: self.number, ..Call::of(&registers) };
        if let Some((index, argument)) = self.mask.of_program(&call) {
            *Call::argument_in(&mut registers, index) = argument;
        }
        registers
    }
}

/// After a call in which a handler of a signal has forked, in the child: that is in no machine.
///
/// # Safety
/// The frame is the call's, on the program's stack. The block, of zeros but for it, has the mask of signals.
unsafe extern "C" fn go_on_in_child(block: *const Block, frame: *const CallFrame) -> ! {
    let mut context = MaybeUninit::<ChildFrame>::uninit();
    // SAFETY: the caller vouches for both, and the memory for the context is this function's.
    unsafe {
        ChildFrame::write(context.as_mut_ptr(), &(*frame).registers(), (*block).blocked, None);
        resume::resume(ChildFrame::context(context.as_ptr()))
    }
}

/// The extended states of calls that are not over while the processor runs something else: handlers of signals, on top of each other.
#[repr(C)]
pub(crate) struct Interrupted {
    /// The stack pointer of the call whose state the processor has, or 0.
    present: u64,
    /// The place that was given away last while its state was needed.
    next: usize,
    kept: [Kept; KEPT_MAX],
}

/// Older ones are lost: their calls go on with the state that a thread begins with.
const KEPT_MAX: usize = 4;

#[repr(C)]
struct Kept {
    /// The call's, or 0.
    rsp: u64,
    extended: Extended,
}

impl Interrupted {
    /// Whether nothing else has run in the machine since the call with this stack pointer has begun.
    pub(crate) fn is_present(&self, rsp: u64) -> bool {
        self.present == rsp
    }

    /// A call begins, whose extended state is the processor's.
    pub(crate) fn begin(&mut self, rsp: u64) {
        self.present = rsp;
        // An earlier one there was jumped out of.
        self.take(rsp);
    }

    /// Before the processor runs something else: where its extended state is to be kept, if it is a call's.
    pub(crate) fn keep(&mut self) -> Option<&mut Extended> {
        let rsp = std::mem::take(&mut self.present);
        if rsp == 0 {
            return None;
        }
        let place = self.kept.iter().position(|kept| kept.rsp == 0).unwrap_or_else(|| {
            self.next += 1;
            self.next % KEPT_MAX
        });
        let kept = &mut self.kept[place];
        kept.rsp = rsp;
        Some(&mut kept.extended)
    }

    /// At the end of a call: the state that the processor must have again, if it has another one.
    pub(crate) fn end(&mut self, rsp: u64) -> Option<&Extended> {
        if std::mem::take(&mut self.present) == rsp {
            return None;
        }
        self.take(rsp)
    }

    /// Forgets the state that was kept for a call, and says what it was.
    fn take(&mut self, rsp: u64) -> Option<&Extended> {
        let kept = self.kept.iter_mut().find(|kept| kept.rsp == rsp)?;
        kept.rsp = 0;
        Some(&kept.extended)
    }
}

/// Between the frame and the program's stack pointer.
pub(crate) const RED_ZONE_BYTES: usize = 128;
/// From the stack pointer of the call's instruction to that of the program: below the red zone are the mask, where the program goes on, the block and the
/// call's number.
const BELOW_BYTES: usize = RED_ZONE_BYTES + size_of::<Replacement>() + 3 * size_of::<u64>();

global_asm!(
    ".globl ring0_outside_call, ring0_outside_call_instruction, ring0_outside_call_end",
    ".hidden ring0_outside_call, ring0_outside_call_instruction, ring0_outside_call_end",
    ".balign 16",
    ".cfi_startproc",
    // The instruction before the address is not a call.
    ".cfi_signal_frame",
    ".cfi_register rip, rcx",
    // RCX is where the program goes on, R11 the block: the system call changes both.
    "ring0_outside_call:",
    "leaq -{below}(%rsp), %rsp",
    ".cfi_def_cfa_offset {below}",
    "movq %rcx, 16(%rsp)",
    ".cfi_offset rip, -{above} - 8",
    "movq %r11, 8(%rsp)",
    "movq %rax, (%rsp)",
    "ring0_outside_call_instruction:",
    "syscall",
    ".cfi_def_cfa rsp, {below}",
    "pushq %rax",
    "pushq %rbx",
    "pushq %rcx",
    "pushq %rdx",
    "pushq %rbp",
    "pushq %rsi",
    "pushq %rdi",
    "pushq %r8",
    "pushq %r9",
    "pushq %r10",
    "pushq %r11",
    "pushq %r12",
    "pushq %r13",
    "pushq %r14",
    "pushq %r15",
    ".cfi_def_cfa_offset {red_zone} + {frame}",
    "cld",
    "movq {block}(%rsp), %rbx",
    // From here on no handler comes in between: the block is this call's.
    "movl ${set_mask}, %eax",
    "movl ${by_set}, %edi",
    "leaq {of_monitor}(%rip), %rsi",
    "leaq {blocked}(%rbx), %rdx",
    "movl $8, %r10d",
    "syscall",
    "movq %rbx, %rdi",
    "movq %rsp, %rsi",
    "xorl %ebp, %ebp",
    ".cfi_undefined rip",
    "movq {monitor_stack}(%rbx), %rax",
    // A forked child finds zeros there.
    "testq %rax, %rax",
    "jz 1f",
    "movq %rax, %rsp",
    "callq {come_back}",
    "ud2",
    "1:",
    "andq $-16, %rsp",
    "callq {go_on_in_child}",
    "ud2",
    "ring0_outside_call_end:",
    ".cfi_endproc",
    above = const RED_ZONE_BYTES + size_of::<Replacement>(),
    red_zone = const RED_ZONE_BYTES,
    below = const BELOW_BYTES,
    frame = const size_of::<CallFrame>(),
    block = const offset_of!(CallFrame, block),
    set_mask = const libc::SYS_rt_sigprocmask,
    by_set = const libc::SIG_SETMASK,
    of_monitor = sym OF_MONITOR,
    blocked = const offset_of!(Block, blocked),
    monitor_stack = const offset_of!(Block, monitor_stack),
    come_back = sym monitor::come_back,
    go_on_in_child = sym go_on_in_child,
    options(att_syntax)
);

static OF_MONITOR: Signals = Signals::OF_MONITOR;

unsafe extern "C" {
    static ring0_outside_call: [u8; 0];
    static ring0_outside_call_instruction: [u8; 0];
    static ring0_outside_call_end: [u8; 0];
}

/// Where a thread begins the call: RAX has its number and the others its arguments, RCX has where the program goes on, R11 the block.
pub(crate) fn start() -> u64 {
    (&raw const ring0_outside_call).addr() as u64
}

/// The program's stack pointer, if a thread outside with these registers is about to make such a call, or to make it again.
pub(crate) fn stack_before(registers: &kvm_regs) -> Option<u64> {
    let instruction = (&raw const ring0_outside_call_instruction).addr() as u64;
    let kvm_regs { rip, rsp, .. } = *registers;
    match rip {
        _ if rip == start() => Some(rsp),
        _ if (start()..=instruction).contains(&rip) => Some(rsp + BELOW_BYTES as u64),
        _ => None,
    }
}

/// Whether a thread outside is about to make such a call, or has made it.
pub(crate) fn is_at(rip: u64) -> bool {
    let end = (&raw const ring0_outside_call_end).addr() as u64;
    RangeInclusive::new(start(), end).contains(&rip)
}
