//! A mapping without a cache: the program's loads and stores go to persistent memory.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backing::{Access, Backing, DaxBacking, FileUser};
use crate::cache::fetch::{Failure, Outcome, Urgency};
use crate::error::{Error, Result, UnsupportedBy};
use crate::mapped_file::open_files;
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::mapped_file::{Advice, CacheIdentity, SyncHandle, Usage};
use crate::mapped_file::{HeldPages, MappedFile, OpenedFile, ViewAddresses, whole_pages};
use crate::mapping::pinned_ranges::PinnedRanges;
use crate::options::{MappingOptions, OnReadError};
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::persistent_map::PersistentMap;

/// A handle to a file that is mapped directly.
#[derive(Clone)]
pub(crate) struct DirectFile {
    opened: Arc<Opened<DirectRegion>>,
}

/// The file while it is mapped.
struct DirectRegion {
    backing: Arc<DaxBacking>,
    map: PersistentMap,
    access: Access,
    generation: Generation,
    /// Locked while the length changes.
    pinned: PinnedRanges,
    flushes: Flushes,
}

/// The flushes of a file, by any call. The kernel reports a failed flush only once, and may mark unwritten pages as clean after it.
#[derive(Default)]
struct Flushes {
    failure: Mutex<Option<io::ErrorKind>>,
}

impl Flushes {
    /// Flushes, unless that has failed before.
    fn flush(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match *failure {
            Some(kind) => Err(kind.into()),
            None => flush().inspect_err(|error| *failure = Some(error.kind())),
        }
    }
}

impl DirectFile {
    /// Maps the file, or returns a handle to the region that the process already maps directly.
    pub(crate) fn open(backing: DaxBacking, options: MappingOptions) -> Result<Self> {
        let backing = Arc::new(backing);
        let start = |_, options| DirectRegion::start(Arc::clone(&backing), &options);
        Ok(DirectFile { opened: open_files::open(None, Box::new(Arc::clone(&backing)), options, start)? })
    }

    /// Syncs and, if this is the last handle, unmaps.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()
    }
}

impl DirectRegion {
    fn start(backing: Arc<DaxBacking>, options: &MappingOptions) -> Result<DirectRegion> {
        let refused = |what, why| Err(Error::Unsupported { by: UnsupportedBy::DirectMapping, what, why });
        if options.verifier.is_some() {
            return refused("a page verifier", "pages do not pass vmio: use Mapping::open");
        }
        if options.journal.is_some() {
            return refused("an atomic mapping", "stores are on the device at once: use Mapping::open");
        }
        if options.floor_bytes > 0 || options.ceiling_bytes.is_some() {
            return refused("a floor or a ceiling", "it takes no memory of a cache");
        }
        if options.on_read_error != OnReadError::Sigbus {
            return refused(
                "OnReadError::Poison",
                "the kernel answers a load that fails with a SIGBUS: use Mapping::open",
            );
        }
        let access = options.access_to(&*backing)?;
        let reserved = options.reserved_bytes(backing.len())?;
        let file = backing.open_file().as_fd();
        let map = PersistentMap::new(file, reserved, access == Access::ReadWrite);
        let map = map.map_err(Error::system("mapping persistent memory"))?;
        let generation = Generation::of_this_process().map_err(Error::system("noting the process"))?;
        let pinned = PinnedRanges::none(generation);
        Ok(DirectRegion { backing, map, access, generation, pinned, flushes: Flushes::default() })
    }

    /// Writes a range back from the processor's caches.
    fn write_back(&self, range: &Range<u64>) -> Result<()> {
        if !self.map.is_synchronous() {
            return self.sync_data();
        }
        self.map.write_back(range).map_err(|refused| Error::Write {
            backing: self.backing.describe(),
            offset: range.start,
            failed_pages: (range.end - range.start).div_ceil(PAGE_BYTES as u64),
            source: refused.into(),
        })
    }

    fn sync_data(&self) -> Result<()> {
        // The kernel knows nothing of stores to extents that this process maps.
        if self.map.is_leased() && self.map.is_synchronous() && self.access == Access::ReadWrite {
            self.write_back(&(0..self.backing.len()))?;
        }
        let flushed = self.flushes.flush(|| self.backing.open_file().sync_data());
        flushed.map_err(|source| self.flush_error(source))
    }

    fn flush_error(&self, source: io::Error) -> Error {
        Error::Flush { backing: self.backing.describe(), source }
    }
}

impl OpenRegion for DirectRegion {
    /// The pages are the kernel's, the same in all processes, as with [`crate::Engine::Managed`].
    fn file_user(access: Access) -> FileUser {
        FileUser::managed(access)
    }

    fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    fn access(&self) -> Access {
        self.access
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn belongs_to(&self, _cache: CacheIdentity) -> bool {
        true // It belongs to no cache. A mapping through a cache is refused as one of another engine.
    }

    /// The kernel knows the pages with stores, and writes back no others.
    fn sync(&self) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        self.sync_data()
    }

    fn shut_down(&self) -> Result<()> {
        self.sync()
    }

    fn count_drop_failure(&self) {}
}

impl MappedFile for DirectFile {
    fn base(&self) -> *mut u8 {
        self.opened.map.base()
    }

    fn len(&self) -> u64 {
        self.opened.backing.len()
    }

