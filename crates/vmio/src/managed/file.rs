//! A mapping whose faults the kernel handles.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backing::{Access, Backing};
use crate::cache::fetch::{Failure, Outcome, Urgency};
use crate::error::{Error, Result, UnsupportedBy};
use crate::managed::ManagedCore;
use crate::managed::open_managed::OpenManaged;
use crate::managed::pins;
use crate::managed::read_ahead::Advised;
use crate::managed::region::ManagedRegion;
use crate::mapped_file::file_end;
use crate::mapped_file::open_files;
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::mapped_file::{Advice, CacheIdentity, SyncHandle, Usage};
use crate::mapped_file::{
    GUESSED_SHARE, HeldPages, MappedFile, OpenedFile, ViewAddresses, bytes_of, touched_pages, whole_pages,
};
use crate::options::MappingOptions;
use crate::sys::file_map::FileMap;
use crate::sys::{PAGE_BYTES, page_cache};

/// Bytes that are read or written at a time.
const PART_BYTES: usize = 128 << 10;

/// A handle to a managed file.
#[derive(Clone)]
pub(crate) struct ManagedFile {
    opened: Arc<Opened<OpenManaged>>,
}

impl ManagedFile {
    /// Maps a backing that is a file or a device. If the process has it mapped already, returns that mapping.
    pub(crate) fn open(core: &Arc<ManagedCore>, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let identity = CacheIdentity::of(core, core.reclaimer.generation());
        let start = |backing, options| OpenManaged::start(core, backing, options, None);
        Ok(ManagedFile { opened: open_files::open(Some(identity), backing, options, start)? })
    }

    /// Like [`Self::open`], for a file that this process has inherited as a mapping from its parent.
    pub(crate) fn adopt(
        core: &Arc<ManagedCore>,
        backing: Box<dyn Backing>,
        options: MappingOptions,
        present: FileMap,
    ) -> Result<Self> {
        let identity = CacheIdentity::of(core, core.reclaimer.generation());
        let start = |backing, options| OpenManaged::start(core, backing, options, Some(present));
        Ok(ManagedFile { opened: open_files::open(Some(identity), backing, options, start)? })
    }

    /// Syncs and, if this is the last handle, unmaps.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()
    }

    /// vmio's own descriptor of the file.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.region().file()
    }

    fn region(&self) -> &ManagedRegion {
        &self.opened.region
    }

    /// Calls `each` for the parts of a range of bytes, with their offset and their place in the caller's buffer. A part
    /// is large enough that calls cost little, and small enough to keep the budget. Its pages are resident at the call.
    fn in_parts(&self, offset: u64, len: usize, mut each: impl FnMut(u64, Range<usize>) -> Result<()>) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let part = done..len.min(done + PART_BYTES - at as usize % PART_BYTES);
            self.opened.core.reclaimer.make_room().map_err(Error::system("giving up pages"))?;
            self.region().fetch(touched_pages(&(at..at + part.len() as u64)))?;
            each(at, part.clone())?;
            done = part.end;
        }
        Ok(())
    }

    /// Writes pages back and drops those that no other process has mapped.
    fn give_up(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        if region.has_failed() {
            return Ok(());
        }
        for part in region.pins.free_parts(pages) {
            let bytes = bytes_of(&part);
            region.map.unmap(&bytes).map_err(Error::system("unmapping pages"))?;
            if region.access == Access::ReadWrite {
                page_cache::finish_write(region.file(), &bytes)
                    .map_err(|error| self.opened.core.reclaimer.note_failure(region, error))?;
            }
            page_cache::drop_clean(region.file(), &bytes).map_err(Error::system("dropping pages"))?;
        }
        Ok(())
    }
}

impl MappedFile for ManagedFile {
    fn base(&self) -> *mut u8 {
        self.region().map.base()
    }

    fn len(&self) -> u64 {
        self.region().len()
    }

    fn opened(&self) -> &dyn OpenedFile {
        &*self.opened
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.in_parts(offset, buffer.len(), |offset, part| {
            let read = self.region().file.read_exact_at(&mut buffer[part], offset);
            read.map_err(|source| Error::Read { backing: self.describe(), offset, source })
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.in_parts(offset, data.len(), |offset, part| {
            let failed_pages = part.len().div_ceil(PAGE_BYTES) as u64;
            let written = self.region().file.write_all_at(&data[part], offset);
            written.map_err(|source| Error::Write { backing: self.describe(), offset, failed_pages, source })
        })
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        let (region, whole) = (self.region(), whole_pages(&range, self.len()));
        let touched = bytes_of(&touched_pages(&range));
        let reclaimer = &self.opened.core.reclaimer;
        let failed = Error::system("advising the kernel of a range");
        match advice {
            _ if range.is_empty() => Ok(()),
            Advice::Normal => reclaimer.advise_reads(region, &touched, None).map_err(failed),
            Advice::Random => reclaimer.advise_reads(region, &touched, Some(Advised::Random)).map_err(failed),
            Advice::Sequential { .. } => {
                reclaimer.advise_reads(region, &touched, Some(Advised::Sequential)).map_err(failed)
            }
            Advice::Priority(priority) => {
                region.set_priority(touched_pages(&range), priority);
                reclaimer.reorder();
                Ok(())
            }
            Advice::WillNeed => {
                let room = reclaimer.room_pages();
                self.region().fetch(whole.start..whole.end.min(whole.start + room))
            }
            Advice::DontNeed | Advice::Invalidate => self.give_up(whole),
            Advice::Cold => reclaimer.let_go(&self.opened.region, &whole).map_err(failed),
            Advice::Reuse(_) => Ok(()),
            // The kernel has no such advice: it writes stored pages and reads missed ones all the same.
            Advice::Fresh | Advice::Free => self.check_writable(),
        }
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        if access == Access::ReadWrite {
            self.check_writable()?;
        }
        let count = pages.end - pages.start;
        let reclaimer = &self.opened.core.reclaimer;
        let limit = reclaimer.pinned_pages_max();
        let taken = reclaimer.pinned_pages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
            before.checked_add(count).filter(|after| *after <= limit)
        });
        if taken.is_err() {
            return Err(Error::TooManyPins { wanted_pages: count, limit_pages: limit });
        }
        self.region().pins.hold(pages.clone());
        // From here on, dropping `held` gives everything back.
        let held = PinnedPages { opened: Arc::clone(&self.opened), pages };
        // A thread that shrinks the cache looks for pins after it has set the capacity.
        if reclaimer.pinned_pages.load(Ordering::SeqCst) > reclaimer.pinned_pages_max() {
            return Err(Error::TooManyPins { wanted_pages: count, limit_pages: reclaimer.pinned_pages_max() });
        }
        let bytes = bytes_of(&held.pages);
        if bytes.is_empty() {
            return Ok(Box::new(held));
        }
        self.region().fetch(held.pages.clone())?;
        pins::lock(&self.region().map, &bytes, access == Access::ReadWrite).map_err(Error::system(
            "locking pinned pages in memory (`ulimit -l` limits them: pin less, or raise it)",
        ))?;
        // A thread that shortens the mapping looks for pins after it has set the new length.
        if bytes.end > self.region().extent().end {
            return Err(Error::OutOfRange { range: bytes, len: self.len() });
        }
        Ok(Box::new(held))
    }

