//! A leased file whose bytes are in frames of the process's own: `--mode` with `--cache`.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::Errno;
use vmio::{Access, Cache, Mapping, MappingOptions, PAGE_BYTES, SignalsBlocked};

use super::leased_file::LeasedFile;
use crate::entry;
use crate::errno;

/// Address space that a file gets at least, to grow in. Costs no memory.
const RESERVED_BYTES_MIN: u64 = 64 << 30;
/// The unit of address space.
const GRANULE_BYTES: u64 = 1 << 30;

/// What is made resident at a time: of a longer transfer the first pages might be gone when the last have come.
const PART_BYTES: usize = 256 << 10;

/// Its mapping. Reads and writes there are copies; a miss is one system call.
///
/// Of a file that is open for writes whole pages are mapped. What lies behind them is with the kernel, and nowhere else: the end of
/// the file, and what it has become longer by, which is written by calls. Of that, too, pages that are whole are mapped as soon as
/// somebody asks for them.
pub(super) struct CachedFile {
    mapping: Mapping,
    file: Arc<LeasedFile>,
    len: AtomicU64,
    /// Held while more of it is mapped, with signals blocked.
    growth: Mutex<()>,
    reserved_bytes: u64,
}

fn whole_pages(len: u64) -> u64 {
    len - len % PAGE_BYTES as u64
}

impl CachedFile {
    /// Of a file of which there is a lease, and which is so long. None if it had better be the kernel's: a file with holes that is to
    /// be written, for which a disk that is full would only be found by write-back.
    pub(super) fn open(cache: &Cache, fd: BorrowedFd<'_>, len: u64, access: Access) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        if access == Access::ReadWrite && (stat.st_blocks as u64) * 512 < len {
            return None;
        }
        let mapped = if access == Access::ReadWrite { whole_pages(len) } else { len };
        let file = Arc::new(LeasedFile::new(fd, access, mapped));
        let reserved = len.checked_mul(2)?.max(RESERVED_BYTES_MIN).checked_next_multiple_of(GRANULE_BYTES)?;
        let options = MappingOptions::new().access(access).reserve(reserved);
        let mapping = Mapping::open(cache, Arc::clone(&file), options).ok()?;
        mapping.recover_loads().ok()?;
        // What the kernel has of it in memory would be there twice.
        let _ = fadvise(fd, 0, None, Advice::DontNeed);
        Some(CachedFile { mapping, file, len: AtomicU64::new(len), growth: Mutex::new(()), reserved_bytes: reserved })
    }

    /// How long the file is: nobody else can change that.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Where that ends which is mapped, or can be if `offset` lies in it: what is behind is to be asked of the kernel.
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
                // If that cannot be, the kernel goes on.
                let _ = self.mapping.set_len(mappable);
            }
        });
        // With the one in `written_by_kernel`.
        fence(Ordering::SeqCst);
        self.mapping.len()
    }

    /// Bytes that lie behind what was mapped have been written by the kernel. Where they are mapped by now the pages have them, too.
    pub(super) fn written_by_kernel(&self, offset: u64, bytes: &[u8]) {
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::AcqRel);
        // Either who maps the pages reads from the kernel what was written, or it is seen here that they are mapped.
        fence(Ordering::SeqCst);
        let mapped = self.mapping.len().saturating_sub(offset).min(bytes.len() as u64) as usize;
        if mapped > 0 {
            // A page that cannot be had is not in memory, and the kernel has the bytes.
            let _ = self.write(offset, &bytes[..mapped]);
        }
    }

    /// Copies bytes out that are mapped; false if a page cannot be had.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let mut parts = (offset..).step_by(PART_BYTES).zip(buffer.chunks_mut(PART_BYTES));
        parts.all(|(at, part)| {
            self.bring_in(at, part.len());
            // What vmio calls itself, in faults and write-back too, is not the program's.
            entry::as_vmio(|| self.mapping.load_at(at, part).is_ok())
        })
    }

    /// Copies bytes in that are mapped, likewise.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut parts = (offset..).step_by(PART_BYTES).zip(bytes.chunks(PART_BYTES));
        parts.all(|(at, part)| {
            self.bring_in(at, part.len());
            entry::as_vmio(|| self.mapping.store_at(at, part).is_ok())
        })
    }

    /// By one read where that can be, and no trap. What cannot be had is found out by who touches it.
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

    /// Makes the file so long with room for all of it, for a write that begins there: a page of a hole that is stored to would find out
    /// only when it is written back that the disk is full. Nobody else may write to the file meanwhile.
    pub(super) fn fill_up_to(&self, offset: u64) -> Result<(), Errno> {
        let old = self.len();
        if offset > old {
            self.file.fill(old..offset)?;
            self.len.store(offset, Ordering::Release);
        }
        Ok(())
    }

    /// Hands to the kernel what was stored to a range: a flush of the file makes it durable then.
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

    /// The same of the whole file, whose descriptor is not used any more from then on.
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

    /// Who has found bytes not mapped yet has the kernel write them, and somebody may have mapped and read the page meanwhile.
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

        // The kernel gets what was stored to pages, and nothing of what it has written itself changes.
        assert!(cached.write(2 * page - 10, &[4; 10]));
        cached.give_up().unwrap();
        let mut all = [0; 2 * PAGE_BYTES + 100];
        file.read_exact_at(&mut all, 0).unwrap();
        let at = |offset: usize| all[PAGE_BYTES + offset];
        assert_eq!((at(49), at(50), at(PAGE_BYTES - 11), at(PAGE_BYTES - 10), at(PAGE_BYTES)), (1, 3, 2, 4, 2));
    }
}
