//! The way back from handlers of signals: a thread that a signal has interrupted in the machine goes on in the machine.

use std::arch::global_asm;

use crate::machine;
use crate::resume::{self, Context};
use crate::signals;

global_asm!(
    ".globl ring0_restore",
    ".hidden ring0_restore",
    // As debuggers and exceptions expect it of a frame of a signal: the interrupted registers are in the context at the stack pointer.
    ".cfi_startproc",
    ".cfi_signal_frame",
    // The value at the stack pointer and an offset, and the place of a register there.
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06",
    ".cfi_escape 0x10, 8, 2, 0x77, 0x28",
    ".cfi_escape 0x10, 9, 2, 0x77, 0x30",
    ".cfi_escape 0x10, 10, 2, 0x77, 0x38",
    ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0x00",
    ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x00",
    ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x00",
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x00",
    ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x00",
    ".cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0x00",
    ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0x00",
    ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00",
    ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x01",
    ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 0x01",
    ".cfi_escape 0x10, 0, 3, 0x77, 0x90, 0x01",
    ".cfi_escape 0x10, 2, 3, 0x77, 0x98, 0x01",
    ".cfi_escape 0x10, 7, 3, 0x77, 0xa0, 0x01",
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01",
    // They look for the frame at the address before this one.
    "nop",
    "ring0_restore:",
    "movq %rsp, %rdi",
    "andq $-16, %rsp",
    "cld",
    "callq {end}",
    "ud2",
    ".cfi_endproc",
    end = sym end,
    options(att_syntax)
);

unsafe extern "C" {
    static ring0_restore: [u8; 0];
}

/// The restorer in actions of signals.
pub(crate) fn address() -> u64 {
    (&raw const ring0_restore).addr() as u64
}

/// The end of a handler.
///
/// # Safety
/// The context is the one that the kernel has passed to the handler, whose stack this is.
unsafe extern "C" fn end(context: *const Context) -> ! {
    if !machine::is_inside() {
        signals::block();
        // SAFETY: the caller vouches for the context.
        let registers = unsafe { (*context).registers() };
        if let Some(machine) = machine::of_process().filter(|machine| machine.must_come_back(&registers)) {
            // SAFETY: as above, and the signals are blocked. It returns if the thread cannot enter.
            unsafe { machine.enter_from(context) };
        }
    }
    // SAFETY: as above. Outside the kernel sets the mask of signals, too; in the machine the monitor takes the call.
    unsafe { resume::resume(context) }
}
