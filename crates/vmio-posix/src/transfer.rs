//! Reads and writes of files that the program has mapped, too: they go through the mapping, so that both see the same bytes.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, Stat, fcntl_getfl, seek};

use crate::entry::Answer;
use crate::errno::{self, Errno};
use crate::file::File;
use crate::process::Process;
use crate::statistics::add;

/// The longest transfer of one call, as with Linux.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// Where a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// At this byte.
    At(i64),
    /// At the descriptor's position, which advances.
    Current,
}

/// The flags of pwritev2, beside those of the descriptor.
#[derive(Clone, Copy, Default)]
pub(crate) struct Demands {
    /// Write at the end.
    pub(crate) appends: bool,
    /// Do not write at the end, though the descriptor has O_APPEND.
    pub(crate) never_appends: bool,
    /// Return when the write is durable.
    pub(crate) syncs: bool,
}

/// The mapped file behind a descriptor.
struct Behind {
    process: &'static Process,
    file: Arc<File>,
    stat: Stat,
    how: OFlags,
}

impl Behind {
    /// `None` unless it is open for this access.
    fn of(fd: BorrowedFd<'_>, wanted: OFlags) -> Option<Self> {
        let process = Process::current()?;
        let (file, stat) = process.table.file_behind(fd)?;
        let how = fcntl_getfl(fd).ok()?;
        let mode = how & OFlags::RWMODE;
        let is_path = how.contains(OFlags::PATH);
        if file.is_idle() {
            return None;
        }
        (!is_path && (mode == wanted || mode == OFlags::RDWR)).then_some(Behind { process, file, stat, how })
    }

    /// Makes the length of the mapping that of the file.
    fn len(&self) -> Result<u64, Errno> {
        match self.file.mapping.len() == self.stat.st_size as u64 {
            true => Ok(self.stat.st_size as u64),
            false => self.file.adopt_length(),
        }
    }
}

fn start(fd: BorrowedFd<'_>, position: Position) -> Result<u64, Errno> {
    match position {
        Position::At(offset) => u64::try_from(offset).map_err(|_| Errno::INVAL),
        Position::Current => seek(fd, SeekFrom::Current(0)),
    }
}

fn move_on(fd: BorrowedFd<'_>, position: Position, end: u64) -> Result<(), Errno> {
    if position == Position::Current {
        seek(fd, SeekFrom::Start(end))?;
    }
    Ok(())
}

/// read, pread and readv.
pub(crate) fn read<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    buffers: impl Iterator<Item = &'a mut [u8]>,
) -> Answer<usize> {
    let behind = Behind::of(fd, OFlags::RDONLY)?;
    // The kernel has all bytes.
    if !behind.file.is_writable() {
        return None;
    }
    Some((|| {
        let (len, start) = (behind.len()?, start(fd, position)?);
        let mut at = start;
        for buffer in buffers {
            let room = (TRANSFER_MAX as u64 - (at - start)).min(len.saturating_sub(at));
            let take = room.min(buffer.len() as u64) as usize;
            if take == 0 {
                continue;
            }
            behind.file.mapping.read_at(at, &mut buffer[..take]).map_err(|error| errno::of(&error))?;
            at += take as u64;
        }
        move_on(fd, position, at)?;
        Ok(behind.served(at - start))
    })())
}

