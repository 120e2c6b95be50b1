//! mmap and related calls.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::{MAP_FAILED, MAP_FIXED, MREMAP_FIXED, off_t, size_t};

use super::{is_of_mode, of_file, returned, returned_error, returned_status};
use crate::entry::{self, Answer};
use crate::errno::Errno;
use crate::leased;
use crate::memory::{self, Request};
use crate::process::Process;
use crate::program_maps;
use crate::real;

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// The outcome of a call that returns 0 or -1.
fn status_of(status: c_int) -> Result<(), Errno> {
    // SAFETY: the address of the thread's errno is always valid.
    if status == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() })) }
}

fn advised(address: usize, len: usize, advice: c_int) -> Answer<()> {
    program_maps::advise(address, len, advice).or_else(|| memory::advise(address, len, advice))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 && is_of_mode(fd) {
        // SAFETY: the program has it open during its call.
        let mapped = unsafe { BorrowedFd::borrow_raw(fd) };
        leased::before_kernel_maps(mapped, flags & libc::MAP_TYPE != libc::MAP_PRIVATE);
    }
    // A private writable mapping is never served: such are the loader's segments and allocators' memory.
    let is_candidate = flags & libc::MAP_ANONYMOUS == 0 && offset >= 0;
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let mut answer = None;
    if flags & MAP_FIXED != 0 && (program_maps::are_there() || Process::current().is_some()) {
        let addresses = address as usize..(address as usize).saturating_add(len);
        answer = entry::enter(|| {
            program_maps::refuse_fixed(&addresses).or_else(|| memory::refuse_fixed_over_ours(addresses.clone()))
        });
    }
    if answer.is_none() && is_candidate && !(is_private && flags & MAP_FIXED != 0) {
        let request = Request { len, protection, flags, offset: offset as u64 };
        answer = of_file(fd, |fd| program_maps::map(fd, request).or_else(|| memory::map(fd, request)));
    }
    returned(answer, pointer, MAP_FAILED)
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::mmap(address, len, protection, flags, fd, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: by the caller.
    unsafe { mmap(address, len, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    let others = |part: Range<usize>| {
        // SAFETY: by the caller, for a part of the range.
        status_of(unsafe { real::munmap(pointer(part.start), part.len()) })
    };
    let answer = entry::enter(|| {
        program_maps::unmap(address as usize, len, others).or_else(|| memory::unmap(address as usize, len))
    });
    returned_status(answer)
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::munmap(address, len) })
}

// The fifth argument exists with MREMAP_FIXED only; without it the register is ignored.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let address_now = address as usize;
    let answer = entry::enter(|| {
        let new = new as usize..(new as usize).saturating_add(new_len);
        let is_fixed = flags & MREMAP_FIXED != 0;
        program_maps::remap(address_now, old_len, new_len, flags)
            .or_else(|| if is_fixed { program_maps::refuse_fixed(&new) } else { None })
            .or_else(|| memory::remap(address_now, old_len, new_len, flags))
            .or_else(|| if is_fixed { memory::refuse_fixed_over_ours(new) } else { None })
    });
    returned(answer, pointer, MAP_FAILED)
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::mremap(address, old_len, new_len, flags, new) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int {
    if let Some(status) = returned_status(entry::enter(|| memory::sync(address as usize, len, flags))) {
        return status;
    }
    // SAFETY: by the caller.
    let status = unsafe { real::msync(address, len, flags) };
    if status != 0 {
        return status;
    }
    let failed = entry::enter(|| {
        program_maps::after_sync(address as usize, len, flags)
            .or_else(|| memory::failed_before(address as usize, len, flags))
    });
    returned_status(failed).unwrap_or(status)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    returned_status(entry::enter(|| advised(address as usize, len, advice)))
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::madvise(address, len, advice) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // The C library ignores POSIX_MADV_DONTNEED, too; the other numbers are those of madvise.
    let answer = entry::enter(|| match advice {
        libc::POSIX_MADV_DONTNEED => memory::succeed_on_ours(address as usize),
        advice => advised(address as usize, len, advice),
    });
    // SAFETY: by the caller.
    returned_error(answer).unwrap_or_else(|| unsafe { real::posix_madvise(address, len, advice) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int {
    let others = |part: Range<usize>| {
        // SAFETY: by the caller, for a part of the range.
        status_of(unsafe { real::mprotect(pointer(part.start), part.len(), protection) })
    };
    let answer = entry::enter(|| {
        program_maps::protect(address as usize, len, protection, others)
            .or_else(|| memory::protect(address as usize, len, protection))
    });
    returned_status(answer)
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::mprotect(address, len, protection) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(address: *const c_void, len: size_t) -> c_int {
    returned_status(entry::enter(|| memory::lock(address as usize)))
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::mlock(address, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munlock(address: *const c_void, len: size_t) -> c_int {
    returned_status(entry::enter(|| memory::succeed_on_ours(address as usize)))
        // SAFETY: by the caller.
        .unwrap_or_else(|| unsafe { real::munlock(address, len) })
}