    fn open_view(&self) -> Result<Arc<dyn ViewAddresses>> {
        Err(Error::Unsupported {
            by: UnsupportedBy::ManagedEngine,
            what: "a second range of addresses for a mapping",
            why: "its reclaimer would not see what is mapped there: use Engine::Sigbus with FrameHint::SharedAddresses",
        })
    }

    fn ensure(&self, pages: Range<u64>) -> Result<()> {
        let bytes = bytes_of(&pages);
        self.in_parts(bytes.start, (bytes.end - bytes.start) as usize, |_, _| Ok(()))
    }

    fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        self.opened.fetch(ranges, urgency)
    }

    fn fetch_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Error(error) => error,
            Failure::Page(page, _) => {
                let bytes = bytes_of(&(page..page + 1));
                Error::OutOfRange { range: bytes, len: self.len() }
            }
        }
    }

    fn guesses_max(&self) -> u64 {
        u64::from(self.opened.core.reclaimer.capacity_pages()) / GUESSED_SHARE
    }

    fn for_each_resident(&self, pages: Range<u64>, each: &mut dyn FnMut(u64)) {
        let map = &self.region().map;
        let base = map.base() as usize;
        let found = self.opened.core.reclaimer.scan().present(map.addresses(&bytes_of(&pages)), |run| {
            (((run.start - base) / PAGE_BYTES) as u64..((run.end - base) / PAGE_BYTES) as u64).for_each(&mut *each);
        });
        if let Err(error) = found {
            tracing::warn!(%error, "the kernel does not tell what is resident");
        }
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        self.for_each_resident(0..self.len().div_ceil(PAGE_BYTES as u64), &mut |_| usage.resident_pages += 1);
        usage
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        let region = self.region();
        if len > region.map.len() as u64 {
            return Err(Error::BeyondReservation { requested: len, reserved: region.map.len() as u64 });
        }
        let _one_at_a_time = region.lock_len();
        let old = region.len();
        let failed = |source| Error::Resize { backing: self.describe(), requested: len, source };
        if len < old {
            // No pin begins behind the new end after this line.
            region.store_len(len);
            let page = PAGE_BYTES as u64;
            let cut = match region.pins.any(len.div_ceil(page)..old.div_ceil(page)) {
                true => Err(io::Error::other("pages behind the new end are pinned")),
                false => region.backing.set_len(len),
            };
            return cut.map_err(|source| {
                region.store_len(old);
                failed(source)
            });
        }
        // Bytes that the program stored behind the end, in the last page, are not part of the file. Bytes that other
        // processes have appended since are.
        let end = old.max(file_end::file_len(&*region.backing).map_err(failed)?);
        let tail = end..end.next_multiple_of(PAGE_BYTES as u64);
        if len > end && !tail.is_empty() {
            let last = end / PAGE_BYTES as u64;
            region.map.populate_for_stores(&bytes_of(&(last..last + 1))).map_err(failed)?;
            region.map.clear(&tail);
        }
        region.backing.set_len(len).map_err(failed)?;
        region.store_len(len);
        Ok(())
    }

    fn sync(&self, part: Option<Range<u64>>) -> Result<()> {
        part.map_or_else(|| self.opened.sync(), |bytes| self.opened.flush(&bytes_of(&touched_pages(&bytes))))
    }

    fn sync_begin(&self) -> Result<SyncHandle> {
        let opened = Arc::clone(&self.opened);
        SyncHandle::spawn(move || opened.sync())
    }

    fn take_read_error(&self) -> Option<Error> {
        None
    }
}

/// Pages that a pin holds; keeps the mapping open.
struct PinnedPages {
    opened: Arc<Opened<OpenManaged>>,
    pages: Range<u64>,
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        let reclaimer = &self.opened.core.reclaimer;
        if reclaimer.generation().is_current() {
            self.opened.region.pins.release(self.pages.clone(), &self.opened.region.map);
            reclaimer.pinned_pages.fetch_sub(self.pages.end - self.pages.start, Ordering::SeqCst);
        }
    }
}
