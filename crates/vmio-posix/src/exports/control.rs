//! ioctl: some of its requests concern the bytes of files, or a position.

use std::ffi::{c_int, c_ulong};
use std::slice;

use libc::file_clone_range;
use smallvec::SmallVec;

use super::files::{before_changes, before_reads, past_both, past_the_mapping, suspended_if_current};
use super::{durably, is_of_mode};
use crate::leased::{self, Suspension};
use crate::real;
use crate::synchronous::Target;

/// FIDEDUPERANGE, by which files share equal blocks; the libc crate has no name for it.
const FIDEDUPERANGE: u32 = 0xc018_9436;

/// The header of that request's argument, before the list of files to compare with the first.
#[repr(C)]
struct Compared {
    offset: u64,
    len: u64,
    count: u16,
    reserved: [u16; 3],
}

/// An entry of that list.
#[repr(C)]
struct ComparedWith {
    fd: i64,
    offset: u64,
    bytes: u64,
    status: i32,
    reserved: u32,
}

/// Calls the kernel to let a file share blocks of another.
fn cloned(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let _bytes = [before_reads(from), before_changes(to)];
    if is_of_mode(to) {
        leased::replay_before_changes();
    }
    durably(|| [Target::bytes_of(to)], || past_both(from, to, call))
}

/// Calls the kernel to compare files, which changes no bytes.
///
/// # Safety
/// `compared` is the argument of the request.
unsafe fn compared(fd: c_int, compared: *const Compared, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: by the caller the list lies behind the header, which has its length.
    let others =
        unsafe { slice::from_raw_parts(compared.add(1).cast::<ComparedWith>(), usize::from((*compared).count)) };
    let all = others.iter().map(|other| other.fd as c_int).chain([fd]);
    let mut bytes = SmallVec::<[Option<Suspension>; 2]>::new();
    for fd in all {
        if past_the_mapping(fd, || 0) == -1 {
            return -1;
        }
        bytes.push(before_reads(fd));
    }
    call()
}

// The third argument is an integer, a pointer or nothing, depending on the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: by the caller.
    let call = || unsafe { real::ioctl(fd, request, argument) };
    // The kernel uses only these 32 bits, and a program that has the request in an int extends its sign.
    match request as u32 {
        request if c_ulong::from(request) == libc::FICLONE => cloned(argument as c_int, fd, call),
        request if c_ulong::from(request) == libc::FICLONERANGE && argument != 0 => {
            // SAFETY: with this request it is a pointer to such a range, by the caller.
            let from = unsafe { (*(argument as *const file_clone_range)).src_fd } as c_int;
            cloned(from, fd, call)
        }
        // SAFETY: with this request it is a pointer to that, by the caller.
        FIDEDUPERANGE if argument != 0 => unsafe { compared(fd, argument as *const Compared, call) },
        request if c_ulong::from(request) == libc::FIONREAD => {
            let _position = suspended_if_current(fd, std::ptr::null());
            call()
        }
        _ => call(),
    }
}
