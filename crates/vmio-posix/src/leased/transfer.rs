//! Transfers between a leased file and buffers, piece by piece.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::fs::fstat;
use rustix::io::{Errno, pread, pwrite};
use smallvec::SmallVec;

use super::call::Call;
use super::leased_file::LeasedFile;
use super::mode::is_strict;

/// A write of up to this number of buffers allocates nothing, since signal handlers write, too.
pub(super) const BUFFERS_ON_STACK: usize = 16;

/// The buffers of a write.
pub(super) type Buffers<'a> = SmallVec<[&'a [u8]; BUFFERS_ON_STACK]>;

/// Whether vmio or Linux does a call.
pub(crate) enum Way {
    /// vmio has done it, with this outcome.
    Done(Result<usize, Errno>),
    /// The kernel has to do it. While the value exists, the description does not change.
    Linux(Option<Call>),
}

/// Buffers without what is behind their first `most` bytes.
pub(super) fn up_to<'a>(most: usize, buffers: impl Iterator<Item = &'a [u8]>) -> Buffers<'a> {
    let mut left = most;
    let cut = |buffer: &'a [u8]| {
        let taken = &buffer[..buffer.len().min(left)];
        left -= taken.len();
        taken
    };
    buffers.map(cut).filter(|buffer| !buffer.is_empty()).collect()
}

/// Reads bytes of a leased file into buffers.
pub(super) fn read_part<'a>(
    call: &Call,
    leased: &LeasedFile,
    fd: BorrowedFd<'_>,
    start: u64,
    bytes: u64,
    buffers: impl Iterator<Item = &'a mut [u8]>,
) -> Result<usize, Errno> {
    let read = |at, buffer: &mut &mut [u8], range: Range<usize>| read_piece(call, leased, fd, at, &mut buffer[range]);
    transfer_in_pieces(start..start + bytes, buffers, read)
}

/// A part of a buffer that lies in one place: in the cache, or behind the cached part with Linux.
struct Piece {
    len: usize,
    transferred: usize,
}

/// Transfers bytes of a file to or from buffers, piece by piece. Ends early at a short piece; an error counts only if it is the first
/// piece's.
fn transfer_in_pieces<B: AsRef<[u8]>>(
    bytes: Range<u64>,
    buffers: impl Iterator<Item = B>,
    mut transfer: impl FnMut(u64, &mut B, Range<usize>) -> Result<Piece, Errno>,
) -> Result<usize, Errno> {
    let mut at = bytes.start;
    for mut buffer in buffers {
        let len = (bytes.end - at).min(buffer.as_ref().len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let piece = match transfer(at, &mut buffer, done..len) {
                Ok(piece) => piece,
                Err(_) if at > bytes.start => return Ok((at - bytes.start) as usize),
                Err(error) => return Err(error),
            };
            at += piece.transferred as u64;
            if piece.transferred < piece.len {
                return Ok((at - bytes.start) as usize);
            }
            done += piece.len;
        }
    }
    Ok((at - bytes.start) as usize)
}

/// Reads the first piece of a buffer.
fn read_piece(
    call: &Call,
    leased: &LeasedFile,
    fd: BorrowedFd<'_>,
    at: u64,
    buffer: &mut [u8],
) -> Result<Piece, Errno> {
    let copyable_end = call.copyable_end(leased, at);
    let len = piece_len(leased, copyable_end, at, buffer.len());
    let part = &mut buffer[..len];
    let is_copied = at + len as u64 <= copyable_end && leased.read(fd, copyable_end, at, part);
    if is_copied && call.bytes_that_count(leased, &(at..at + len as u64)) == len as u64 {
        return Ok(Piece { len, transferred: len });
    }
    if at < copyable_end {
        leased.write_back()?;
    }
    Ok(Piece { len, transferred: pread(fd, part, at)? })
}

/// The length of the first piece of a buffer. Without a cache Linux has all bytes, and there is one piece.
fn piece_len(leased: &LeasedFile, copyable_end: u64, at: u64, len: usize) -> usize {
    if leased.cached().is_some() && at < copyable_end { (copyable_end - at).min(len as u64) as usize } else { len }
}

/// Writes buffers to a leased file.
pub(super) fn write_part<'a>(
    call: &Call,
    leased: &LeasedFile,
    fd: BorrowedFd<'_>,
    start: u64,
    bytes: u64,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let end = start.checked_add(bytes).ok_or(Errno::FBIG)?;
    let write = |at, buffer: &mut &[u8], range: Range<usize>| write_piece(call, leased, fd, at, &buffer[range]);
    transfer_in_pieces(start..end, buffers, write)
}

/// Writes the first piece of a buffer.
fn write_piece(call: &Call, leased: &LeasedFile, fd: BorrowedFd<'_>, at: u64, buffer: &[u8]) -> Result<Piece, Errno> {
    let copyable_end = call.copyable_end(leased, at);
    let len = piece_len(leased, copyable_end, at, buffer.len());
    let part = &buffer[..len];
    let is_copied = at + len as u64 <= copyable_end && leased.write(fd, copyable_end, at, part);
    // A signal handler that interrupts this call cannot wait for its end, and may have returned the lease: the kernel then writes again.
    let counts = is_copied && (leased.cached().is_none() || call.is_still_leased());
    let kept = if counts { call.bytes_that_count(leased, &(at..at + len as u64)) as usize } else { 0 };
    if counts && kept == len {
        return Ok(Piece { len, transferred: len });
    }
    let is_durable = is_strict() || call.description.flags.load(Ordering::Relaxed) & libc::O_DSYNC != 0;
    if at == copyable_end && leased.appends() {
        if leased.append(at, &[part], is_durable) {
            call.is_as_long_as(at + len as u64);
            return Ok(Piece { len, transferred: len });
        }
        // The kernel learns the length before it appends.
        call.is_as_long_as(fstat(fd)?.st_size as u64);
    }
    if at < copyable_end {
        leased.write_back()?;
    }
    let written = match pwrite(fd, &part[kept..], at + kept as u64) {
        Err(_) if kept > 0 => 0,
        written => written?,
    };
    let transferred = kept + written;
    match leased.cached() {
        Some(file) => file.written_by_kernel(at, &part[..transferred]),
        None => call.is_as_long_as(at + transferred as u64),
    }
    Ok(Piece { len, transferred })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_transfers_no_more_than_the_kernel_would() {
        let buffers = [&b"abc"[..], b"", b"defg", b"hi"];
        let cut = |most| up_to(most, buffers.into_iter()).concat();
        assert_eq!([cut(0), cut(2), cut(3), cut(6), cut(99)], [&b""[..], b"ab", b"abc", b"abcdef", b"abcdefghi"]);
        assert_eq!(up_to(4, buffers.into_iter()).len(), 2);
    }
}
