//! Reads, writes and moves of the position, as the program calls them.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pread, pwrite, pwritev};
use smallvec::SmallVec;

use super::descriptors::{self, Call, Held};
use super::lease_manager;
use super::strict_calls;
use super::warm::Warm;
use crate::transfer::{Position, TRANSFER_MAX};

/// So many buffers are written without an allocation: signal handlers write, too.
pub(super) const BUFFERS_ON_STACK: usize = 16;

/// Files may be so long everywhere.
const FAR: u64 = 1 << 31;

/// Who does a call.
pub(crate) enum Way {
    /// It is done: what it returns.
    Done(Result<usize, Errno>),
    /// Linux does it, and as long as there is the value of this, nothing changes about the description.
    Linux(Option<Call>),
}

impl Call {
    /// The kernel reads or writes a file that may be worth more.
    fn is_of_the_kernel(&self) {
        if self.description.is_worth_a_look() && !lease_manager::look_at(self.fd) {
            self.description.ask_again();
        }
    }

    /// What is known of the length; of the file as it is now, if that reaches no further than `end`.
    fn len(&self, fd: BorrowedFd<'_>, end: u64) -> Result<u64, Errno> {
        if let Some(file) = self.warm().and_then(Warm::cached) {
            return Ok(file.len());
        }
        let known = &self.description.known_len;
        let len = known.load(Ordering::Relaxed);
        if end <= len {
            return Ok(len);
        }
        let now = fstat(fd)?.st_size as u64;
        known.fetch_max(now, Ordering::Relaxed);
        Ok(now)
    }

    /// Where the bytes end, from an offset on, that can be copied: by what is known of the length, or where frames have them.
    fn copied(&self, warm: &Warm, offset: u64) -> u64 {
        warm.cached().map_or_else(|| self.description.known_len.load(Ordering::Relaxed), |file| file.mapped(offset))
    }

    /// Moves the position by what `bytes` says of it; what it was before, and by how much it has moved.
    pub(super) fn advance(&self, bytes: impl Fn(u64) -> Result<u64, Errno>) -> Result<(u64, u64), Errno> {
        let position = &self.description.position;
        let mut start = position.load(Ordering::Relaxed);
        loop {
            let bytes = bytes(start)?;
            match position.compare_exchange_weak(start, start + bytes, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok((start, bytes)),
                Err(now) => start = now,
            }
        }
    }

    /// The call came less far than the position was moved for it. If another has begun behind it, that stays where it is.
    pub(super) fn fall_back(&self, from: u64, to: u64) {
        let _ = self.description.position.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether a call is about bytes that no file has: Linux says what is wrong first.
fn is_nowhere(position: Position, len: usize) -> bool {
    let end = |offset: i64| u64::try_from(offset).ok()?.checked_add(len as u64).filter(|end| *end <= i64::MAX as u64);
    matches!(position, Position::At(offset) if end(offset).is_none())
}

/// read, pread, readv and preadv; `len` is that of all buffers.
pub(crate) fn read<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    len: usize,
    buffers: impl Iterator<Item = &'a mut [u8]>,
) -> Way {
    if is_nowhere(position, len) {
        return Way::Linux(None);
    }
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(warm) = call.warm() else {
        call.is_of_the_kernel();
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
        let outcome = read_part(&call, warm, fd, start, bytes, buffers);
        if position == Position::Current && outcome != Ok(bytes as usize) {
            call.fall_back(start + bytes, start + outcome.unwrap_or(0) as u64);
        }
        outcome
    })())
}

fn read_part<'a>(
    call: &Call,
    warm: &Warm,
    fd: BorrowedFd<'_>,
    start: u64,
    bytes: u64,
    buffers: impl Iterator<Item = &'a mut [u8]>,
) -> Result<usize, Errno> {
    let end = start + bytes;
    let mut at = start;
    for buffer in buffers {
        let take = (end - at).min(buffer.len() as u64) as usize;
        let mut rest = &mut buffer[..take];
        while !rest.is_empty() {
            let (in_one, count) = match read_in_one(call, warm, fd, at, rest) {
                Ok(counts) => counts,
                Err(_) if at > start => return Ok((at - start) as usize),
                Err(error) => return Err(error),
            };
            at += count as u64;
            if count < in_one {
                return Ok((at - start) as usize);
            }
            rest = &mut rest[in_one..];
        }
    }
    Ok((at - start) as usize)
}

