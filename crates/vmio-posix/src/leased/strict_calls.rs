//! The program's writes in strict mode.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pwritev};
use smallvec::SmallVec;

use super::call::Call;
use super::calls::append_by_kernel;
use super::description::Description;
use super::description_table;
use super::lease_manager::{self, Logging};
use super::lease_requests;
use super::leased_file::LeasedFile;
use super::strict::{SharedWrite, Turn};
use super::transfer::{BUFFERS_ON_STACK, Buffers, Way, up_to, write_part};
use crate::entry;
use crate::table::is_regular;
use crate::transfer::{Position, TRANSFER_MAX};

/// write, pwrite, writev and pwritev.
pub(super) fn write<'a>(fd: BorrowedFd<'_>, position: Position, buffers: impl Iterator<Item = &'a [u8]>) -> Way {
    let buffers: Buffers<'_> = buffers.collect();
    let mut claimed = None;
    let way = write_or_claim(fd, position, &buffers, &mut claimed);
    let Some(Range { start, end }) = claimed else { return way };
    let outcome = match way {
        Way::Done(outcome) => outcome,
        // The kernel's own position is behind the bytes.
        Way::Linux(_call) => {
            let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> =
                buffers.iter().map(|part| IoSlice::new(part)).collect();
            pwritev(fd, &slices, start)
        }
    };
    let reached = start + outcome.unwrap_or(0) as u64;
    if reached != end {
        put_back(fd, end, reached);
    }
    Way::Done(outcome)
}

/// Moves the position back, unless another thread has moved it since.
fn put_back(fd: BorrowedFd<'_>, from: u64, to: u64) {
    match Call::begin(fd.as_raw_fd()) {
        Some(call) if call.leased().is_some() => call.rewind(from, to),
        // While the value exists, nobody takes a lease.
        _call => {
            if seek(fd, SeekFrom::Current(0)) == Ok(from) {
                _ = seek(fd, SeekFrom::Start(to));
            }
        }
    }
}

/// The same. If there is no room for an append, the position may have moved past its bytes already, which are claimed then: another thread's write may have
/// gone on from there.
fn write_or_claim(fd: BorrowedFd<'_>, position: Position, buffers: &[&[u8]], claimed: &mut Option<Range<u64>>) -> Way {
    // After the lease manager has tried, the description is leased, or the file is shared.
    for has_tried in [false, true] {
        let mut is_shared = false;
        if let Some(call) = Call::begin(fd.as_raw_fd()) {
            if let Some(leased) = call.leased() {
                // If it has no log, it is open for reading only.
                let Some(logged) = leased.logged() else { return Way::Done(Err(Errno::BADF)) };
                if claimed.is_none() {
                    match append(&call, leased, position, buffers) {
                        Append::Done(bytes) => return Way::Done(Ok(bytes)),
                        Append::Claimed(bytes) => *claimed = Some(bytes),
                        Append::Not => {}
                    }
                }
                let position = claimed.as_ref().map_or(position, at);
                let write = || logged.turn().map(|turn| write_logged(&call, leased, &turn, fd, position, buffers));
                // None if another thread returned the lease while this thread waited for its turn.
                if let Some(outcome) = entry::as_vmio_undisturbed(write) {
                    return Way::Done(outcome);
                }
            }
        } else if description_table::is_outside(fd.as_raw_fd()) {
            return Way::Linux(None);
        } else {
            is_shared = has_tried || description_table::is_known(fd.as_raw_fd());
        }
        if !fstat(fd).is_ok_and(|stat| is_regular(&stat)) {
            return Way::Linux(None);
        }
        match lease_manager::logging_for(fd) {
            Logging::Available => {}
            Logging::NotNeeded => return Way::Linux(None),
            // Without a log the write would not be durable and atomic.
            Logging::Unavailable => return Way::Done(Err(Errno::AGAIN)),
        }
        if is_shared {
            break;
        }
        lease_requests::lease_now(fd.as_raw_fd());
    }
    let position = claimed.as_ref().map_or(position, at);
    match lease_requests::write(&SharedWrite { fd, position, buffers }) {
        Some(outcome) => Way::Done(outcome),
        // A child by vfork, before its exec.
        None => Way::Linux(None),
    }
}

/// The outcome of a write that may be an append.
enum Append {
    /// This number of bytes is appended.
    Done(usize),
    /// There is no room. The position has moved past these bytes, which the write is to store there.
    Claimed(Range<u64>),
    /// The write is no append, or there is no room.
    Not,
}

