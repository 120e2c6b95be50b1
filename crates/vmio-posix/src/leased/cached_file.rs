//! A leased file whose bytes are in the process's own cache: `--mode` with `--cache`.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::Errno;
use vmio::{Access, Cache, Mapping, MappingOptions, PAGE_BYTES, SignalsBlocked};

use super::leased_backing::LeasedBacking;
use crate::entry;
use crate::errno;

/// The least address space that a file gets, to grow in. It costs no memory.
const RESERVED_BYTES_MIN: u64 = 64 << 30;
/// Address space is reserved in multiples of this.
const GRANULE_BYTES: u64 = 1 << 30;

/// The bytes to make resident at a time: in a longer transfer the first pages might be evicted before the last arrive.
const PART_BYTES: usize = 256 << 10;

/// The mapping of a leased file. Reads and writes are copies from and to it; a miss is one system call.
///
/// If the file is open for writing, only its whole pages are mapped. The kernel alone has the bytes behind them: the end of the file and
/// new appends. Appended pages become mapped once they are whole and a call needs them.
pub(super) struct CachedFile {
    mapping: Mapping,
    file: Arc<LeasedBacking>,
    len: AtomicU64,
    /// Held while more of it is mapped, with signals blocked.
    growth: Mutex<()>,
    reserved_bytes: u64,
}

fn whole_pages(len: u64) -> u64 {
    len - len % PAGE_BYTES as u64
}

