//! Reads and writes.

use std::ffi::{c_int, c_void};
use std::slice;

use libc::{iovec, off_t, size_t, ssize_t};

use super::{of_mapped, told};
use crate::entry::Answer;
use crate::errno::Errno;
use crate::process::Process;
use crate::real;
use crate::transfer::{self, Position};

/// Linux's IOV_MAX.
const BUFFERS_MAX: c_int = 1024;

/// The program's buffer, to be filled.
///
/// # Safety
/// It is valid for stores, and nobody else's meanwhile.
unsafe fn bytes_mut<'a>(start: *mut c_void, len: size_t) -> &'a mut [u8] {
    // SAFETY: by the caller; no bytes may be at any address.
    if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(start.cast(), len) } }
}

/// The program's bytes.
///
/// # Safety
/// They are valid for loads, and stay as they are meanwhile.
unsafe fn bytes<'a>(start: *const c_void, len: size_t) -> &'a [u8] {
    // SAFETY: as above.
    if len == 0 { &[] } else { unsafe { slice::from_raw_parts(start.cast(), len) } }
}

/// The program's list of buffers.
///
/// # Safety
/// There are so many.
unsafe fn list<'a>(buffers: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        // SAFETY: by the caller.
        1..=BUFFERS_MAX => Ok(unsafe { slice::from_raw_parts(buffers, count as usize) }),
        _ => Err(Errno::INVAL),
    }
}

/// # Safety
/// As for [`bytes_mut`].
unsafe fn read_one(fd: c_int, buffer: *mut c_void, len: size_t, position: Position) -> Option<ssize_t> {
    let answer = of_mapped(fd, |fd| {
        // SAFETY: by the caller.
        let buffer = unsafe { bytes_mut(buffer, len) };
        transfer::read(fd, position, std::iter::once(buffer))
    });
    told_count(answer)
}

/// # Safety
/// As for [`list`] and [`bytes_mut`].
unsafe fn read_list(fd: c_int, buffers: *const iovec, count: c_int, position: Position) -> Option<ssize_t> {
    let answer = of_mapped(fd, |fd| {
        // SAFETY: by the caller.
        let Ok(buffers) = (unsafe { list(buffers, count) }) else { return Some(Err(Errno::INVAL)) };
        // SAFETY: by the caller.
        transfer::read(fd, position, buffers.iter().map(|part| unsafe { bytes_mut(part.iov_base, part.iov_len) }))
    });
    told_count(answer)
}

/// # Safety
/// As for [`bytes`].
unsafe fn write_one(fd: c_int, buffer: *const c_void, len: size_t, position: Position) -> Option<ssize_t> {
    let answer = of_mapped(fd, |fd| {
        // SAFETY: by the caller.
        let buffer = unsafe { bytes(buffer, len) };
        transfer::write(fd, position, std::iter::once(buffer))
    });
    told_count(answer)
}

/// # Safety
/// As for [`list`] and [`bytes`].
unsafe fn write_list(fd: c_int, buffers: *const iovec, count: c_int, position: Position) -> Option<ssize_t> {
    let answer = of_mapped(fd, |fd| {
        // SAFETY: by the caller.
        let Ok(buffers) = (unsafe { list(buffers, count) }) else { return Some(Err(Errno::INVAL)) };
        // SAFETY: by the caller.
        transfer::write(fd, position, buffers.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) }))
    });
    told_count(answer)
}

fn told_count(answer: Answer<usize>) -> Option<ssize_t> {
    told(answer, |count| count as ssize_t, -1)
}

/// After a write that Linux did.
fn noticed(fd: c_int, position: Position, written: ssize_t) -> ssize_t {
    if written > 0 && Process::current().is_some() {
        let _ = of_mapped::<()>(fd, |fd| {
            transfer::written_by_linux(fd, position, written as usize);
            None
        });
    }
    written
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { read_one(fd, buffer, len, Position::Current).unwrap_or_else(|| real::read(fd, buffer, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len > room {
        std::process::abort(); // As the C library does at a buffer overflow.
    }
    // SAFETY: by the caller.
    unsafe { read(fd, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { read_one(fd, buffer, len, Position::At(offset)).unwrap_or_else(|| real::pread(fd, buffer, len, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pread(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread_chk(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t {
    if len > room {
        std::process::abort();
    }
    // SAFETY: by the caller.
    unsafe { pread(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { __pread_chk(fd, buffer, len, offset, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { read_list(fd, buffers, count, Position::Current).unwrap_or_else(|| real::readv(fd, buffers, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    let answer = unsafe { read_list(fd, buffers, count, Position::At(offset)) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| unsafe { real::preadv(fd, buffers, count, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { preadv(fd, buffers, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    let position = Position::Current;
    // SAFETY: by the caller.
    let answer = unsafe { write_one(fd, buffer, len, position) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| noticed(fd, position, unsafe { real::write(fd, buffer, len) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    let position = Position::At(offset);
    // SAFETY: by the caller.
    let answer = unsafe { write_one(fd, buffer, len, position) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| noticed(fd, position, unsafe { real::pwrite(fd, buffer, len, offset) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwrite(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    let position = Position::Current;
    // SAFETY: by the caller.
    let answer = unsafe { write_list(fd, buffers, count, position) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| noticed(fd, position, unsafe { real::writev(fd, buffers, count) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    let position = Position::At(offset);
    // SAFETY: by the caller.
    let answer = unsafe { write_list(fd, buffers, count, position) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| noticed(fd, position, unsafe { real::pwritev(fd, buffers, count, offset) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwritev(fd, buffers, count, offset) }
}
