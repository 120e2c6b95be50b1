//! A thread's registers outside the machine, and how it goes on there.

use std::arch::naked_asm;
use std::mem::offset_of;

use kvm_bindings::kvm_regs;

use crate::block::Block;

/// As many bytes as KVM hands out of a thread's extended state.
pub(crate) const EXTENDED_BYTES: usize = 4096;
/// The part of it for x87 and SSE, with the header.
const BASIC_BYTES: usize = 576;
/// Below the stack pointer, where functions keep data all the same.
const RED_ZONE_BYTES: usize = 128;
/// Interrupts are on, and the bit that is always set.
pub(crate) const PLAIN_FLAGS: u64 = 0x202;
/// Flags that a program sees and sets.
const PROGRAM_FLAGS: u64 = 0x25_4dd5;
/// x87 and SSE, in a mask of extended states.
const BASIC: u64 = 0b11;

/// Extended state in the form of XSAVE.
#[repr(C, align(64))]
pub(crate) struct Extended(pub(crate) [u8; EXTENDED_BYTES]);

/// General registers in the order in which the stubs push them, from the lowest address on; then what else it takes to go on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Registers {
    /// R15 to R8, RDI, RSI, RBP, RDX, RCX, RBX, RAX.
    pub(crate) general: [u64; Registers::GENERAL],
    pub(crate) rsp: u64,
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
}

impl Registers {
    /// Without RSP.
    pub(crate) const GENERAL: usize = 15;

    /// Those of a virtual processor.
    pub(crate) fn of(regs: &kvm_regs) -> Registers {
        let rflags = regs.rflags & PROGRAM_FLAGS | PLAIN_FLAGS;
        Registers { general: general_of(regs), rsp: regs.rsp, rip: regs.rip, rflags }
    }
}

/// In the order of [`Registers`].
fn general_of(regs: &kvm_regs) -> [u64; Registers::GENERAL] {
    [
        regs.r15, regs.r14, regs.r13, regs.r12, regs.r11, regs.r10, regs.r9, regs.r8, regs.rdi, regs.rsi, regs.rbp,
        regs.rdx, regs.rcx, regs.rbx, regs.rax,
    ]
}

/// The other way round.
pub(crate) fn set_general(regs: &mut kvm_regs, general: &[u64; Registers::GENERAL]) {
    let [r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rdx, rcx, rbx, rax] = *general;
    *regs = kvm_regs { r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rdx, rcx, rbx, rax, ..*regs };
}

/// Goes on outside the machine, with these registers and those extended states of the mask. Leaves two words below the red zone of the program's
/// stack, as a signal would leave many: no other way loads all registers at once in ring 3 of every host (IRETQ does not on emulated ones).
///
/// # Safety
/// The registers are those of the calling thread's program, and the extended state is one that KVM or XSAVE has written. Both lie on a stack, or
/// above one, since handlers of signals may run below the registers until the end.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn resume(registers: *mut Registers, extended: *const u8, mask: u64) -> ! {
    naked_asm!(
        "mov eax, edx",
        "shr rdx, 32",
        "xrstor64 [rsi]",
        "mov rsp, rdi",
        "mov rax, [rdi + {rsp}]",
        "sub rax, {red_zone} + 16",
        "mov [rdi + {rsp}], rax",
        "mov rcx, [rdi + {rflags}]",
        "mov [rax], rcx",
        "mov rcx, [rdi + {rip}]",
        "mov [rax + 8], rcx",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rbp",
        "pop rdx",
        "pop rcx",
        "pop rbx",
        "pop rax",
        "pop rsp",
        "popfq",
        "ret {red_zone}",
        rsp = const offset_of!(Registers, rsp),
        rip = const offset_of!(Registers, rip),
        rflags = const offset_of!(Registers, rflags),
        red_zone = const RED_ZONE_BYTES,
    )
}

/// Begins the machine's part of a thread: notes where the program goes on, and calls `monitor` on the stack that ends at `stack`. Returns 0, in
/// the machine.
///
/// # Safety
/// The block is the calling thread's, and the stack is the monitor's and not in use.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter(
    block: *mut Block,
    monitor: unsafe extern "C" fn(*mut Block) -> !,
    stack: usize,
) -> u64 {
    naked_asm!(
        "mov rax, [rsp]",
        "mov [rdi + {start}], rax",
        "lea rax, [rsp + 8]",
        "mov [rdi + {kept}], rax",
        "mov [rdi + {kept} + 8], rbx",
        "mov [rdi + {kept} + 16], rbp",
        "mov [rdi + {kept} + 24], r12",
        "mov [rdi + {kept} + 32], r13",
        "mov [rdi + {kept} + 40], r14",
        "mov [rdi + {kept} + 48], r15",
        "stmxcsr [rdi + {mxcsr}]",
        "fnstcw [rdi + {x87_control}]",
        "mov rsp, rdx",
        "xor ebp, ebp",
        "call rsi",
        "ud2",
        start = const offset_of!(Block, start),
        kept = const offset_of!(Block, kept),
        mxcsr = const offset_of!(Block, mxcsr),
        x87_control = const offset_of!(Block, x87_control),
    )
}

/// The registers that a new thread or process begins with, on its own stack.
#[repr(C, align(64))]
pub(crate) struct ChildFrame {
    extended: [u8; BASIC_BYTES],
    registers: Registers,
}

impl ChildFrame {
    /// A frame below the red zone of the stack in the registers.
    pub(crate) fn place(registers: &Registers) -> *mut ChildFrame {
        let top = registers.rsp - (RED_ZONE_BYTES + 16 + size_of::<ChildFrame>()) as u64;
        (top & !63) as *mut ChildFrame
    }

    /// Writes it.
    ///
    /// # Safety
    /// The place is one of [`Self::place`], on a stack that the program has given to the child.
    pub(crate) unsafe fn write(place: *mut ChildFrame, registers: Registers, extended: &Extended) {
        let mut basic = [0; BASIC_BYTES];
        basic.copy_from_slice(&extended.0[..BASIC_BYTES]);
        // SAFETY: the caller vouches for the place, which is aligned.
        unsafe { place.write(ChildFrame { extended: basic, registers }) };
    }
}

/// clone(2) whose child goes on outside the machine from its frame. Answers the parent.
///
/// # Safety
/// The frame is written, and the flags and pointers are the program's own.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn clone(
    flags: u64,
    frame: *const ChildFrame,
    parent_thread: u64,
    child_thread: u64,
    thread_data: u64,
) -> u64 {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        // The child, whose stack begins with its frame.
        "2:",
        "lea rdi, [rsp + {registers}]",
        "mov rsi, rsp",
        "mov edx, {basic}",
        "jmp {resume}",
        clone = const libc::SYS_clone,
        registers = const offset_of!(ChildFrame, registers),
        basic = const BASIC,
        resume = sym resume,
    )
}

/// Ends the calling thread, and stores a zero once nothing of the thread's needs its stack any more.
///
/// # Safety
/// All signals are blocked. The word lives on, and whoever finds the zero may use the stack.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn end_thread(word: *const u32, code: u64) -> ! {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov dword ptr [rax], 0",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        exit = const libc::SYS_exit,
    )
}
