//! Guest code: where system calls, traps and interrupts of a virtual processor enter, and how it returns from them.
//!
//! A stub stores nothing on the program's stack, under whose end a function may keep data (the red zone), and leaves GS to the program: what it
//! needs of its virtual processor is at the top of the interrupt stack.

use std::arch::{global_asm, naked_asm};
use std::mem::offset_of;
use std::ops::Range;

use crate::block::Block;
use crate::calls::held;
use crate::faults;
use crate::forward;
use crate::native::Registers;

/// Traps of the processor's own.
pub(crate) const TRAPS: usize = 32;
/// The page fault among them.
pub(crate) const PAGE_FAULT: u64 = 14;
/// An instruction that the processor does not have.
pub(crate) const INVALID_INSTRUCTION: u64 = 6;
/// INT3.
pub(crate) const BREAKPOINT: u64 = 3;
/// How a program of 32 bits calls the kernel.
pub(crate) const CALL_32: u64 = 0x80;
/// The distance between stubs of traps.
const STUB_BYTES: usize = 16;

/// The port that forwards a system call.
pub(crate) const SYSTEM_CALL_PORT: u16 = 0xe0;
/// The port that hands a trap to the monitor, with a [`TrapFrame`] on the stack.
pub(crate) const TRAP_PORT: u16 = 0xe1;
/// The port that tells the monitor that a stub ends, for whose end a signal waits.
pub(crate) const LEAVE_PORT: u16 = 0xe3;
/// The port that says that ring 0 works.
pub(crate) const PROBE_PORT: u16 = 0xe2;

/// The stack of a trap, from the lowest address on.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TrapFrame {
    /// The address of a page fault.
    pub(crate) address: u64,
    pub(crate) general: [u64; Registers::GENERAL],
    pub(crate) vector: u64,
    pub(crate) error: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

