//! A leased file whose bytes are in frames of the process's own: `--mode` with `--cache`.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::Errno;
use vmio::{Access, Cache, Mapping, MappingOptions, SignalsBlocked};

use super::leased_file::LeasedFile;
use crate::entry;
use crate::errno;

/// Address space that a file gets at least, to grow in. Costs no memory.
const RESERVED_BYTES_MIN: u64 = 64 << 30;
/// The unit of address space.
const GRANULE_BYTES: u64 = 1 << 30;

/// What is made resident at a time: of a longer transfer the first pages might be gone when the last have come.
const PART_BYTES: usize = 256 << 10;

/// Its mapping. Reads and writes within the file are copies; a miss is one system call.
pub(super) struct CachedFile {
    mapping: Mapping,
    file: Arc<LeasedFile>,
    /// Held while it becomes longer, with signals blocked.
    length: Mutex<()>,
    reserved_bytes: u64,
}

impl CachedFile {
    /// Of a file of which there is a lease, and which is so long. None if it had better be the kernel's: a file with holes that is to
    /// be written, for which a disk that is full would only be found by write-back.
    pub(super) fn open(cache: &Cache, fd: BorrowedFd<'_>, len: u64, access: Access) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        if access == Access::ReadWrite && (stat.st_blocks as u64) * 512 < len {
            return None;
        }
        let file = Arc::new(LeasedFile::new(fd, access, len));
        let reserved = len.checked_mul(2)?.max(RESERVED_BYTES_MIN).checked_next_multiple_of(GRANULE_BYTES)?;
        let options = MappingOptions::new().access(access).reserve(reserved);
        let mapping = Mapping::open(cache, Arc::clone(&file), options).ok()?;
        mapping.recover_loads().ok()?;
        // What the kernel has of it in memory would be there twice.
        let _ = fadvise(fd, 0, None, Advice::DontNeed);
        Some(CachedFile { mapping, file, length: Mutex::new(()), reserved_bytes: reserved })
    }

    /// How long the file is: nobody else can change that.
    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Copies bytes out that lie within the file; false if a page cannot be had.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        // What vmio calls itself, in faults and write-back too, is not the program's.
        entry::as_vmio(|| {
            let mut parts = (offset..).step_by(PART_BYTES).zip(buffer.chunks_mut(PART_BYTES));
            parts.all(|(at, part)| {
                self.bring_in(at, part.len());
                self.mapping.load_at(at, part).is_ok()
            })
        })
    }

    /// Copies bytes in that lie within the file, likewise.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        entry::as_vmio(|| {
            let mut parts = (offset..).step_by(PART_BYTES).zip(bytes.chunks(PART_BYTES));
            parts.all(|(at, part)| {
                self.bring_in(at, part.len());
                self.mapping.store_at(at, part).is_ok()
            })
        })
    }

    /// By one read where that can be, and no trap. What cannot be had is found out by who touches it.
    fn bring_in(&self, offset: u64, bytes: usize) {
        let _ = self.mapping.ensure(offset..offset + bytes as u64);
    }

    /// Whether it may become so long where it is mapped.
    pub(super) fn has_addresses_for(&self, len: u64) -> bool {
        len <= self.reserved_bytes
    }

    /// Makes the file so long at least. FBIG behind what it has addresses for.
    pub(super) fn grow(&self, len: u64) -> Result<(), Errno> {
        if len <= self.len() {
            return Ok(());
        }
        entry::as_vmio(|| {
            let _signals = SignalsBlocked::new();
            let _alone = self.length.lock().unwrap_or_else(PoisonError::into_inner);
            if len <= self.len() { Ok(()) } else { self.mapping.set_len(len).map_err(|error| errno::of(&error)) }
        })
    }

    /// Hands to the kernel what was stored to a range: a flush of the file makes it durable then.
    pub(super) fn write_back(&self, bytes: Range<u64>) -> Result<(), Errno> {
        if self.mapping.access() == Access::ReadOnly {
            return Ok(());
        }
        entry::as_vmio(|| {
            let end = bytes.end.min(self.len());
            self.mapping.flush(bytes.start.min(end)..end).map_err(|error| errno::of(&error))
        })
    }

    /// The same of the whole file, whose descriptor is not used any more from then on.
    pub(super) fn give_up(&self) -> Result<(), Errno> {
        let written = self.write_back(0..u64::MAX);
        self.file.give_up();
        written
    }
}
