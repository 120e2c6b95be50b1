//! A thread's registers outside the machine, and how it enters.

use std::arch::naked_asm;
use std::mem::offset_of;

use kvm_bindings::kvm_regs;

use crate::block::Block;
use crate::resume::{BASIC, BASIC_BYTES};

/// As many bytes as KVM hands out of a thread's extended state.
pub(crate) const EXTENDED_BYTES: usize = 4096;
/// Interrupts are on, and the bit that is always set. The program has both after each system call: at ring 0 it may switch interrupts off, and no shootdown
/// would reach it.
pub(crate) const PLAIN_FLAGS: u64 = 0x202;
/// Flags that a program sees and sets.
pub(crate) const PROGRAM_FLAGS: u64 = 0x25_4dd5;

/// Extended state in the form of XSAVE.
#[repr(C, align(64))]
pub(crate) struct Extended(pub(crate) [u8; EXTENDED_BYTES]);

/// General registers in the order in which the stubs push them.
pub(crate) struct Registers;

impl Registers {
    /// R15 to R8, RDI, RSI, RBP, RDX, RCX, RBX, RAX.
    pub(crate) const GENERAL: usize = 15;
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
        if len == Self::LEGACY_BYTES {
            extended.0[len..len + 8].copy_from_slice(&BASIC.to_le_bytes());
        }
        extended.limit_to(mask);
    }

    /// Forgets the states that the mask lacks: XRSTOR traps if it finds one that the processor does not have. KVM notes protection keys in any case.
    pub(crate) fn limit_to(&mut self, mask: u64) {
        let present = u64::from_le_bytes(self.header()) & mask;
        self.0[Self::LEGACY_BYTES..BASIC_BYTES].fill(0);
        self.0[Self::LEGACY_BYTES..Self::LEGACY_BYTES + 8].copy_from_slice(&present.to_le_bytes());
    }

    /// Which states are there.
    fn header(&self) -> [u8; 8] {
        let mut header = [0; 8];
        header.copy_from_slice(&self.0[Self::LEGACY_BYTES..Self::LEGACY_BYTES + 8]);
        header
    }
}

/// Those that a stub has pushed.
pub(crate) fn set_general(regs: &mut kvm_regs, general: &[u64; Registers::GENERAL]) {
    let [r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rdx, rcx, rbx, rax] = *general;
    *regs = kvm_regs { r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rdx, rcx, rbx, rax, ..*regs };
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
        "mov rsp, rdx",
        "mov eax, [rdi + {extended_low}]",
        "mov edx, [rdi + {extended_high}]",
        "xsave64 [rdi + {extended}]",
        "xor ebp, ebp",
        "call rsi",
        "ud2",
        start = const offset_of!(Block, start),
        kept = const offset_of!(Block, kept),
        extended_low = const offset_of!(Block, extended_low),
        extended_high = const offset_of!(Block, extended_high),
        extended = const offset_of!(Block, extended),
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