/// Reads as much of a buffer as is in one place: how much that is, and how much was read.
fn read_in_one(
    call: &Call,
    warm: &Warm,
    fd: BorrowedFd<'_>,
    at: u64,
    buffer: &mut [u8],
) -> Result<(usize, usize), Errno> {
    let copied = call.copied(warm, at);
    let in_one = in_one_place(warm, copied, at, buffer.len());
    let part = &mut buffer[..in_one];
    if at + in_one as u64 <= copied && warm.read(fd, copied, at, part) {
        return Ok((in_one, in_one));
    }
    if at < copied {
        warm.write_back()?;
    }
    Ok((in_one, pread(fd, part, at)?))
}

/// How much of so many bytes is in frames, or else how much is not. Where there are no frames the kernel has all.
fn in_one_place(warm: &Warm, copied: u64, at: u64, len: usize) -> usize {
    if warm.cached().is_some() && at < copied { (copied - at).min(len as u64) as usize } else { len }
}

/// write, pwrite, writev and pwritev; `len` is that of all buffers.
pub(crate) fn write<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    len: usize,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Way {
    if is_nowhere(position, len) {
        return Way::Linux(None);
    }
    if lease_manager::is_strict() {
        return strict_calls::write(fd, position, buffers);
    }
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(warm) = call.warm() else {
        call.is_of_the_kernel();
        return Way::Linux(Some(call));
    };
    let flags = call.description.flags.load(Ordering::Relaxed);
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Way::Done(Err(Errno::BADF));
    }
    // By the kernel: what is written there is at the end.
    if flags & libc::O_APPEND != 0 {
        drop(call);
        descriptors::leave(fd.as_raw_fd());
        return Way::Linux(None);
    }
    let bytes = len.min(TRANSFER_MAX) as u64;
    let start = match position {
        Position::Current => call.description.position.load(Ordering::Relaxed),
        Position::At(offset) => offset as u64,
    };
    // A hole comes to be, and files with holes are not for frames.
    if bytes > 0 && warm.cached().is_some_and(|file| start > file.len()) {
        drop(call);
        let _held = descriptors::held(fd.as_raw_fd());
        return Way::Linux(Call::begin(fd.as_raw_fd()));
    }
    // On persistent memory a copy is durable, and so is what the kernel writes by such a descriptor.
    let takes_flush = flags & libc::O_DSYNC != 0 && !warm.is_persistent();
    Way::Done((|| {
        let start = match position {
            Position::Current => call.advance(|_| Ok(bytes))?.0,
            Position::At(offset) => u64::try_from(offset).map_err(|_| Errno::INVAL)?,
        };
        let outcome = match warm.cached() {
            None if takes_flush => write_durably(&call, fd, start, buffers),
            cached => write_part(&call, warm, fd, start, bytes, buffers).and_then(|count| {
                // Written back by such a descriptor it is durable.
                let file = cached.filter(|_| takes_flush);
                file.map_or(Ok(()), |file| file.write_back(start..start + count as u64)).map(|()| count)
            }),
        };
        if position == Position::Current && outcome != Ok(bytes as usize) {
            call.fall_back(start + bytes, start + outcome.unwrap_or(0) as u64);
        }
        outcome
    })())
}

/// By the kernel, with one flush for all buffers.
fn write_durably<'a>(
    call: &Call,
    fd: BorrowedFd<'_>,
    start: u64,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> = buffers.map(IoSlice::new).collect();
    let count = pwritev(fd, &slices, start)?;
    call.description.known_len.fetch_max(start + count as u64, Ordering::Relaxed);
    Ok(count)
}