global_asm!(
    // Rust names these in other codegen units, too, and the linker finds only global symbols there; outside of the program nobody sees them.
    ".irp name, traps, page_fault, page_fault_leaves, page_fault_end, ring_3_fault, held_call, call_32, system_call, return, probe, end",
    ".globl ring0_stub_\\name",
    ".hidden ring0_stub_\\name",
    ".endr",
    ".balign 16",
    "ring0_stub_traps:",
    ".set ring0_stub_vector, 0",
    ".rept {traps}",
    ".balign {stub_bytes}",
    // Of these vectors the processor has pushed an error code.
    ".if (0x60227d00 >> ring0_stub_vector) & 1",
    ".else",
    "pushq $0",
    ".endif",
    "pushq $ring0_stub_vector",
    "jmp ring0_stub_trap",
    ".set ring0_stub_vector, ring0_stub_vector + 1",
    ".endr",
    ".balign {stub_bytes}",
    // A page fault at ring 0 goes to the handler's stack at once: whatever faults there has this one again.
    "ring0_stub_page_fault:",
    "pushq %rax",
    "pushq %rcx",
    "pushq %rdx",
    // Behind the three and what the processor has pushed.
    "movq 72(%rsp), %rdx",
    "cmpl $0, {in_handler}(%rdx)",
    "jne 3f",
    "movl $1, {in_handler}(%rdx)",
    "movq {handler_frame}(%rdx), %rax",
    "movq (%rsp), %rcx",
    "movq %rcx, {general} + 11 * 8(%rax)",
    "movq 8(%rsp), %rcx",
    "movq %rcx, {general} + 12 * 8(%rax)",
    "movq 16(%rsp), %rcx",
    "movq %rcx, {general} + 14 * 8(%rax)",
    "movq 24(%rsp), %rcx",
    "movq %rcx, {error}(%rax)",
    "movq 32(%rsp), %rcx",
    "movq %rcx, {rip}(%rax)",
    "movq 40(%rsp), %rcx",
    "movq %rcx, {rip} + 8(%rax)",
    "movq 48(%rsp), %rcx",
    "movq %rcx, {rip} + 16(%rax)",
    "movq 56(%rsp), %rcx",
    "movq %rcx, {rip} + 24(%rax)",
    "movq 64(%rsp), %rcx",
    "movq %rcx, {rip} + 32(%rax)",
    "movq %r15, {general}(%rax)",
    "movq %r14, {general} + 8(%rax)",
    "movq %r13, {general} + 2 * 8(%rax)",
    "movq %r12, {general} + 3 * 8(%rax)",
    "movq %r11, {general} + 4 * 8(%rax)",
    "movq %r10, {general} + 5 * 8(%rax)",
    "movq %r9, {general} + 6 * 8(%rax)",
    "movq %r8, {general} + 7 * 8(%rax)",
    "movq %rdi, {general} + 8 * 8(%rax)",
    "movq %rsi, {general} + 9 * 8(%rax)",
    "movq %rbp, {general} + 10 * 8(%rax)",
    "movq %rbx, {general} + 13 * 8(%rax)",
    "movq ${page_fault}, {vector}(%rax)",
    "movq %cr2, %rcx",
    "movq %rcx, {address}(%rax)",
    "movq %rax, %rsp",
    "movq %rdx, %rbx",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xsave64 {extended}(%rbx)",
    // As functions expect it; the program's is saved.
    "movl ${mxcsr_default}, -8(%rsp)",
    "ldmxcsr -8(%rsp)",
    "cld",
    "movq %rbx, %rdi",
    "movq %rsp, %rsi",
    "xorl %ebp, %ebp",
    // Shootdowns may come: they have a stack of their own.
    "sti",
    "callq {on_page_fault}",
    "cli",
    "movl %eax, %ecx",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xrstor64 {extended}(%rbx)",
    "testb %cl, %cl",
    "jz 4f",
    // In this order: a monitor that finds the handler at work knows that it will be told.
    "movl $0, {in_handler}(%rbx)",
    "cmpl $0, {leave_wanted}(%rbx)",
    // From here on the monitor takes the frame in place of what is left to do.
    "ring0_stub_page_fault_leaves:",
    "jne 5f",
    "addq $8, %rsp",
    "popq %r15",
    "popq %r14",
    "popq %r13",
    "popq %r12",
    "popq %r11",
    "popq %r10",
    "popq %r9",
    "popq %r8",
    "popq %rdi",
    "popq %rsi",
    "popq %rbp",
    "popq %rdx",
    "popq %rcx",
    "popq %rbx",
    "popq %rax",
    "addq $16, %rsp",
    "iretq",
    "5:",
    "outb %al, ${leave_port}",
    "ring0_stub_page_fault_end:",
    "ud2",
    // The same at ring 3, where the monitor has put the frame. The call does not return.
    "ring0_stub_ring_3_fault:",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xsave64 {extended}(%rbx)",
    "movl ${mxcsr_default}, -8(%rsp)",
    "ldmxcsr -8(%rsp)",
    "cld",
    "movq %rbx, %rdi",
    "movq %rsp, %rsi",
    "xorl %ebp, %ebp",
    "callq {on_page_fault}",
    "movzbl %al, %edi",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xrstor64 {extended}(%rbx)",
    "movl ${handled}, %eax",
    "syscall",
    "ud2",
    // The program's holder, for both levels. The monitor has the general registers.
    "ring0_stub_held_call:",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xsave64 {extended}(%rbx)",
    "movl ${mxcsr_default}, -8(%rsp)",
    "ldmxcsr -8(%rsp)",
    "cld",
    "movq %rbx, %rdi",
    "xorl %ebp, %ebp",
    "callq {on_held_call}",
    "movq %rax, %rdi",
    "movl {extended_low}(%rbx), %eax",
    "movl {extended_high}(%rbx), %edx",
    "xrstor64 {extended}(%rbx)",
    "movl ${held}, %eax",
    "syscall",
    "ud2",
    // In the handler itself: the monitor may help, if a gigabyte is missing.
    "3:",
    "popq %rdx",
    "popq %rcx",
    "popq %rax",
    "pushq ${page_fault}",
    "jmp ring0_stub_trap",
    // Not resolved. The monitor takes the frame, and ends the handler's turn.
    "4:",
    "outb %al, ${trap_port}",
    "ud2",
    ".balign {stub_bytes}",
    "ring0_stub_call_32:",
    "pushq $0",
    "pushq ${call_32}",
    "ring0_stub_trap:",
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
    "movq %cr2, %rax",
    "pushq %rax",
    // The monitor goes on elsewhere.
    "outb %al, ${trap_port}",
    "ud2",
    "ring0_stub_system_call:",
    "outb %al, ${system_call_port}",
    // With a stack that the monitor has prepared, where it returns to ring 3.
    "ring0_stub_return:",
    "iretq",
    "ring0_stub_probe:",
    "mulps %xmm0, %xmm0",
    "outb %al, ${probe_port}",
    "ud2",
    "ring0_stub_end:",
    traps = const TRAPS,
    stub_bytes = const STUB_BYTES,
    call_32 = const CALL_32,
    trap_port = const TRAP_PORT,
    system_call_port = const SYSTEM_CALL_PORT,
    probe_port = const PROBE_PORT,
    page_fault = const PAGE_FAULT,
    handled = const forward::HANDLED,
    held = const forward::HELD,
    on_held_call = sym held::on_held_call,
    leave_port = const LEAVE_PORT,
    leave_wanted = const offset_of!(Block, leave_wanted),
    in_handler = const offset_of!(Block, in_handler),
    handler_frame = const offset_of!(Block, handler_frame),
    extended_low = const offset_of!(Block, extended_low),
    extended_high = const offset_of!(Block, extended_high),
    extended = const offset_of!(Block, extended),
    mxcsr_default = const 0x1f80,
    general = const offset_of!(TrapFrame, general),
    error = const offset_of!(TrapFrame, error),
    rip = const offset_of!(TrapFrame, rip),
    vector = const offset_of!(TrapFrame, vector),
    address = const offset_of!(TrapFrame, address),
    on_page_fault = sym faults::on_page_fault,
    options(att_syntax)
);

