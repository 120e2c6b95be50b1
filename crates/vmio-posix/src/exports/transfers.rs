//! Reads and writes.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::slice;

use libc::{iovec, off_t, size_t, ssize_t};

use super::{by_mode, is_of_mode, of_mapped, returned};
use crate::entry::{self, Answer};
use crate::leased::{self, Suspension, Way};
use crate::process::Process;
use crate::program_maps;
use crate::real;
use crate::transfer::{self, Demands, Position};

/// Since Linux 6.14.
const RWF_DONTCACHE: c_int = 0x80;
/// Linux's IOV_MAX.
const BUFFERS_MAX: c_int = 1024;

/// The program's buffer, which a read fills.
///
/// # Safety
/// It is valid for stores, and nobody else uses it meanwhile.
unsafe fn bytes_mut<'a>(start: *mut c_void, len: size_t) -> &'a mut [u8] {
    // SAFETY: by the caller; an empty slice may be at any address.
    if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(start.cast(), len) } }
}

/// The program's bytes.
///
/// # Safety
/// They are valid for loads, and nobody changes them meanwhile.
unsafe fn bytes<'a>(start: *const c_void, len: size_t) -> &'a [u8] {
    // SAFETY: by the caller; an empty slice may be at any address.
    if len == 0 { &[] } else { unsafe { slice::from_raw_parts(start.cast(), len) } }
}

/// The program's list of buffers; `None` if it is longer than allowed: Linux chooses the error.
///
/// # Safety
/// The list has `count` entries.
unsafe fn list<'a>(buffers: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    match count {
        0 => Some(&[]),
        // SAFETY: by the caller.
        1..=BUFFERS_MAX => Some(unsafe { slice::from_raw_parts(buffers, count as usize) }),
        _ => None,
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
        let buffers = unsafe { list(buffers, count) }?;
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
        transfer::write(fd, position, Demands::default(), std::iter::once(buffer))
    });
    told_count(answer)
}

/// # Safety
/// As for [`list`] and [`bytes`].
unsafe fn write_list(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    position: Position,
    demands: Demands,
) -> Option<ssize_t> {
    let answer = of_mapped(fd, |fd| {
        // SAFETY: by the caller.
        let buffers = unsafe { list(buffers, count) }?;
        // SAFETY: by the caller.
        transfer::write(fd, position, demands, buffers.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) }))
    });
    told_count(answer)
}

fn told_count(answer: Answer<usize>) -> Option<ssize_t> {
    returned(answer, |count| count as ssize_t, -1)
}

/// Reads by the data path of a mode, through the file's mapping, or by `linux`.
///
/// # Safety
/// As for [`bytes_mut`].
unsafe fn read_anywhere(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    position: Position,
    linux: impl Fn() -> ssize_t,
) -> ssize_t {
    placed([one(buffer, len)], || {
        let call = |fd: BorrowedFd<'_>| {
            // SAFETY: by the caller.
            leased::read(fd, position, len, std::iter::once(unsafe { bytes_mut(buffer, len) }))
        };
        // SAFETY: by the caller.
        by_mode(fd, call, || unsafe { read_one(fd, buffer, len, position) }.unwrap_or_else(&linux))
    })
}

/// # Safety
/// As for [`list`] and [`bytes_mut`].
unsafe fn read_list_anywhere(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    position: Position,
    linux: impl Fn() -> ssize_t,
) -> ssize_t {
    let read = || {
        let call = |fd: BorrowedFd<'_>| {
            // SAFETY: by the caller.
            let Some(buffers) = (unsafe { list(buffers, count) }) else { return Way::Linux(None) };
            // SAFETY: by the caller.
            let parts = buffers.iter().map(|part| unsafe { bytes_mut(part.iov_base, part.iov_len) });
            leased::read(fd, position, total(buffers), parts)
        };
        // SAFETY: by the caller.
        by_mode(fd, call, || unsafe { read_list(fd, buffers, count, position) }.unwrap_or_else(&linux))
    };
    // SAFETY: by the caller.
    placed(unsafe { all(buffers, count) }, read)
}

