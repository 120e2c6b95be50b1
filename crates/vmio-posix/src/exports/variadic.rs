//! Functions with any number of arguments, which stable Rust cannot define: they call a function first, and then jump to the C library's own
//! with all registers unchanged. Only on x86-64; elsewhere they are not intercepted.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::is_of_mode;
use super::process::{becoming, becoming_searched, becoming_with};
use crate::leased;
use crate::real;

/// The C library is about to write to a descriptor, at the kernel's position. We do not notice the end of that write, so the kernel serves
/// the description for good.
extern "C" fn before_print(fd: c_int) {
    if is_of_mode(fd) {
        leased::stop_serving(fd);
    }
}

/// Finds the environment behind the null that ends the arguments. `saved` points to the registers that `passed_on` has put on the stack.
///
/// # Safety
/// The call is one of execle's.
unsafe extern "C" fn becoming_with_last(path: *const c_char, saved: *const *const c_char) {
    /// Arguments that are passed in registers, and the place of the others: behind the saved registers and the return address.
    const IN_REGISTERS: usize = 6;
    const ON_STACK: usize = 200 / size_of::<usize>() + 1;
    // SAFETY: by the caller the list and the environment after it are there.
    let argument = |number: usize| unsafe {
        *saved.add(if number < IN_REGISTERS { number } else { ON_STACK + number - IN_REGISTERS })
    };
    // The path is the first.
    let end = (1..).find(|number| argument(*number).is_null()).unwrap_or_default();
    // SAFETY: by the caller.
    unsafe { becoming_with(path, argument(end + 1).cast()) };
}

macro_rules! passed_on {
    ($($name:ident: $next:ident after $first:path;)*) => {
        $(
            static $next: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                // Saves the argument registers; rax has the number of vector registers. 200 bytes keep the stack aligned. The first
                // function gets the first argument and the address of the saved registers.
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
                    "mov rsi, rsp",
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

        /// Finds the C library's functions, before any of them is called.
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
    execle: EXECLE after becoming_with_last;
    execlp: EXECLP after becoming_searched;
}
