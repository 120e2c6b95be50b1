//! longjmp and related calls: a handler of the program's that has interrupted vmio may leave vmio by a jump. Only on x86-64, where the target is
//! known.

use std::arch::asm;
use std::ffi::{c_int, c_void};

use crate::entry;
use crate::real;

/// The index of the stack pointer in a `jmp_buf`, in words.
const STACK_POINTER: usize = 6;

/// The stack pointer to which a jump goes.
///
/// # Safety
/// It is a `jmp_buf` that was filled.
unsafe fn target(environment: *const c_void) -> usize {
    // SAFETY: by the caller.
    let hidden = unsafe { environment.cast::<usize>().add(STACK_POINTER).read() };
    let guard: usize;
    // SAFETY: it is a word of the thread's control block, which the C library hides such addresses by.
    unsafe { asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags)) };
    hidden.rotate_right(17) ^ guard
}

macro_rules! jumps {
    ($($name:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(environment: *mut c_void, value: c_int) -> ! {
                if entry::is_inside() {
                    // SAFETY: by the caller.
                    entry::jumps(unsafe { target(environment) });
                }
                // SAFETY: by the caller.
                unsafe { real::$name(environment, value) }
            }
        )*
    };
}

jumps! {
    longjmp;
    _longjmp;
    siglongjmp;
    __longjmp_chk;
}