/// # Safety
/// As for [`bytes`].
unsafe fn write_anywhere(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    position: Position,
    linux: impl Fn() -> ssize_t,
) -> ssize_t {
    placed([one(buffer, len)], || {
        let call = |fd: BorrowedFd<'_>| {
            // SAFETY: by the caller.
            leased::write(fd, position, len, std::iter::once(unsafe { bytes(buffer, len) }))
        };
        by_mode(fd, call, || {
            // SAFETY: by the caller.
            unsafe { write_one(fd, buffer, len, position) }.unwrap_or_else(|| noticed(fd, position, linux()))
        })
    })
}

/// # Safety
/// As for [`list`] and [`bytes`].
unsafe fn write_list_anywhere(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    position: Position,
    linux: impl Fn() -> ssize_t,
) -> ssize_t {
    let write = || {
        let call = |fd: BorrowedFd<'_>| {
            // SAFETY: by the caller.
            let Some(buffers) = (unsafe { list(buffers, count) }) else { return Way::Linux(None) };
            // SAFETY: by the caller.
            let parts = buffers.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) });
            leased::write(fd, position, total(buffers), parts)
        };
        by_mode(fd, call, || {
            // SAFETY: by the caller.
            let answer = unsafe { write_list(fd, buffers, count, position, Demands::default()) };
            answer.unwrap_or_else(|| noticed(fd, position, linux()))
        })
    };
    // SAFETY: by the caller.
    placed(unsafe { all(buffers, count) }, write)
}

/// The addresses of a buffer.
pub(super) fn one(start: *const c_void, len: size_t) -> Range<usize> {
    let start = start as usize;
    start..start.saturating_add(len)
}

/// The addresses of all buffers of a list.
///
/// # Safety
/// As for [`list`].
pub(super) unsafe fn all<'a>(buffers: *const iovec, count: c_int) -> impl Iterator<Item = Range<usize>> + Clone + 'a {
    // SAFETY: by the caller.
    unsafe { list(buffers, count) }.unwrap_or_default().iter().map(|part| one(part.iov_base, part.iov_len))
}

/// Makes a call of the kernel's, which may get pointers into mappings of extents that are not leased yet. The kernel cannot wait for leases, so it says EFAULT.
#[inline]
pub(super) fn placed(buffers: impl IntoIterator<Item = Range<usize>>, call: impl Fn() -> ssize_t) -> ssize_t {
    let mut buffers = Some(buffers);
    // The call is in one place, so that it is compiled into this.
    loop {
        let done = call();
        if done != -1 || !buffers.take().is_some_and(place) {
            return done;
        }
    }
}

/// Leases what buffers show, after a call has failed. Returns whether that is worth another attempt.
#[cold]
fn place(buffers: impl IntoIterator<Item = Range<usize>>) -> bool {
    // SAFETY: the address of the thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    if !program_maps::are_there() || unsafe { *errno } != libc::EFAULT {
        return false;
    }
    let placed =
        entry::enter(|| Some(Ok(buffers.into_iter().filter(|part| program_maps::place(part.clone())).count())));
    // SAFETY: as above.
    unsafe { *errno = libc::EFAULT };
    placed.is_some_and(|placed| placed.is_ok_and(|placed| placed > 0))
}

