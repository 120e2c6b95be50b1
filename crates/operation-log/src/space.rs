//! The space of a log: reserving bytes for entries, and making them durable.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use crate::direct::{DirectFile, OpenDirectly};
use crate::header::{ENTRIES_START_BYTES, Header};

/// The least and the most bytes that are prepared at a time.
const PREPARED_BYTES: (u64, u64) = (256 << 10, 16 << 20);
/// The most buffers of one system call.
const BUFFERS_MAX: usize = 1024;
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The file of a log.
pub(crate) struct Space {
    file: File,
    /// On persistent memory, the way to store without a system call.
    direct: Option<Box<dyn DirectFile>>,
    file_bytes: u64,
    /// The position of the next entry. It is in memory only: a reader of the log finds entries by their checksums.
    tail: AtomicU64,
    /// The file is written up to here, or need not be, so that another write there does not change the file system's metadata.
    prepared_to: AtomicU64,
    preparing: Mutex<()>,
}

impl Space {
    /// Allocates the space, and writes the headers.
    pub(crate) fn create(file: File, headers: [&Header; 2], open_directly: Option<OpenDirectly>) -> io::Result<Self> {
        let file_bytes = headers[0].file_bytes;
        let mut space = Space {
            file,
            direct: None,
            file_bytes,
            tail: AtomicU64::new(ENTRIES_START_BYTES),
            prepared_to: AtomicU64::new(ENTRIES_START_BYTES),
            preparing: Mutex::new(()),
        };
        space.allocate()?;
        for header in headers {
            space.file.write_all_at(&header.encode(), header.offset())?;
        }
        space.prepare(ENTRIES_START_BYTES + 1)?;
        space.file.sync_all()?;
        space.direct = open_directly.and_then(|open| open(space.file.as_fd(), file_bytes));
        if space.direct.as_deref().is_some_and(DirectFile::needs_no_zeros) {
            space.prepared_to = AtomicU64::new(file_bytes);
        }
        Ok(space)
    }

    fn allocate(&self) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.file_bytes) {
            // Without an allocation the space may turn out to be missing later.
            Err(Errno::OPNOTSUPP) => self.file.set_len(self.file_bytes),
            answer => Ok(answer?),
        }
    }

    /// Reserves space for entries, in one piece. Fails with the number of free bytes if there is too little.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64, u64> {
        let longer = |tail: u64| tail.checked_add(bytes).filter(|end| *end <= self.file_bytes);
        self.tail.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer).map_err(|tail| self.file_bytes - tail)
    }

    /// The descriptor of the direct stores.
    pub(crate) fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_deref().and_then(DirectFile::as_fd)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The position of the next entry.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Drops all entries. Nobody writes meanwhile.
    pub(crate) fn reset(&self) {
        self.tail.store(ENTRIES_START_BYTES, Ordering::Release);
    }

    /// The bytes for entries in an empty log.
    pub(crate) fn entries_bytes_max(&self) -> u64 {
        self.file_bytes - ENTRIES_START_BYTES
    }

    /// Writes to reserved space; durable when it returns.
    pub(crate) fn write(&self, position: u64, buffers: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.prepare(position + bytes as u64)?;
        self.write_durably(position, buffers)
    }

    /// Writes a header; durable when it returns.
    pub(crate) fn write_header(&self, header: &Header) -> io::Result<()> {
        self.write_durably(header.offset(), &mut [IoSlice::new(&header.encode())])
    }

    fn write_durably(&self, mut position: u64, mut buffers: &mut [IoSlice<'_>]) -> io::Result<()> {
        if self.direct.as_deref().is_some_and(|direct| direct.store(position, buffers)) {
            return Ok(());
        }
        while !buffers.is_empty() {
            let now = &buffers[..buffers.len().min(BUFFERS_MAX)];
            match pwritev2(&self.file, now, position, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    position += bytes as u64;
                    IoSlice::advance_slices(&mut buffers, bytes);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes zeros up to `end` at least. The file system marks allocated space as never written. Each first write there would commit a
    /// transaction of the file system, and take about twice as long (ext4). Zeros are written as the tail advances, and only once: a write
    /// of the whole log at its start would delay programs that write little.
    fn prepare(&self, end: u64) -> io::Result<()> {
        if end <= self.prepared_to.load(Ordering::Acquire) {
            return Ok(());
        }
        let _alone = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.prepared_to.load(Ordering::Acquire);
        if end <= start {
            return Ok(());
        }
        // Nobody has written behind `start`: all wait here until it is prepared.
        let more = (start - ENTRIES_START_BYTES).clamp(PREPARED_BYTES.0, PREPARED_BYTES.1);
        let until = end.max(start + more).min(self.file_bytes);
        let mut position = start;
        while position < until {
            let bytes = (until - position).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..bytes as usize], position)?;
            position += bytes;
        }
        self.file.sync_data()?;
        self.prepared_to.store(until, Ordering::Release);
        Ok(())
    }
}