unsafe extern "C" {
    static ring0_stub_traps: [u8; 0];
    static ring0_stub_page_fault: [u8; 0];
    static ring0_stub_ring_3_fault: [u8; 0];
    static ring0_stub_page_fault_leaves: [u8; 0];
    static ring0_stub_page_fault_end: [u8; 0];
    static ring0_stub_held_call: [u8; 0];
    static ring0_stub_call_32: [u8; 0];
    static ring0_stub_system_call: [u8; 0];
    static ring0_stub_return: [u8; 0];
    static ring0_stub_probe: [u8; 0];
    static ring0_stub_end: [u8; 0];
    static ring0_stub_shootdown_leaves: [u8; 0];
    static ring0_stub_shootdown_pops: [u8; 0];
}

/// Where all of them are, but for those that come when the machine is running.
pub(crate) fn addresses() -> Range<usize> {
    (&raw const ring0_stub_traps).addr()..(&raw const ring0_stub_end).addr()
}

/// Where a trap enters.
pub(crate) fn of_trap(vector: usize) -> usize {
    debug_assert!(vector < TRAPS);
    (&raw const ring0_stub_traps).addr() + vector * STUB_BYTES
}

/// Where a page fault enters that came in ring 0.
pub(crate) fn of_page_fault() -> usize {
    (&raw const ring0_stub_page_fault).addr()
}

/// Where the program's fault handler begins at ring 3, with the [`Block`] in RBX.
pub(crate) fn of_ring_3_fault() -> u64 {
    (&raw const ring0_stub_ring_3_fault).addr() as u64
}

/// Where the program's holder begins, with the [`Block`] in RBX.
pub(crate) fn of_held_call() -> u64 {
    (&raw const ring0_stub_held_call).addr() as u64
}

/// Where INT 0x80 enters.
pub(crate) fn of_32_bit_call() -> usize {
    (&raw const ring0_stub_call_32).addr()
}

/// Where SYSCALL enters.
pub(crate) fn of_system_call() -> u64 {
    (&raw const ring0_stub_system_call).addr() as u64
}

/// An IRETQ, for a stack that has what it takes.
pub(crate) fn of_return() -> u64 {
    (&raw const ring0_stub_return).addr() as u64
}