pub(super) fn write_part<'a>(
    call: &Call,
    warm: &Warm,
    fd: BorrowedFd<'_>,
    start: u64,
    bytes: u64,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let end = start.checked_add(bytes).ok_or(Errno::FBIG)?;
    let mut at = start;
    for buffer in buffers {
        let take = (end - at).min(buffer.len() as u64) as usize;
        let mut rest = &buffer[..take];
        while !rest.is_empty() {
            let (in_one, count) = match write_in_one(call, warm, fd, at, rest) {
                Ok(counts) => counts,
                Err(_) if at > start => return Ok((at - start) as usize),
                Err(error) => return Err(error),
            };
            at += count as u64;
            if count < in_one {
                return Ok((at - start) as usize);
            }
            rest = &rest[in_one..];
        }
    }
    Ok((at - start) as usize)
}

/// Writes as much of a buffer as has its place in one: how much that is, and how much was written.
fn write_in_one(call: &Call, warm: &Warm, fd: BorrowedFd<'_>, at: u64, buffer: &[u8]) -> Result<(usize, usize), Errno> {
    let copied = call.copied(warm, at);
    let in_one = in_one_place(warm, copied, at, buffer.len());
    let part = &buffer[..in_one];
    let is_copied = at + in_one as u64 <= copied && warm.write(fd, copied, at, part);
    // Who could not wait for the end of this call, since it interrupts it, has made the file the kernel's meanwhile.
    if is_copied && (warm.cached().is_none() || call.is_still_warm()) {
        return Ok((in_one, in_one));
    }
    if at < copied {
        warm.write_back()?;
    }
    let count = pwrite(fd, part, at)?;
    match warm.cached() {
        Some(file) => file.written_by_kernel(at, &part[..count]),
        None => _ = call.description.known_len.fetch_max(at + count as u64, Ordering::Relaxed),
    }
    Ok((in_one, count))
}

/// lseek.
pub(crate) fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Way {
    let Some(call) = Call::begin(fd.as_raw_fd()) else { return Way::Linux(None) };
    let Some(warm) = call.warm() else { return Way::Linux(Some(call)) };
    let position = &call.description.position;
    let moved = |base: u64| {
        let sum = base.checked_add_signed(offset).ok_or(if offset < 0 { Errno::INVAL } else { Errno::OVERFLOW })?;
        if sum > i64::MAX as u64 {
            return Err(Errno::OVERFLOW);
        }
        // Behind some point no file of this file system ends, and who knows that is the kernel.
        if sum >= FAR { seek(fd, SeekFrom::Start(sum)) } else { Ok(sum) }
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
            // What was not written yet has room, and looks like a hole.
            warm.write_back()?;
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

/// fsync and fdatasync: the outcome, if there is nothing to do for the kernel.
pub(crate) fn synced(fd: BorrowedFd<'_>) -> Option<Result<(), Errno>> {
    if descriptors::has_lost_writes(fd.as_raw_fd()) {
        return Some(Err(Errno::IO));
    }
    let call = Call::begin(fd.as_raw_fd())?;
    let warm = call.warm()?;
    if let Some(logged) = warm.logged() {
        return Some(logged.sync(fd));
    }
    warm.is_synced();
    warm.write_back().err().map(Err)
}

/// The kernel is about to read a file by itself: it must know what was written.
pub(crate) fn reads(fd: RawFd) -> Option<Held> {
    lease_manager::has_frames().then(|| descriptors::held(fd))
}

/// Something that is not logged, and goes by the kernel, is about to change bytes of a file: in strict mode it must not be undone, and
/// what is in frames of this process must not be older.
pub(crate) fn changes(fd: RawFd) -> Option<Held> {
    (lease_manager::is_strict() || lease_manager::has_frames()).then(|| descriptors::held(fd))
}

/// The same of what the kernel maps, which is changed, or read, for as long as it is mapped.
pub(crate) fn maps(fd: BorrowedFd<'_>, changes: bool) {
    if lease_manager::has_frames() || changes && lease_manager::is_strict() {
        descriptors::leave(fd.as_raw_fd());
    }
}
