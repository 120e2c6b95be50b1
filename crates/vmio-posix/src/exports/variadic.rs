//! Functions with any number of arguments, which stable Rust cannot define: they have something done first, and then become the C
//! library's own, with all registers as they were. (x86-64; elsewhere they are not intercepted.)

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::is_of_mode;
use super::process::{becoming, becoming_searched};
use crate::real;
use crate::split;

/// The C library writes to a descriptor, from where the kernel's position is. When it has done so we are not told, so that the description is
/// Linux's for good.
extern "C" fn before_print(fd: c_int) {
    if is_of_mode(fd) {
        split::leave(fd);
    }
}

macro_rules! passed_on {
    ($($name:ident: $next:ident after $first:path;)*) => {
        $(
            static $next: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                // The arguments' registers, of which rax says how many vectors there are. 200 bytes keep the stack aligned.
                naked_asm!(
                    "sub rsp, 200",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "mov [rsp + 48], rax",
                    "movups [rsp + 64], xmm0",
                    "movups [rsp + 80], xmm1",
                    "movups [rsp + 96], xmm2",
                    "movups [rsp + 112], xmm3",
                    "movups [rsp + 128], xmm4",
                    "movups [rsp + 144], xmm5",
                    "movups [rsp + 160], xmm6",
                    "movups [rsp + 176], xmm7",
                    "call {first}",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]",
                    "mov r9, [rsp + 40]",
                    "mov rax, [rsp + 48]",
                    "movups xmm0, [rsp + 64]",
                    "movups xmm1, [rsp + 80]",
                    "movups xmm2, [rsp + 96]",
                    "movups xmm3, [rsp + 112]",
                    "movups xmm4, [rsp + 128]",
                    "movups xmm5, [rsp + 144]",
                    "movups xmm6, [rsp + 160]",
                    "movups xmm7, [rsp + 176]",
                    "add rsp, 200",
                    "jmp [rip + {next}]",
                    first = sym $first,
                    next = sym $next,
                )
            }
        )*

        /// Finds the C library's own: before any of them is called.
        pub(super) fn look_up() {
            $($next.store(real::next(name_of(concat!(stringify!($name), "\0"))), Ordering::Relaxed);)*
        }
    };
}

fn name_of(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

passed_on! {
    dprintf: DPRINTF after before_print;
    __dprintf_chk: DPRINTF_CHK after before_print;
    vdprintf: VDPRINTF after before_print;
    __vdprintf_chk: VDPRINTF_CHK after before_print;
    execl: EXECL after becoming;
    execle: EXECLE after becoming;
    execlp: EXECLP after becoming_searched;
}
