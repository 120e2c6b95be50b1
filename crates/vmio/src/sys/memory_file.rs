//! A file in memory without a name (memfd): its frames stay while they are not mapped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::sys::reservation::Reservation;

/// A sparse memory file.
pub(crate) struct MemoryFile {
    file: File,
}

impl MemoryFile {
    /// Makes a file of that length, all of it holes. A length over the limit for files (`ulimit -f`) is an error.
    pub(crate) fn new(len: u64) -> io::Result<Self> {
        // Exceeding the limit is not only an error: a signal ends the process.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let file = File::from(memfd_create("vmio-frames", MemfdFlags::CLOEXEC)?);
        file.set_len(len)?;
        Ok(MemoryFile { file })
    }

    /// Maps the file's first `len` bytes at a multiple of `align`.
    pub(crate) fn map(&self, len: usize, align: usize) -> io::Result<Reservation> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Reservation::of_file_at_multiple(self.file.as_fd(), 0, len, align, access, MapFlags::SHARED)
    }

    /// Copies bytes out of the file, mapped or not.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Frees the memory of a range and takes its pages out of every mapping, where they are missing from then on.
    pub(crate) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }
}
