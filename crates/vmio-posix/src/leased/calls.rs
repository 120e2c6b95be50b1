//! The program's reads, writes and seeks.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pwritev, writev};
use smallvec::SmallVec;
use vmio::SignalsBlocked;

use super::call::Call;
use super::description::Description;
use super::description_table;
use super::descriptors::{self, Suspension};
use super::leased_file::LeasedFile;
use super::mode;
use super::strict_calls;
use super::transfer::{BUFFERS_ON_STACK, Way, read_part, up_to, write_part};
use crate::transfer::{Position, TRANSFER_MAX};

/// How often an append without the kernel is tried while others append, too. Fewer times if only the lease is missing.
const ATTEMPTS_MAX: u32 = 16;

/// Every file system allows files of this length.
const ALLOWED_LEN_MIN: u64 = 1 << 31;

/// Whether a call is about bytes beyond the end of any file: the kernel then chooses the error.
fn is_out_of_range(position: Position, len: usize) -> bool {
    let end = |offset: i64| u64::try_from(offset).ok()?.checked_add(len as u64).filter(|end| *end <= i64::MAX as u64);
    matches!(position, Position::At(offset) if end(offset).is_none())
}

/// read, pread, readv and preadv; `len` is the length of all buffers together.
pub(crate) fn read<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    len: usize,
    buffers: impl Iterator<Item = &'a mut [u8]>,
) -> Way {
    if is_out_of_range(position, len) {
        return Way::Linux(None);
    }
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(leased) = call.leased() else {
        call.count_kernel_call();
        return Way::Linux(Some(call));
    };
    if call.description.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == libc::O_WRONLY {
        return Way::Done(Err(Errno::BADF));
    }
    let wanted = len.min(TRANSFER_MAX) as u64;
    let part = |start: u64| {
        start.checked_add(len as u64).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::INVAL)?;
        Ok(call.len(fd, start + wanted)?.saturating_sub(start).min(wanted))
    };
    Way::Done((|| {
        let (start, bytes) = match position {
            Position::Current => call.advance(part)?,
            Position::At(offset) => {
                let start = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
                (start, part(start)?)
            }
        };
        let outcome = read_part(&call, leased, fd, start, bytes, buffers);
        if position == Position::Current && outcome != Ok(bytes as usize) {
            call.rewind(start + bytes, start + outcome.unwrap_or(0) as u64);
        }
        outcome
    })())
}

/// write, pwrite, writev and pwritev; `len` is the length of all buffers together.
pub(crate) fn write<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    len: usize,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Way {
    if is_out_of_range(position, len) {
        return Way::Linux(None);
    }
    if mode::is_strict() {
        return strict_calls::write(fd, position, buffers);
    }
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(leased) = call.leased() else {
        call.count_kernel_call();
        return Way::Linux(Some(call));
    };
    let flags = call.description.flags.load(Ordering::Relaxed);
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Way::Done(Err(Errno::BADF));
    }
    // The kernel appends, unless vmio can.
    let appends = flags & libc::O_APPEND != 0;
    if appends && !leased.appends() {
        drop(call);
        descriptors::stop_serving(fd.as_raw_fd());
        return Way::Linux(None);
    }
    let bytes = len.min(TRANSFER_MAX) as u64;
    if appends {
        return Way::Done(append(&call, leased, fd, position, buffers));
    }
    let start = match position {
        Position::Current => call.description.position.load(Ordering::Relaxed),
        Position::At(offset) => offset as u64,
    };
    // This write makes a hole, and files with holes are not cached.
    if bytes > 0 && leased.cached().is_some_and(|file| start > file.len()) {
        drop(call);
        let _suspension = descriptors::suspend(fd.as_raw_fd());
        return Way::Linux(Call::begin(fd.as_raw_fd()));
    }
    // On persistent memory a copy is durable at once.
    let must_flush = flags & libc::O_DSYNC != 0 && !leased.is_persistent();
    Way::Done((|| {
        let start = match position {
            Position::Current => call.advance(|_| Ok(bytes))?.0,
            Position::At(offset) => u64::try_from(offset).map_err(|_| Errno::INVAL)?,
        };
        let outcome = match leased.cached() {
            None if must_flush => write_durably(&call, fd, start, buffers),
            cached => write_part(&call, leased, fd, start, bytes, buffers).and_then(|count| {
                // A write-back by a descriptor with O_DSYNC is durable.
                let file = cached.filter(|_| must_flush);
                file.map_or(Ok(()), |file| file.write_back(start..start + count as u64)).map(|()| count)
            }),
        };
        if position == Position::Current && outcome != Ok(bytes as usize) {
            call.rewind(start + bytes, start + outcome.unwrap_or(0) as u64);
        }
        outcome
    })())
}

