//! A mapping that the kernel module serves.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backing::{Access, Backing};
use crate::cache::fetch::{Failure, Outcome, Urgency};
use crate::error::{Error, Result};
use crate::kernel_engine::KernelCore;
use crate::kernel_engine::open_kernel::OpenKernel;
use crate::kernel_engine::pinned::pages_in;
use crate::kernel_engine::region::{EVERYTHING, KernelRegion};
use crate::kernel_engine::view::KernelView;
use crate::mapped_file::file_end;
use crate::mapped_file::open_files;
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::mapped_file::{Advice, CacheIdentity, SyncHandle, Usage};
use crate::mapped_file::{
    GUESSED_SHARE, HeldPages, MappedFile, OpenedFile, ViewAddresses, bytes_of, touched_pages, whole_pages,
};
use crate::options::MappingOptions;
use crate::sys::PAGE_BYTES;
use crate::sys::vmio_module::READ_AHEAD_PAGES_MAX;

/// The time for which held pages are tried again. For each of their spans the module itself waits nine ticks of the clock.
const HELD_PATIENCE: Duration = Duration::from_secs(1);

/// A handle to a file that the kernel module maps.
#[derive(Clone)]
pub(crate) struct KernelFile {
    opened: Arc<Opened<OpenKernel>>,
}

impl KernelFile {
    /// Maps a file or device, or returns a handle to the region that the process already maps.
    pub(crate) fn open(core: &Arc<KernelCore>, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let identity = CacheIdentity::of(core, core.module.generation());
        let start = |backing, options| OpenKernel::start(core, backing, options);
        Ok(KernelFile { opened: open_files::open(Some(identity), backing, options, start)? })
    }

