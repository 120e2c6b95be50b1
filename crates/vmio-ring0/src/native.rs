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

/// The registers in the context of a signal, as a virtual processor has them.
pub(crate) fn of_context(registers: &libc::mcontext_t) -> kvm_regs {
    let of = |index: libc::c_int| registers.gregs[index as usize] as u64;
    kvm_regs {
        rax: of(libc::REG_RAX),
        rbx: of(libc::REG_RBX),
        rcx: of(libc::REG_RCX),
        rdx: of(libc::REG_RDX),
        rsi: of(libc::REG_RSI),
        rdi: of(libc::REG_RDI),
        rsp: of(libc::REG_RSP),
        rbp: of(libc::REG_RBP),
        r8: of(libc::REG_R8),
        r9: of(libc::REG_R9),
        r10: of(libc::REG_R10),
        r11: of(libc::REG_R11),
        r12: of(libc::REG_R12),
        r13: of(libc::REG_R13),
        r14: of(libc::REG_R14),
        r15: of(libc::REG_R15),
        rip: of(libc::REG_RIP),
        rflags: of(libc::REG_EFL) & PROGRAM_FLAGS | PLAIN_FLAGS,
    }
}

impl Extended {
    /// Where the kernel says how long the extended state in the context of a signal is.
    const FRAME_NOTES: std::ops::Range<usize> = 464..512;
    const FRAME_MAGIC: u32 = 0x4650_5853;
    const LEGACY_BYTES: usize = 512;

    /// Becomes the extended state in the context of a signal, as far as the mask has it.
    ///
    /// # Safety
    /// The pointer is the one in a context that the kernel has made.
    pub(crate) unsafe fn set_of_context(&mut self, state: *const u8, mask: u64) {
        let extended = self;
        extended.0.fill(0);
        // SAFETY: the caller vouches for the kernel's state, which has the legacy part at least.
        let legacy = unsafe { std::slice::from_raw_parts(state, Self::LEGACY_BYTES) };
        let word = |at: usize| u32::from_le_bytes([legacy[at], legacy[at + 1], legacy[at + 2], legacy[at + 3]]);
        let notes = Self::FRAME_NOTES;
        let len =
            if word(notes.start) == Self::FRAME_MAGIC { word(notes.start + 16) as usize } else { Self::LEGACY_BYTES };
        // SAFETY: the kernel says that there are as many.
        let all = unsafe { std::slice::from_raw_parts(state, len.min(EXTENDED_BYTES)) };
        extended.0[..all.len()].copy_from_slice(all);
        extended.0[notes].fill(0);
        let mut present = if len > Self::LEGACY_BYTES { u64::from_le_bytes(extended.header()) } else { BASIC };
        present &= mask;
        extended.0[Self::LEGACY_BYTES..BASIC_BYTES].fill(0);
        extended.0[Self::LEGACY_BYTES..Self::LEGACY_BYTES + 8].copy_from_slice(&present.to_le_bytes());
    }

    /// Which states are there.
    fn header(&self) -> [u8; 8] {
        let mut header = [0; 8];
        header.copy_from_slice(&self.0[Self::LEGACY_BYTES..Self::LEGACY_BYTES + 8]);
        header
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

/// Calls a function on another stack, and returns when it does.
///
/// # Safety
/// The stack that ends at `stack` is not in use, and the function may be called with the argument.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on(
    argument: *mut libc::c_void,
    function: unsafe extern "C" fn(*mut libc::c_void),
    stack: usize,
) {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdx", "call rsi", "mov rsp, rbp", "pop rbp", "ret")
}

/// Calls a function that does not return, on another stack.
///
/// # Safety
/// The stack that ends at `stack` is not in use, and nobody needs the present one any more.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn go_to(
    block: *mut Block,
    function: unsafe extern "C" fn(*mut Block) -> !,
    stack: usize,
) -> ! {
    naked_asm!("mov rsp, rdx", "xor ebp, ebp", "call rsi", "ud2")
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