/// Appends to a file that is open with O_APPEND, whatever the position. Its room behind the end is this process's alone.
fn append<'a>(
    call: &Call,
    leased: &LeasedFile,
    fd: BorrowedFd<'_>,
    position: Position,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let (description, slices) = (call.description, up_to(TRANSFER_MAX, buffers));
    let len: usize = slices.iter().map(|bytes| bytes.len()).sum();
    if len == 0 {
        return Ok(0);
    }
    let moved_to = |end: u64| {
        if position == Position::Current {
            description.position.store(end, Ordering::Relaxed);
        }
    };
    let durably = description.flags.load(Ordering::Relaxed) & libc::O_DSYNC != 0;
    let mut end = call.known_len();
    let mut left = ATTEMPTS_MAX;
    while left > 0 {
        if leased.append(end, &slices, durably) {
            call.is_as_long_as(end + len as u64);
            moved_to(end + len as u64);
            return Ok(len);
        }
        // Another thread may have appended first, or another process. Where the kernel appends, nobody says where the bytes are.
        let now = call.known_len().max(fstat(fd)?.st_size as u64);
        left = if now == end { left / 2 } else { left - 1 };
        end = now;
    }
    let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> = slices.iter().map(|bytes| IoSlice::new(bytes)).collect();
    // At the end of the file, whatever the offset.
    if position != Position::Current {
        return pwritev(fd, &slices, 0);
    }
    let (written, end) = append_by_kernel(description, fd, &slices)?;
    call.is_as_long_as(end);
    moved_to(end);
    Ok(written)
}

/// Has the kernel append. Returns the number of bytes, and where they end, as far as that can be known.
pub(super) fn append_by_kernel(
    description: &Description,
    fd: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
) -> Result<(usize, u64), Errno> {
    // The kernel has one position for all threads, which tells where the bytes end. A handler must not wait for its own thread.
    let _signals = SignalsBlocked::new();
    let _alone = description.kernel_position();
    let before = fstat(fd)?.st_size as u64;
    let written = writev(fd, slices)?;
    let (position, after) = (seek(fd, SeekFrom::Current(0))?, fstat(fd)?.st_size as u64);
    let least = before + written as u64;
    // The kernel does not know where the file ends to which another process appends by a lease. Nor does anybody if it was cut meanwhile.
    Ok((written, if least <= after { position.clamp(least, after) } else { position }))
}

/// Lets the kernel write all buffers, with one flush.
fn write_durably<'a>(
    call: &Call,
    fd: BorrowedFd<'_>,
    start: u64,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> = buffers.map(IoSlice::new).collect();
    let count = pwritev(fd, &slices, start)?;
    call.is_as_long_as(start + count as u64);
    Ok(count)
}