impl CachedFile {
    /// Maps a leased file of this length. None if the kernel should serve it: the file has holes and is open for writing, where only the
    /// write-back would find out that the disk is full.
    pub(super) fn open(cache: &Cache, fd: BorrowedFd<'_>, len: u64, access: Access) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        if access == Access::ReadWrite && (stat.st_blocks as u64) * 512 < len {
            return None;
        }
        let mapped = if access == Access::ReadWrite { whole_pages(len) } else { len };
        let file = Arc::new(LeasedBacking::new(fd, access, mapped));
        let reserved = len.checked_mul(2)?.max(RESERVED_BYTES_MIN).checked_next_multiple_of(GRANULE_BYTES)?;
        let options = MappingOptions::new().access(access).reserve(reserved);
        let mapping = Mapping::open(cache, Arc::clone(&file), options).ok()?;
        mapping.recover_loads().ok()?;
        // Pages that stay in the page cache would be in memory twice.
        let _ = fadvise(fd, 0, None, Advice::DontNeed);
        Some(CachedFile { mapping, file, len: AtomicU64::new(len), growth: Mutex::new(()), reserved_bytes: reserved })
    }

    /// The length of the file, which nobody else can change.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// The end of the mapped bytes. If `offset` lies behind them in a whole page, maps more first. Only the kernel has the bytes behind the
    /// end.
    pub(super) fn mapped(&self, offset: u64) -> u64 {
        let mapped = self.mapping.len();
        if offset < mapped || offset >= self.mappable() { mapped } else { self.map_more() }
    }

    fn mappable(&self) -> u64 {
        whole_pages(self.len()).min(self.reserved_bytes)
    }

    #[cold]
    fn map_more(&self) -> u64 {
        entry::as_vmio(|| {
            let _signals = SignalsBlocked::new();
            let _alone = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
            let mappable = self.mappable();
            if mappable > self.mapping.len() {
                // If that fails, Linux serves these bytes.
                let _ = self.mapping.set_len(mappable);
            }
        });
        // Pairs with the fence in `written_by_kernel`.
        fence(Ordering::SeqCst);
        self.mapping.len()
    }

    /// Copies bytes that the kernel has written behind the mapped ones into pages, if they have become mapped since.
    pub(super) fn written_by_kernel(&self, offset: u64, bytes: &[u8]) {
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::AcqRel);
        // Either the thread that maps the pages reads the new bytes from the kernel, or this thread sees the pages mapped.
        fence(Ordering::SeqCst);
        let mapped = self.mapping.len().saturating_sub(offset).min(bytes.len() as u64) as usize;
        if mapped > 0 {
            // A page that cannot be loaded is not in memory, and the kernel has the bytes.
            let _ = self.write(offset, &bytes[..mapped]);
        }
    }

    /// Copies mapped bytes out; false if a page cannot be loaded.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let mut parts = (offset..).step_by(PART_BYTES).zip(buffer.chunks_mut(PART_BYTES));
        parts.all(|(at, part)| {
            self.bring_in(at, part.len());
            // The calls that vmio makes in faults and write-back are not the program's.
            entry::as_vmio(|| self.mapping.load_at(at, part).is_ok())
        })
    }

    /// Copies bytes into mapped pages, likewise.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut parts = (offset..).step_by(PART_BYTES).zip(bytes.chunks(PART_BYTES));
        parts.all(|(at, part)| {
            self.bring_in(at, part.len());
            entry::as_vmio(|| self.mapping.store_at(at, part).is_ok())
        })
    }

    /// Makes pages resident, by one read if possible, and without a trap. Failures show in the copy that follows.
    fn bring_in(&self, offset: u64, bytes: usize) {
        let page_bytes = PAGE_BYTES as u64;
        let (first, end) = (offset / page_bytes, (offset + bytes as u64).div_ceil(page_bytes));
        let bring_in = || drop(self.mapping.ensure(offset..offset + bytes as u64));
        if (first..end).all(|page| self.mapping.is_resident(page * page_bytes)) {
            entry::as_vmio(bring_in);
        } else {
            entry::as_vmio_undisturbed(bring_in);
        }
    }

    /// Makes the file this long, with space on the disk, for a write that begins there. If it left a hole, only the write-back would find
    /// out that the disk is full. Nobody else may write to the file meanwhile.
    pub(super) fn fill_up_to(&self, offset: u64) -> Result<(), Errno> {
        let old = self.len();
        if offset > old {
            self.file.fill(old..offset)?;
            self.len.store(offset, Ordering::Release);
        }
        Ok(())
    }

    /// Writes the stores to a range back to the kernel: a flush of the file then makes them durable.
    pub(super) fn write_back(&self, bytes: Range<u64>) -> Result<(), Errno> {
        if self.mapping.access() == Access::ReadOnly {
            return Ok(());
        }
        let end = bytes.end.min(self.mapping.len());
        if bytes.start >= end {
            return Ok(());
        }
        entry::as_vmio_undisturbed(|| self.mapping.flush(bytes.start..end).map_err(|error| errno::of(&error)))
    }

    /// Writes the whole file back, and then leaves its descriptor alone.
    pub(super) fn give_up(&self) -> Result<(), Errno> {
        let written = self.write_back(0..u64::MAX);
        self.file.give_up();
        written
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use vmio::Engine;

    use super::*;

    /// A write finds its bytes not mapped and lets the kernel write them. Another thread may have mapped and read the page meanwhile.
    #[test]
    fn what_the_kernel_writes_to_a_page_that_has_just_been_mapped_is_seen() {
        let cache = Cache::builder().engine(Engine::Sigbus).capacity(6 << 20).build().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let (file, page) = (file.as_file(), PAGE_BYTES as u64);
        file.write_all_at(&[1; PAGE_BYTES + 100], 0).unwrap();
        let cached = CachedFile::open(&cache, file.as_fd(), page + 100, Access::ReadWrite).unwrap();
        assert_eq!((cached.len(), cached.mapped(page)), (page + 100, page));
        file.write_all_at(&[2; PAGE_BYTES], page + 100).unwrap();
        cached.written_by_kernel(page + 100, &[2; PAGE_BYTES]);
        assert_eq!((cached.len(), cached.mapped(2 * page)), (2 * page + 100, page));

        assert_eq!(cached.mapped(page), 2 * page);
        let mut found = [0; 200];
        assert!(cached.read(page, &mut found));
        assert_eq!((found[99], found[100]), (1, 2));
        file.write_all_at(&[3; 50], page + 50).unwrap();
        cached.written_by_kernel(page + 50, &[3; 50]);
        assert!(cached.read(page, &mut found));
        assert_eq!((found[49], found[50], found[99], found[100]), (1, 3, 3, 2));

        // The kernel gets the bytes stored to pages, and the bytes that it has written itself stay.
        assert!(cached.write(2 * page - 10, &[4; 10]));
        cached.give_up().unwrap();
        let mut all = [0; 2 * PAGE_BYTES + 100];
        file.read_exact_at(&mut all, 0).unwrap();
        let at = |offset: usize| all[PAGE_BYTES + offset];
        assert_eq!((at(49), at(50), at(PAGE_BYTES - 11), at(PAGE_BYTES - 10), at(PAGE_BYTES)), (1, 3, 2, 4, 2));
    }
}
