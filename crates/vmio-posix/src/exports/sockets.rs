//! Messages of sockets, to and from mappings whose extents may not be leased yet.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::descriptor_makers::made_by;
use super::transfers::{all, one, placed};
use crate::entry;
use crate::program_maps;
use crate::real;

/// Receives into buffers. They are there before: a message that the kernel cannot store is lost.
fn received(buffers: impl Iterator<Item = Range<usize>> + Clone, call: impl Fn() -> ssize_t) -> ssize_t {
    if program_maps::are_there() {
        let _ = entry::enter::<()>(|| {
            buffers.clone().for_each(program_maps::place_if_missing);
            None
        });
    }
    placed(buffers, call)
}

/// The buffers of a message; none if it is null.
///
/// # Safety
/// It is null, or a message with its buffers.
unsafe fn of_message<'a>(message: *const msghdr) -> impl Iterator<Item = Range<usize>> + Clone + 'a {
    // SAFETY: by the caller.
    let (buffers, count) = unsafe { message.as_ref() }.map_or((std::ptr::null(), 0), |message| {
        (message.msg_iov.cast_const(), c_int::try_from(message.msg_iovlen).unwrap_or(0))
    });
    // SAFETY: by the caller.
    unsafe { all(buffers.cast::<iovec>(), count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: by the caller.
    received(std::iter::once(one(buffer, len)), || unsafe { real::recv(socket, buffer, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let buffers = std::iter::once(one(buffer, len));
    // SAFETY: by the caller.
    received(buffers, || unsafe { real::recvfrom(socket, buffer, len, flags, address, address_len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: by the caller.
    let count = received(unsafe { of_message(message) }, || unsafe { real::recvmsg(socket, message, flags) });
    if count >= 0 {
        // SAFETY: the kernel has filled it.
        unsafe { made_by(&*message) };
    }
    count
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(socket: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: by the caller.
    placed([one(buffer, len)], || unsafe { real::send(socket, buffer, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    socket: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    // SAFETY: by the caller.
    placed([one(buffer, len)], || unsafe { real::sendto(socket, buffer, len, flags, address, address_len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: by the caller.
    placed(unsafe { of_message(message) }, || unsafe { real::sendmsg(socket, message, flags) })
}

/// `recv` of programs with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        std::process::abort(); // As the C library does at a buffer overflow.
    }
    // SAFETY: by the caller.
    unsafe { recv(socket, buffer, len, flags) }
}