/// lseek.
pub(crate) fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Way {
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(leased) = call.leased() else { return Way::Linux(Some(call)) };
    let position = &call.description.position;
    let moved = |base: u64| {
        let sum = base.checked_add_signed(offset).ok_or(if offset < 0 { Errno::INVAL } else { Errno::OVERFLOW })?;
        if sum > i64::MAX as u64 {
            return Err(Errno::OVERFLOW);
        }
        // The kernel knows how long a file of this file system may be.
        if sum >= ALLOWED_LEN_MIN { seek(fd, SeekFrom::Start(sum)) } else { Ok(sum) }
    };
    let outcome = match whence {
        libc::SEEK_CUR => {
            let mut now = position.load(Ordering::Relaxed);
            loop {
                let next = match moved(now) {
                    Ok(next) => next,
                    Err(error) => break Err(error),
                };
                match position.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => break Ok(next),
                    Err(changed) => now = changed,
                }
            }
        }
        libc::SEEK_SET => moved(0),
        libc::SEEK_END => fstat(fd).and_then(|stat| moved(stat.st_size as u64)),
        libc::SEEK_DATA | libc::SEEK_HOLE => u64::try_from(offset).map_err(|_| Errno::NXIO).and_then(|offset| {
            // Space that is allocated and not written yet looks like a hole.
            leased.write_back()?;
            seek(fd, if whence == libc::SEEK_DATA { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) })
        }),
        _ => Err(Errno::INVAL),
    };
    if whence != libc::SEEK_CUR
        && let Ok(next) = outcome
    {
        position.store(next, Ordering::Relaxed);
    }
    Way::Done(outcome.map(|next| next as usize))
}

/// fsync and fdatasync: the outcome; none if the kernel has something left to do.
pub(crate) fn sync(fd: BorrowedFd<'_>) -> Option<Result<(), Errno>> {
    if description_table::has_lost_writes(fd.as_raw_fd()) {
        return Some(Err(Errno::IO));
    }
    let call = Call::begin(fd.as_raw_fd())?;
    let leased = call.leased()?;
    if let Some(logged) = leased.logged() {
        return Some(logged.sync(fd));
    }
    if leased.is_always_durable() {
        return Some(Ok(()));
    }
    leased.count_sync();
    leased.write_back().err().map(Err)
}

/// Has the kernel learn the length of a file to which this process has appended without it.
fn tell_length(fd: RawFd) {
    let Some(call) = Call::begin(fd) else { return };
    if call.leased().is_some_and(LeasedFile::appends)
        && let Some(own) = call.description.own.get()
    {
        _ = fstat(own);
    }
}

/// Writes back the bytes of a cached file before Linux reads the file by itself.
pub(crate) fn before_kernel_reads(fd: RawFd) -> Option<Suspension> {
    tell_length(fd);
    mode::has_cache().then(|| descriptors::suspend(fd))
}

/// Prepares for a change of a file's bytes by the kernel that no log has. In strict mode a replay must not undo the change, and the
/// process's cache must not hold older bytes.
pub(crate) fn before_kernel_writes(fd: RawFd) -> Option<Suspension> {
    tell_length(fd);
    (mode::is_strict() || mode::has_cache()).then(|| descriptors::suspend(fd))
}

/// Prepares for another length of a file, which the kernel gives it. The known length would be too long; and in strict mode a replay would bring the cut
/// bytes back. A file that this process maps by its extents stays served: the server takes back what is cut, as if another process had cut it.
pub(crate) fn before_kernel_truncates(fd: RawFd) -> Option<Suspension> {
    tell_length(fd);
    let call = Call::begin(fd);
    let stays = call.as_ref().and_then(Call::leased).is_some_and(|leased| leased.has_extents() && !mode::is_strict());
    drop(call);
    (!stays).then(|| descriptors::suspend(fd))
}

/// Prepares for a mapping of a file by the kernel, which then reads or changes the file for as long as the mapping lasts.
pub(crate) fn before_kernel_maps(fd: BorrowedFd<'_>, changes: bool) {
    tell_length(fd.as_raw_fd());
    if mode::has_cache() || changes && mode::is_strict() {
        descriptors::stop_serving(fd.as_raw_fd());
    }
}