    /// Syncs and, if this is the last handle, unmaps.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()
    }

    /// See [`crate::Mapping::descriptor`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.region().attachment.as_fd()
    }

    /// See [`crate::Mapping::failed_reads`].
    pub(crate) fn failed_reads(&self) -> u64 {
        self.region().verification.as_ref().map_or(0, |verification| verification.failures.count())
    }

    pub(super) fn region(&self) -> &KernelRegion {
        &self.opened.region
    }

    fn is_all(&self, range: &Range<u64>) -> bool {
        range.start == 0 && range.end == self.len()
    }

    /// Sets the read-ahead of the whole file. The module has one setting per file, so advice for a part has no effect.
    fn set_read_ahead(&self, range: &Range<u64>, pages: u32) -> Result<()> {
        if self.is_all(range) { self.region().read_ahead(pages) } else { Ok(()) }
    }

    /// Marks pages as fresh. This is only a hint: where the module has no space to remember it, misses still read the pages.
    fn mark_fresh(&self, pages: &Range<u64>) -> Result<()> {
        match self.region().attachment.mark_fresh(&bytes_of(pages)) {
            Err(error) if error.raw_os_error() != Some(libc::ENOSPC) => {
                Err(Error::system("telling the kernel module of a fresh range")(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes back and evicts pages.
    fn give_up(&self, pages: &Range<u64>) -> Result<()> {
        let (region, bytes) = (self.region(), bytes_of(pages));
        self.until_nobody_holds(pages, || region.attachment.evict(&bytes).map_err(|source| region.sync_error(source)))
    }

    /// Drops pages, with their stores and their fresh marks.
    fn discard(&self, pages: &Range<u64>) -> Result<()> {
        let (region, bytes) = (self.region(), bytes_of(pages));
        self.until_nobody_holds(pages, || region.attachment.discard(&bytes).map_err(Error::system("dropping pages")))
    }

    /// Takes pages out of memory until only those with pins of this mapping stay. A page that a system call or device holds for
    /// longer than the module waits would later overwrite what others write to the file.
    fn until_nobody_holds(&self, pages: &Range<u64>, take_out: impl Fn() -> Result<u64>) -> Result<()> {
        let began = Instant::now();
        let held = loop {
            // Pins that exist before and after the call existed during it.
            let before = self.region().pinned().established();
            let staying = take_out()?;
            let ours = self.region().pinned().established_among(&before);
            let held = staying.saturating_sub(pages_in(&ours, pages));
            if held == 0 {
                return Ok(());
            }
            if began.elapsed() > HELD_PATIENCE {
                break held;
            }
        };
        let why =
            format!("{held} page(s) stay in memory: a pin of another process, a system call or a device holds them");
        Err(Error::system("dropping pages")(io::Error::new(io::ErrorKind::ResourceBusy, why)))
    }

    fn shrink(&self, old: u64, len: u64) -> Result<()> {
        let region = self.region();
        let failed = |source| Error::Resize { backing: self.describe(), requested: len, source };
        let page = PAGE_BYTES as u64;
        let pinned = region.pinned();
        let cut_off = len.div_ceil(page)..old.div_ceil(page);
        if pinned.meet(&cut_off) {
            return Err(failed(io::Error::other("pages behind the new end are pinned")));
        }
        let affected = bytes_of(&(len / page..cut_off.end));
        region.store_len(len);
        // A write under way behind the new end would lengthen the file again.
        let cut = region.map.sync(&affected).and_then(|()| region.backing.set_len(len));
        if let Err(source) = cut {
            region.store_len(old);
            return Err(failed(source));
        }
        // The cut-off pages go now, or they would show again after a growth of the file. A write of the page at the new end may
        // have begun before the cut: the eviction waits for it, and `set_len` cuts off the bytes that it has added.
        let settled = region.attachment.evict(&affected);
        let added = len..len.next_multiple_of(page);
        if file_end::file_len(&*region.backing).is_ok_and(|found| found > added.start && found <= added.end) {
            region.backing.set_len(len).map_err(failed)?;
        }
        if let Err(error) = settled {
            tracing::debug!(backing = self.describe(), %error, "the page at the new end stays in memory");
        }
        Ok(())
    }

    fn grow(&self, old: u64, len: u64) -> Result<()> {
        let region = self.region();
        let failed = |source| Error::Resize { backing: self.describe(), requested: len, source };
        // Stores of the program behind the end, in the last page, are not part of the file. Bytes that others have added are.
        let end = old.max(file_end::file_len(&*region.backing).map_err(failed)?);
        let tail = end..end.next_multiple_of(PAGE_BYTES as u64);
        if len > end && !tail.is_empty() {
            let zeros = [0; PAGE_BYTES];
            region.store(end, &zeros[..(tail.end - tail.start) as usize])?;
        }
        region.backing.set_len(len).map_err(failed)?;
        region.store_len(len);
        Ok(())
    }
}

impl MappedFile for KernelFile {
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
        self.region().load(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.region().store(offset, data)
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        let whole = whole_pages(&range, self.len());
        match advice {
            _ if range.is_empty() => Ok(()),
            Advice::Normal => self.set_read_ahead(&range, READ_AHEAD_PAGES_MAX),
            Advice::Random => self.set_read_ahead(&range, 0),
            Advice::Sequential { window_bytes } => {
                let pages = window_bytes.div_ceil(PAGE_BYTES as u32).wrapping_sub(1);
                self.set_read_ahead(&range, pages.min(READ_AHEAD_PAGES_MAX))
            }
            Advice::Priority(priority) if self.is_all(&range) => self.region().prioritize(&EVERYTHING, priority),
            Advice::Priority(priority) => self.region().prioritize(&bytes_of(&touched_pages(&range)), priority),
            Advice::WillNeed => {
                let room = self.opened.core.module.room_pages();
                self.region().populate(&(whole.start..whole.end.min(whole.start + room)))
            }
            Advice::DontNeed => self.give_up(&whole),
            Advice::Reuse(_) | Advice::Cold => Ok(()),
            Advice::Fresh => self.check_writable().and_then(|()| self.mark_fresh(&whole)),
            Advice::Free => {
                self.check_writable()?;
                // `discard` forgets fresh marks, so that they come after it.
                self.discard(&whole)?;
                self.mark_fresh(&whole)
            }
            // A read-only mapping has no stores to drop.
            Advice::Invalidate if self.region().access == Access::ReadOnly => self.give_up(&whole),
            Advice::Invalidate => self.discard(&whole),
        }
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        if access == Access::ReadWrite {
            self.check_writable()?;
        }
        let region = self.region();
        let bytes = bytes_of(&pages);
        // A thread that shortens the mapping looks for pins after it has set the new length.
        let number = region.pinned().begin(pages.clone());
        let mut held = KernelPin { descriptor: None, opened: Arc::clone(&self.opened), pages, number };
        if bytes.end > region.extent().end {
            return Err(Error::OutOfRange { range: bytes, len: self.len() });
        }
        if bytes.is_empty() {
            return Ok(Box::new(held));
        }
        let pinned = region.pin(&held.pages, access == Access::ReadWrite)?;
        held.descriptor = Some(pinned.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC) => Error::TooManyPins {
                wanted_pages: held.pages.end - held.pages.start,
                limit_pages: self.opened.core.module.pinned_pages_max(),
            },
            Some(libc::EFAULT) => region.read_error(&bytes, error),
            _ => Error::system("pinning pages (each pin takes a descriptor: `ulimit -n` limits them)")(error),
        })?);
        region.pinned().establish(number);
        Ok(Box::new(held))
    }

    fn open_view(&self) -> Result<Arc<dyn ViewAddresses>> {
        Ok(Arc::new(KernelView::open(self)?))
    }

    fn ensure(&self, pages: Range<u64>) -> Result<()> {
        self.region().populate(&pages)
    }

    fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>> {
        self.opened.fetch(ranges, urgency)
    }

    fn fetch_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Error(error) => error,
            Failure::Page(page, _) => Error::OutOfRange { range: bytes_of(&(page..page + 1)), len: self.len() },
        }
    }

    fn guesses_max(&self) -> u64 {
        u64::from(self.opened.core.module.capacity_pages()) / GUESSED_SHARE
    }

    fn for_each_resident(&self, pages: Range<u64>, each: &mut dyn FnMut(u64)) {
        if let Err(error) = self.region().attachment.for_each_resident(&bytes_of(&pages), each) {
            tracing::warn!(%error, "the kernel module does not tell what is resident");
        }
    }

    fn usage(&self) -> Usage {
        let usage = self.region().attachment.usage().unwrap_or_default();
        Usage { resident_pages: usage.resident, ..Usage::default() }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        let region = self.region();
        let reserved = region.map.len() as u64;
        if len > reserved {
            return Err(Error::BeyondReservation { requested: len, reserved });
        }
        let _one_at_a_time = region.lock_len();
        let old = region.len();
        if len < old { self.shrink(old, len) } else { self.grow(old, len) }
    }

    fn sync(&self, part: Option<Range<u64>>) -> Result<()> {
        let part = part.map(|bytes| bytes_of(&touched_pages(&bytes)));
        self.region().sync(part.as_ref())
    }

    fn sync_begin(&self) -> Result<SyncHandle> {
        let opened = Arc::clone(&self.opened);
        SyncHandle::spawn(move || opened.sync())
    }

    fn take_read_error(&self) -> Option<Error> {
        let (page, failure) = self.region().verification.as_ref()?.failures.take_first()?;
        Some(failure.into_error(self.describe(), page))
    }
}

/// Keeps pages in memory, and the mapping open.
struct KernelPin {
    /// The module's descriptor of the pin, which is closed first.
    descriptor: Option<OwnedFd>,
    opened: Arc<Opened<OpenKernel>>,
    pages: Range<u64>,
    number: u64,
}

impl Drop for KernelPin {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held the lock when it was copied.
        if !self.opened.generation().is_current() {
            return;
        }
        self.descriptor = None;
        self.opened.region.pinned().end(self.number);
    }
}