    fn opened(&self) -> &dyn OpenedFile {
        &*self.opened
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let region = &*self.opened;
        for (offset, part) in pages_of(offset, buffer.len()) {
            let read = region.map.load(offset, &mut buffer[part]);
            read.map_err(|refused| Error::Read { backing: self.describe(), offset, source: refused.into() })?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let region = &*self.opened;
        for (offset, part) in pages_of(offset, data.len()) {
            let written = region.map.store(offset, &data[part]);
            written.map_err(|refused| Error::Write {
                backing: self.describe(),
                offset,
                failed_pages: 1,
                source: refused.into(),
            })?;
        }
        Ok(())
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        match advice {
            Advice::WillNeed => self.ensure(whole_pages(&range, self.len())),
            Advice::Fresh | Advice::Free => self.check_writable(),
            // There is no read-ahead, no eviction and no order of eviction.
            _ => Ok(()),
        }
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        if access == Access::ReadWrite {
            self.check_writable()?;
        }
        let mut pinned = self.opened.pinned.lock();
        let (bytes, len) = (pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64, self.len());
        if bytes.end > len.next_multiple_of(PAGE_BYTES as u64) {
            return Err(Error::OutOfRange { range: bytes, len });
        }
        pinned.push(pages.clone());
        Ok(Box::new(DirectPin { opened: Arc::clone(&self.opened), pages }))
    }

    fn open_view(&self) -> Result<Arc<dyn ViewAddresses>> {
        Err(Error::Unsupported {
            by: UnsupportedBy::DirectMapping,
            what: "a second range of addresses for a mapping",
            why: "open the file with Mapping::open and FrameHint::SharedAddresses",
        })
    }

    /// Fills the page tables, so that loads take no fault.
    fn ensure(&self, pages: Range<u64>) -> Result<()> {
        let bytes = pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        let (backing, offset) = (self.describe(), bytes.start);
        self.opened.map.populate(&bytes).map_err(|source| Error::Read { backing, offset, source })
    }

    fn fetch(&self, ranges: Vec<Range<u64>>, _urgency: Urgency) -> Result<Arc<Outcome>> {
        let failed = ranges.into_iter().find_map(|pages| self.ensure(pages).err());
        let outcome = Arc::new(Outcome::of_parts(1));
        outcome.finish_part(failed.map(Failure::Error));
        Ok(outcome)
    }

    fn fetch_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Error(error) => error,
            Failure::Page(page, _) => {
                let offset = page * PAGE_BYTES as u64;
                Error::OutOfRange { range: offset..offset + PAGE_BYTES as u64, len: self.len() }
            }
        }
    }

    fn guesses_max(&self) -> u64 {
        u64::MAX
    }

    fn for_each_resident(&self, pages: Range<u64>, each: &mut dyn FnMut(u64)) {
        pages.for_each(each);
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        let region = &*self.opened;
        let reserved = region.map.len() as u64;
        if len > reserved {
            return Err(Error::BeyondReservation { requested: len, reserved });
        }
        let failed = |source| Error::Resize { backing: self.describe(), requested: len, source };
        let pinned = region.pinned.lock();
        let (old, page) = (self.len(), PAGE_BYTES as u64);
        let cut_off = len.div_ceil(page)..old.div_ceil(page);
        if pinned.iter().any(|pages| pages.start < cut_off.end && cut_off.start < pages.end) {
            return Err(failed(io::Error::other("pages behind the new end are pinned")));
        }
        // Stores of the program behind the end, in the last page, are not part of the file. Bytes that others have added since are.
        if len > old && !old.is_multiple_of(page) && region.backing.file_len().map_err(failed)? == old {
            let zeros = [0; PAGE_BYTES];
            let tail = &zeros[..(old.next_multiple_of(page) - old) as usize];
            region.map.store(old, tail).map_err(|refused| failed(refused.into()))?;
        }
        region.backing.change_file_len(len).map_err(failed)?;
        // The length has changed by now: a failure is one of the flush, and may concern earlier stores as well.
        let flushed = region.flushes.flush(|| region.backing.open_file().sync_all());
        flushed.map_err(|source| region.flush_error(source))
    }

    fn sync(&self, part: Option<Range<u64>>) -> Result<()> {
        match part {
            None => self.opened.sync(),
            Some(_) if self.opened.access == Access::ReadOnly => Ok(()),
            Some(range) => self.opened.write_back(&range),
        }
    }

    fn sync_begin(&self) -> Result<SyncHandle> {
        let opened = Arc::clone(&self.opened);
        SyncHandle::spawn(move || opened.sync())
    }

    fn take_read_error(&self) -> Option<Error> {
        None
    }
}

/// Keeps a mapping open, and keeps its pages from being cut off.
struct DirectPin {
    opened: Arc<Opened<DirectRegion>>,
    pages: Range<u64>,
}

impl Drop for DirectPin {
    fn drop(&mut self) {
        self.opened.pinned.remove(&self.pages);
    }
}

/// The parts of a range of bytes by page: the offset of each, and its place in the caller's buffer.
fn pages_of(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let part = done..len.min(done + PAGE_BYTES - at as usize % PAGE_BYTES);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_failed_is_not_forgotten() {
        let flushes = Flushes::default();
        flushes.flush(|| Ok(())).unwrap();
        assert!(flushes.flush(|| Err(io::ErrorKind::StorageFull.into())).is_err());
        let flushed = flushes.flush(|| panic!("the kernel would call it well"));
        assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