/// write, pwrite and writev.
pub(crate) fn write<'a>(
    fd: BorrowedFd<'_>,
    position: Position,
    demands: Demands,
    buffers: impl Iterator<Item = &'a [u8]> + Clone,
) -> Answer<usize> {
    let behind = Behind::of(fd, OFlags::WRONLY)?;
    if !behind.file.is_writable() {
        return None;
    }
    Some((|| {
        let total = buffers.clone().map(<[u8]>::len).sum::<usize>().min(TRANSFER_MAX) as u64;
        // As with Linux, O_APPEND overrides the position of pwrite.
        let appends = demands.appends || (behind.how.contains(OFlags::APPEND) && !demands.never_appends);
        let start = match appends {
            true => behind.file.append(total)?,
            false => start(fd, position)?,
        };
        let end = start.checked_add(total).ok_or(Errno::FBIG)?;
        if total > 0 && end > behind.len()? {
            behind.file.grow(end)?;
        }
        let mut at = start;
        for buffer in buffers {
            let take = (end - at).min(buffer.len() as u64) as usize;
            behind.file.mapping.write_at(at, &buffer[..take]).map_err(|error| errno::of(&error))?;
            at += take as u64;
        }
        if demands.syncs || behind.how.intersects(OFlags::DSYNC | OFlags::SYNC) {
            behind.file.sync(start..end)?;
        }
        if behind.file.is_idle() {
            // Another thread has unmapped it meanwhile, and has written the pages that it found. Pinned pages stay, and are the newest.
            behind.file.give_up(start..end).or_else(errno::unless_pinned)?;
        }
        move_on(fd, position, end)?;
        Ok(behind.served(total))
    })())
}

impl Behind {
    fn served(&self, bytes: u64) -> usize {
        add(&self.process.statistics.calls_served, 1);
        add(&self.process.statistics.bytes_served, bytes);
        bytes as usize
    }
}

/// Drops the old pages of a part that the kernel has written, of a file mapped for loads.
pub(crate) fn written_by_linux(fd: BorrowedFd<'_>, position: Position, written: usize) {
    let Some(behind) = Behind::of(fd, OFlags::WRONLY) else { return };
    let end = match position {
        Position::At(start) if !behind.how.contains(OFlags::APPEND) => Ok(start as u64 + written as u64),
        Position::At(_) => Ok(behind.stat.st_size as u64),
        Position::Current => seek(fd, SeekFrom::Current(0)),
    };
    let outcome = end.and_then(|end| behind.file.give_up(end.saturating_sub(written as u64)..end));
    if let Err(error) = outcome {
        behind.process.say(format_args!("{}: loads may return old bytes: {error}", behind.file.path.display()));
    }
}

/// fsync and fdatasync: writes the stores to a mapped file. The C library does the rest.
pub(crate) fn sync(fd: BorrowedFd<'_>) -> Answer<()> {
    let (file, _) = Process::current()?.table.file_behind(fd)?;
    if !file.is_writable() {
        return None;
    }
    file.sync_all().err().map(Err)
}

/// ftruncate.
pub(crate) fn truncate(fd: BorrowedFd<'_>, len: i64) -> Answer<()> {
    let behind = Behind::of(fd, OFlags::WRONLY)?;
    if !behind.file.is_writable() {
        return None;
    }
    Some(u64::try_from(len).map_err(|_| Errno::INVAL).and_then(|len| behind.file.truncate(len)))
}

/// Writes out and drops a part of a mapped file, before and after the kernel itself changes or reads that part.
pub(crate) fn give_up(fd: BorrowedFd<'_>, bytes: Range<u64>) -> Answer<()> {
    let (file, _) = Process::current()?.table.file_behind(fd)?;
    // If it cannot adopt the length, nothing behind that is in memory.
    let _ = file.adopt_length();
    file.give_up(bytes).err().map(Err)
}

/// Writes out a part of a mapped file before the kernel reads it. Pinned pages may stay in memory.
pub(crate) fn write_out(fd: BorrowedFd<'_>, bytes: Range<u64>) -> Answer<()> {
    give_up(fd, bytes).filter(|told| *told != Err(Errno::BUSY))
}

/// Whether fallocate with this mode keeps the bytes of the file.
pub(crate) fn keeps_bytes(mode: i32) -> bool {
    FallocateFlags::from_bits_retain(mode as u32).difference(FallocateFlags::KEEP_SIZE).is_empty()
}

/// Adopts a length that the kernel may have given the file.
pub(crate) fn adopt_length(fd: BorrowedFd<'_>) -> Answer<()> {
    let (file, _) = Process::current()?.table.file_behind(fd)?;
    file.adopt_length().err().map(Err)
}