/// Code that works where ring 0 is the processor's.
pub(crate) fn of_probe() -> u64 {
    (&raw const ring0_stub_probe).addr() as u64
}

/// Where a shootdown enters.
pub(crate) fn of_shootdown() -> usize {
    shootdown as *const () as usize
}

/// Where a spurious interrupt enters.
pub(crate) fn of_spurious() -> usize {
    spurious as *const () as usize
}

/// How far a stub is when a signal interrupts the guest.
pub(crate) enum Progress {
    /// No stub is at work: the registers are the program's or the fault handler's.
    None,
    /// It goes on to the monitor, or looks for `leave_wanted` at its end.
    Working,
    /// The page fault's is about to return to what its frame says.
    PageFaultReturns,
    /// The shootdown's, to what is on its stack.
    ShootdownReturns,
    /// It is about to execute an IRETQ.
    Returns,
}

/// The progress of the stub at an address.
pub(crate) fn progress(rip: u64) -> Progress {
    let at = rip as usize;
    let page_fault_leaves = (&raw const ring0_stub_page_fault_leaves).addr();
    let page_fault_end = (&raw const ring0_stub_page_fault_end).addr();
    let shootdown_leaves = (&raw const ring0_stub_shootdown_leaves).addr();
    if rip == of_return() || at == of_spurious() {
        Progress::Returns
    } else if (page_fault_leaves..page_fault_end).contains(&at) {
        Progress::PageFaultReturns
    } else if (shootdown_leaves..of_shootdown_pops() as usize + SHOOTDOWN_POPS_BYTES).contains(&at) {
        Progress::ShootdownReturns
    } else if addresses().contains(&at) || (of_shootdown()..shootdown_leaves).contains(&at) {
        Progress::Working
    } else {
        Progress::None
    }
}

/// Where the shootdown's stub restores what it has saved.
pub(crate) fn of_shootdown_pops() -> u64 {
    (&raw const ring0_stub_shootdown_pops).addr() as u64
}

/// Whether the shootdown's stub has gone to the monitor from this address.
pub(crate) fn is_of_shootdown(rip: u64) -> bool {
    (of_shootdown() as u64..=of_shootdown_pops()).contains(&rip)
}

/// The last instructions of the shootdown's stub: three of one byte, and IRETQ.
const SHOOTDOWN_POPS_BYTES: usize = 5;

/// Empties the TLB, and says so. The page tables have no global entries, so a load of CR3 does it.
#[unsafe(naked)]
extern "C" fn shootdown() {
    /// Of the local interrupt controller: the interrupt is handled.
    const END_OF_INTERRUPT: u32 = 0x80b;
    naked_asm!(
        "push rax",
        "push rcx",
        "push rdx",
        // Behind the three and what the processor has pushed.
        "mov rdx, [rsp + 8 * 8]",
        // Who asks from now on sends another interrupt. Who has asked before is counted in what is read next.
        "xor eax, eax",
        "xchg [rdx + {sent}], eax",
        "mov rax, [rdx + {wanted}]",
        "mov rcx, cr3",
        "mov cr3, rcx",
        "mov [rdx + {done}], rax",
        "mov ecx, {end}",
        "xor eax, eax",
        "xor edx, edx",
        "wrmsr",
        "mov rdx, [rsp + 8 * 8]",
        "cmp dword ptr [rdx + {leave_wanted}], 0",
        ".globl ring0_stub_shootdown_leaves, ring0_stub_shootdown_pops",
        ".hidden ring0_stub_shootdown_leaves, ring0_stub_shootdown_pops",
        "ring0_stub_shootdown_leaves:",
        "je 2f",
        "out {leave_port}, al",
        "2:",
        "ring0_stub_shootdown_pops:",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "iretq",
        leave_wanted = const offset_of!(Block, leave_wanted),
        leave_port = const LEAVE_PORT,
        sent = const offset_of!(Block, shootdown_sent),
        wanted = const offset_of!(Block, shootdowns_wanted),
        done = const offset_of!(Block, shootdowns_done),
        end = const END_OF_INTERRUPT,
    );
}

/// Of no interest.
#[unsafe(naked)]
extern "C" fn spurious() {
    naked_asm!("iretq");
}
