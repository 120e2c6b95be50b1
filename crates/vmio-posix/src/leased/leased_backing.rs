//! The backing of a leased file's mapping.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, preadv2, pwritev2};
use vmio::Access;
use vmio::backing::Backing;

use crate::settings::Settings;

/// Reads and writes that leave nothing in the page cache. Needs Linux 6.14 and a file system that supports it.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Whether the kernel and all file systems so far have supported it.
static IS_KNOWN: AtomicBool = AtomicBool::new(true);

/// The mapped part of a leased file, read and written by vmio's own descriptor: a duplicate of the program's. A second open with O_DIRECT
/// would bypass the page cache altogether, but the kernel grants no lease for stores to a file that is open twice.
///
/// The backing flushes nothing: after a sync of the mapping its user flushes the file by the kernel.
pub(super) struct LeasedBacking {
    fd: RawFd,
    access: Access,
    len: AtomicU64,
    /// Reads and writes under way, plus [`GIVEN_UP`].
    users: AtomicU64,
}

const GIVEN_UP: u64 = 1 << 63;

impl LeasedBacking {
    /// The descriptor must stay open until [`Self::give_up`].
    pub(super) fn new(fd: BorrowedFd<'_>, access: Access, len: u64) -> Self {
        LeasedBacking { fd: fd.as_raw_fd(), access, len: AtomicU64::new(len), users: AtomicU64::new(0) }
    }

    /// When this returns, nobody uses the descriptor any more: it may be closed, and its number may become another file's.
    pub(super) fn give_up(&self) {
        self.users.fetch_or(GIVEN_UP, Ordering::SeqCst);
        while self.users.load(Ordering::SeqCst) != GIVEN_UP {
            std::thread::yield_now();
        }
    }

    /// Makes the file longer by a range, with space on the disk for it.
    pub(super) fn fill(&self, range: Range<u64>) -> Result<(), Errno> {
        let filled = self.with(|fd| {
            match fallocate(fd, FallocateFlags::empty(), range.start, range.end - range.start) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => ftruncate(fd, range.end)?,
                Err(error) => {
                    // Part of the range may have been allocated, which makes the file longer.
                    ftruncate(fd, range.start)?;
                    return Err(error.into());
                }
                Ok(()) => {}
            }
            Ok(())
        });
        let filled = filled.unwrap_or_else(|| Err(Errno::BADF.into()));
        filled.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Calls a function with the file; `None` after [`Self::give_up`].
    fn with<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> Option<io::Result<T>> {
        let is_ours = self.users.fetch_add(1, Ordering::SeqCst) & GIVEN_UP == 0;
        // SAFETY: it is open, since `give_up` waits for the end of this call.
        let outcome = is_ours.then(|| act(unsafe { BorrowedFd::borrow_raw(self.fd) }));
        self.users.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

/// One call, bypassing the page cache if possible; repeated if it is interrupted.
fn transfer(mut call: impl FnMut(ReadWriteFlags) -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        let flags = if IS_KNOWN.load(Ordering::Relaxed) { DONTCACHE } else { ReadWriteFlags::empty() };
        match call(flags) {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::OPNOTSUPP | Errno::INVAL) if flags == DONTCACHE => IS_KNOWN.store(false, Ordering::Relaxed),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Backing for LeasedBacking {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        let read = self.with(|fd| {
            let mut done = 0;
            while done < wanted {
                let rest = &mut buffer[done..wanted];
                let at = offset + done as u64;
                match transfer(|flags| preadv2(fd, &mut [IoSliceMut::new(rest)], at, flags))? {
                    0 => break,
                    bytes => done += bytes,
                }
            }
            Ok(done)
        });
        read.unwrap_or_else(|| Err(Errno::BADF.into()))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = self.len().saturating_sub(offset).min(data.len() as u64) as usize;
        let written = self.with(|fd| {
            let mut done = 0;
            while done < len {
                let (rest, at) = (&data[done..len], offset + done as u64);
                match transfer(|flags| pwritev2(fd, &[IoSlice::new(rest)], at, flags))? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    bytes => done += bytes,
                }
            }
            Ok(())
        });
        // The thread that stores bytes after `give_up` writes them itself.
        written.unwrap_or(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// The file itself is already longer.
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn describe(&self) -> String {
        let path = self.with(|fd| Ok(Settings::with_path(fd, |path| path.display().to_string())));
        path.and_then(Result::ok).flatten().unwrap_or_else(|| "a file".to_owned())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn it_is_read_and_written_at_its_length_and_left_alone_once_given_up() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        let leased = LeasedBacking::new(file.as_fd(), Access::ReadWrite, 10);
        let mut page = [9; 4096];
        assert_eq!(leased.read_at(0, &mut page).unwrap(), 10);
        assert_eq!((&page[..10], page[10]), (&b"0123456789"[..], 9));
        leased.write_at(0, &[7; 4096]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10);
        file.set_len(5000).unwrap();
        leased.set_len(5000).unwrap();
        leased.write_at(4096, &[5; 4096]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5000);
        leased.give_up();
        leased.write_at(0, &[1; 10]).unwrap();
        assert!(leased.read_at(0, &mut page).is_err() && leased.fill(5000..6000).is_err());
        let mut found = [0; 5000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((found[9], found[10], found[4999]), (7, 0, 5));
    }

    #[test]
    fn what_has_no_room_leaves_the_file_as_long_as_it_was() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let leased = LeasedBacking::new(file.as_fd(), Access::ReadWrite, 0);
        assert!(leased.fill(10..1 << 60).is_err());
        assert_eq!(file.metadata().unwrap().len(), 10);
        leased.fill(10..9000).unwrap();
        let stat = fstat(&file).unwrap();
        assert!(stat.st_size == 9000 && stat.st_blocks > 0);
    }
}