/// Appends to the file without its log, where that is durable and whole: on persistent memory of vmio-pmfs.
fn append(call: &Call, leased: &LeasedFile, position: Position, buffers: &[&[u8]]) -> Append {
    let bytes: usize = buffers.iter().map(|part| part.len()).sum();
    if bytes == 0 || bytes > TRANSFER_MAX || !leased.appends() {
        return Append::Not;
    }
    let (description, len) = (call.description, bytes as u64);
    let appends = description.flags.load(Ordering::Relaxed) & libc::O_APPEND != 0;
    let mut end = call.known_len();
    loop {
        let start = match position {
            _ if appends => end,
            Position::Current => description.position.load(Ordering::Relaxed),
            Position::At(offset) => offset as u64,
        };
        if start != end {
            return Append::Not;
        }
        // Another thread may have the position by now: then its write is no append, and has a log.
        let moves = position == Position::Current && !appends;
        if moves && !call.moved(end, end + len) {
            return Append::Not;
        }
        if leased.append(end, buffers, true) {
            call.is_as_long_as(end + len);
            if position == Position::Current && appends {
                description.position.store(end + len, Ordering::Relaxed);
            }
            return Append::Done(bytes);
        }
        if moves {
            return Append::Claimed(end..end + len);
        }
        // Another thread may have appended first.
        match call.known_len() {
            now if now > end => end = now,
            _ => return Append::Not,
        }
    }
}

/// Has the kernel append, for a handler that has interrupted an append without the log. The server's is whole and durable, too, up to a mebibyte.
fn append_beside(
    description: &Description,
    fd: BorrowedFd<'_>,
    position: Position,
    buffers: &[&[u8]],
) -> Result<usize, Errno> {
    let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> = buffers.iter().map(|part| IoSlice::new(part)).collect();
    let (written, end) = append_by_kernel(description, fd, &slices)?;
    if position == Position::Current {
        description.position.store(end, Ordering::Relaxed);
    }
    Ok(written)
}

/// The position of bytes that an append has claimed.
fn at(claimed: &Range<u64>) -> Position {
    Position::At(claimed.start as i64)
}

fn write_logged(
    call: &Call,
    leased: &LeasedFile,
    turn: &Turn<'_>,
    fd: BorrowedFd<'_>,
    position: Position,
    buffers: &[&[u8]],
) -> Result<usize, Errno> {
    let description = call.description;
    let bytes_max = turn.bytes_max().min(TRANSFER_MAX as u64);
    let buffers = up_to(usize::try_from(bytes_max).unwrap_or(usize::MAX), buffers.iter().copied());
    let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();

    let appends = description.flags.load(Ordering::Relaxed) & libc::O_APPEND != 0;
    // The log says where the end is. Nobody may move it without the log before the file has the bytes.
    let alone = appends.then(|| leased.without_appends());
    if let Some(None) = alone {
        return if leased.appends() { append_beside(description, fd, position, &buffers) } else { Err(Errno::AGAIN) };
    }
    // A lower bound will do for a write within it: earlier writes behind it are in the log.
    let known_len = call.known_len();
    let len_before = |start: u64| match start.checked_add(bytes) {
        Some(end) if end <= known_len => Ok(known_len),
        _ => Ok(fstat(fd)?.st_size as u64),
    };
    let (start, len) = match position {
        _ if appends => {
            let len = fstat(fd)?.st_size as u64;
            (len, len)
        }
        Position::At(offset) => {
            let start = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
            (start, len_before(start)?)
        }
        Position::Current => {
            let start = call.advance(|_| Ok(bytes))?.0;
            (start, len_before(start).inspect_err(|_| call.rewind(start.saturating_add(bytes), start))?)
        }
    };
    let write = || {
        start.checked_add(bytes).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::INVAL)?;
        call.is_as_long_as(len);
        let slices: SmallVec<[IoSlice<'_>; BUFFERS_ON_STACK]> = buffers.iter().map(|part| IoSlice::new(part)).collect();
        let unapplied = turn.log(start, len, &slices)?;
        let filled = leased.cached().map_or(Ok(()), |file| file.fill_up_to(start));
        let outcome = filled.and_then(|()| write_part(call, leased, fd, start, bytes, buffers.iter().copied()));
        drop(unapplied);
        if outcome != Ok(bytes as usize) {
            leased.write_back()?;
            turn.take_back(fd)?;
        }
        outcome
    };
    let outcome = if bytes == 0 { Ok(0) } else { write() };
    if position == Position::Current {
        let end = start + outcome.unwrap_or(0) as u64;
        if appends {
            description.position.store(end, Ordering::Relaxed);
        } else {
            call.rewind(start.saturating_add(bytes), end);
        }
    }
    outcome
}
