//! malloc and related functions, which the program calls in place of the C library's.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::ptr;

use libmimalloc_sys as mimalloc;

use crate::c_library;

const PAGE_BYTES: usize = vmio::PAGE_BYTES;

/// Whether the heap serves a call that returns there.
#[inline]
fn is_programs(return_address: usize) -> bool {
    vmio_heap::is_there() && !c_library::called(return_address)
}

/// The functions below that pass on their return addresses, which only assembly can tell. The C library's own allocations must be there in
/// a forked child before anything else is, so the heap does not serve them.
macro_rules! with_return_address {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) => $function:ident, $register:literal, $arm_register:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the C library's function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {function}", function = sym $function);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("mov ", $arm_register, ", x30"), "b {function}", function = sym $function);
        }
    };
}

with_return_address!(
    /// malloc(3).
    fn malloc(bytes: usize) => malloc_for, "rsi", "x1"
);
with_return_address!(
    /// calloc(3).
    fn calloc(count: usize, bytes: usize) => calloc_for, "rdx", "x2"
);

unsafe extern "C" fn malloc_for(bytes: usize, return_address: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    unsafe {
        if is_programs(return_address) {
            or_out_of_memory(mimalloc::mi_malloc(bytes))
        } else {
            c_library::__libc_malloc(bytes)
        }
    }
}

unsafe extern "C" fn calloc_for(count: usize, bytes: usize, return_address: usize) -> *mut c_void {
    // SAFETY: any size is allowed; both check for an overflow.
    unsafe {
        if is_programs(return_address) {
            or_out_of_memory(mimalloc::mi_calloc(count, bytes))
        } else {
            c_library::__libc_calloc(count, bytes)
        }
    }
}

/// realloc(3). A block stays with its allocator.
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller has the block from one of these functions, and its address tells from which allocator.
    unsafe {
        if pointer.is_null() {
            malloc_for(bytes, 0)
        } else if !vmio_heap::contains(pointer as usize) {
            c_library::__libc_realloc(pointer, bytes)
        } else if bytes == 0 {
            mimalloc::mi_free(pointer);
            ptr::null_mut()
        } else {
            or_out_of_memory(mimalloc::mi_realloc(pointer, bytes))
        }
    }
}

/// reallocarray(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller vouches for the block.
        Some(bytes) => unsafe { realloc(pointer, bytes) },
        None => out_of_memory(),
    }
}

/// free(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: as of realloc.
    unsafe {
        if vmio_heap::contains(pointer as usize) { mimalloc::mi_free(pointer) } else { c_library::__libc_free(pointer) }
    }
}

/// memalign(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    if !vmio_heap::is_there() {
        // SAFETY: the function takes any numbers.
        return unsafe { c_library::__libc_memalign(alignment, bytes) };
    }
    // As the C library does: rounds up to the next power of two.
    match alignment.checked_next_power_of_two() {
        // SAFETY: that is an alignment.
        Some(alignment) => or_out_of_memory(unsafe { mimalloc::mi_malloc_aligned(bytes, alignment) }),
        None => out_of_memory(),
    }
}

/// aligned_alloc(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    // SAFETY: `memalign` has the same contract as this function.
    unsafe { memalign(alignment, bytes) }
}

/// posix_memalign(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: by the caller there is room for a pointer.
    unsafe {
        let pointer = memalign(alignment, bytes);
        if pointer.is_null() {
            return libc::ENOMEM;
        }
        *place = pointer;
    }
    0
}

/// valloc(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: a page's length is an alignment.
    unsafe { memalign(PAGE_BYTES, bytes) }
}

/// pvalloc(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.checked_next_multiple_of(PAGE_BYTES) {
        // SAFETY: a page's length is an alignment.
        Some(bytes) => unsafe { memalign(PAGE_BYTES, bytes) },
        None => out_of_memory(),
    }
}

/// malloc_usable_size(3).
///
/// # Safety
///
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    // SAFETY: as of realloc.
    unsafe {
        if vmio_heap::contains(pointer as usize) {
            mimalloc::mi_usable_size(pointer)
        } else {
            c_library::usable_bytes(pointer)
        }
    }
}

/// Sets errno if there is no memory, since mimalloc does not.
#[inline]
fn or_out_of_memory(pointer: *mut c_void) -> *mut c_void {
    if pointer.is_null() { out_of_memory() } else { pointer }
}

#[cold]
fn out_of_memory() -> *mut c_void {
    // SAFETY: the location is the calling thread's.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    ptr::null_mut()
}