fn total(buffers: &[iovec]) -> usize {
    buffers.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// Gives the kernel the position for a preadv2 or pwritev2 that uses it, since Linux does these calls.
fn suspended_if_current(fd: c_int, offset: off_t) -> Option<Suspension> {
    (offset == -1 && is_of_mode(fd)).then(|| leased::suspend(fd))
}

/// Notes a write that Linux did.
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
    unsafe { read_anywhere(fd, buffer, len, Position::Current, || real::read(fd, buffer, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { read(fd, buffer, len) }
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
    unsafe { read_anywhere(fd, buffer, len, Position::At(offset), || real::pread(fd, buffer, len, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pread(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pread64(fd, buffer, len, offset) }
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
    unsafe { read_list_anywhere(fd, buffers, count, Position::Current, || real::readv(fd, buffers, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { read_list_anywhere(fd, buffers, count, Position::At(offset), || real::preadv(fd, buffers, count, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { preadv(fd, buffers, count, offset) }
}

/// The position and demands of preadv2 and pwritev2; `None` if a flag is unknown.
fn position_and_demands(offset: off_t, flags: c_int) -> Option<(Position, Demands)> {
    let indifferent = libc::RWF_HIPRI | libc::RWF_NOWAIT | libc::RWF_NOAPPEND | RWF_DONTCACHE;
    let demanding = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    let demands = Demands {
        appends: flags & libc::RWF_APPEND != 0,
        never_appends: flags & libc::RWF_NOAPPEND != 0,
        syncs: flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0,
    };
    let position = if offset == -1 { Position::Current } else { Position::At(offset) };
    (flags & !(indifferent | demanding) == 0).then_some((position, demands))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if is_of_mode(fd)
        && leased::has_cache()
        && let Some((position, _)) = position_and_demands(offset, flags)
    {
        // SAFETY: by the caller.
        let linux = || unsafe { real::preadv2(fd, buffers, count, offset, flags) };
        // SAFETY: by the caller.
        return unsafe { read_list_anywhere(fd, buffers, count, position, linux) };
    }
    let _bytes = is_of_mode(fd).then(|| leased::before_kernel_reads(fd)).flatten();
    let _position = suspended_if_current(fd, offset);
    let answer = position_and_demands(offset, flags)
        // SAFETY: by the caller.
        .and_then(|(position, _)| unsafe { read_list(fd, buffers, count, position) });
    // SAFETY: by the caller.
    let linux = || unsafe { real::preadv2(fd, buffers, count, offset, flags) };
    // SAFETY: by the caller.
    answer.unwrap_or_else(|| placed(unsafe { all(buffers, count) }, linux))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { preadv2(fd, buffers, count, offset, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    let position = Position::Current;
    // SAFETY: by the caller.
    unsafe { write_anywhere(fd, buffer, len, position, || real::write(fd, buffer, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { write(fd, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    let position = Position::At(offset);
    // SAFETY: by the caller.
    unsafe { write_anywhere(fd, buffer, len, position, || real::pwrite(fd, buffer, len, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwrite(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pwrite64(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwrite64(fd, buffer, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    let position = Position::Current;
    // SAFETY: by the caller.
    unsafe { write_list_anywhere(fd, buffers, count, position, || real::writev(fd, buffers, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    let position = Position::At(offset);
    // SAFETY: by the caller.
    unsafe { write_list_anywhere(fd, buffers, count, position, || real::pwritev(fd, buffers, count, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwritev(fd, buffers, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    let asked = position_and_demands(offset, flags);
    if is_of_mode(fd)
        && (leased::is_strict() || leased::has_cache())
        && let Some((position, demands)) = asked
        && !demands.appends
        && !demands.never_appends
        && (leased::is_strict() || !demands.syncs)
    {
        // In strict mode every write is durable, whatever flags it has.
        // SAFETY: by the caller.
        let linux = || unsafe { real::pwritev2(fd, buffers, count, offset, flags) };
        // SAFETY: by the caller.
        return unsafe { write_list_anywhere(fd, buffers, count, position, linux) };
    }
    let _bytes = is_of_mode(fd).then(|| leased::before_kernel_writes(fd)).flatten();
    let _position = suspended_if_current(fd, offset);
    // SAFETY: by the caller.
    let answer = asked.and_then(|(position, demands)| unsafe { write_list(fd, buffers, count, position, demands) });
    let (position, demands) = asked.unwrap_or((Position::At(offset), Demands::default()));
    // SAFETY: by the caller.
    let linux = || unsafe { real::pwritev2(fd, buffers, count, offset, flags) };
    // SAFETY: by the caller.
    let by_linux = || placed(unsafe { all(buffers, count) }, linux);
    answer.unwrap_or_else(|| {
        let written = noticed(fd, position, by_linux());
        if written > 0 && demands.appends {
            // Linux has written at the end, wherever that was.
            let _ = of_mapped(fd, |fd| transfer::give_up(fd, 0..u64::MAX));
        }
        written
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { pwritev2(fd, buffers, count, offset, flags) }
}
