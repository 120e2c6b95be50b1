//! One file that the kernel module maps for vmio.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::backing::{Access, Backing};
use crate::error::{Error, Result, UnsupportedBy};
use crate::kernel_engine::Module;
use crate::kernel_engine::pinned::Pinned;
use crate::kernel_engine::verify_before_map::VerifyBeforeMap;
use crate::mapped_file::bytes_of;
use crate::mapped_file::file_end;
use crate::options::MappingOptions;
use crate::sys::PAGE_BYTES;
use crate::sys::file_map::FileMap;
use crate::sys::fork::Generation;
use crate::sys::own_memory::Stopped;
use crate::sys::vmio_module::{Attachment, READ_AHEAD_PAGES_MAX};

/// All present and future pages.
pub(super) const EVERYTHING: Range<u64> = 0..u64::MAX;

/// A mapped file.
pub(crate) struct KernelRegion {
    // Dropped in this order: the attachment ends with its last mapping and descriptor.
    pub(super) map: FileMap,
    pub(super) attachment: Attachment,
    pub(super) backing: Box<dyn Backing>,
    pub(super) access: Access,
    /// The process that opened the file.
    pub(super) generation: Generation,
    len: AtomicU64,
    /// One change of length at a time.
    len_lock: Mutex<()>,
    /// The pins. Locked while pages are cut off.
    pinned: Mutex<Pinned>,
    /// The fetches by threads of the cache.
    pub(super) fetches: Fetches,
    /// Present if the program maps only verified pages.
    pub(super) verification: Option<VerifyBeforeMap>,
}

impl KernelRegion {
    /// Attaches and maps the file of a backing. It costs nothing until touched.
    pub(super) fn new(module: &Module, backing: Box<dyn Backing>, options: &MappingOptions) -> Result<Self> {
        let access = options.access_to(&*backing)?;
        check_options(options, access)?;
        let (Some(_), Some(direct)) = (backing.file(), backing.direct_reads()) else {
            let why = "the module maps files and block devices: use Engine::Sigbus, or a FileBacking";
            return Err(Error::Unsupported { by: UnsupportedBy::KernelEngine, what: "a backing that is no file", why });
        };
        let len = backing.len();
        let reserved = options.reserved_bytes(len)?;
        let verification = VerifyBeforeMap::of(options, module)?;
        let attachment = module.attach(direct, verification.is_some()).map_err(attach_error)?;
        let map = FileMap::in_granules(attachment.as_fd(), reserved, access == Access::ReadWrite)
            .map_err(Error::system("mapping the file through the kernel module"))?;
        let region = KernelRegion {
            map,
            attachment,
            backing,
            access,
            generation: module.generation(),
            len: AtomicU64::new(len),
            len_lock: Mutex::new(()),
            pinned: Mutex::default(),
            fetches: Fetches::default(),
            verification,
        };
        region.read_ahead(READ_AHEAD_PAGES_MAX)?;
        if options.priority != MappingOptions::DEFAULT_PRIORITY {
            region.prioritize(&EVERYTHING, options.priority)?;
        }
        Ok(region)
    }

    // ---- geometry

    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn store_len(&self, len: u64) {
        self.len.store(len, Ordering::SeqCst);
    }

    /// All bytes of its pages.
    pub(super) fn extent(&self) -> Range<u64> {
        0..self.len().next_multiple_of(PAGE_BYTES as u64)
    }

    /// Waits until no change of length is under way.
    pub(super) fn lock_len(&self) -> MutexGuard<'_, ()> {
        self.len_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the whole file at further addresses.
    pub(super) fn map_again(&self) -> io::Result<FileMap> {
        FileMap::in_granules(self.attachment.as_fd(), self.map.len(), self.access == Access::ReadWrite)
    }

    // ---- what is said of pages

    pub(super) fn read_ahead(&self, pages: u32) -> Result<()> {
        self.attachment.read_ahead(pages).map_err(Error::system("telling the kernel module how far to read ahead"))
    }

    pub(super) fn prioritize(&self, bytes: &Range<u64>, priority: u8) -> Result<()> {
        let told = self.attachment.prioritize(bytes, priority);
        told.map_err(Error::system("telling the kernel module the priority of a range"))
    }

    // ---- contents

    /// Makes pages resident and maps them.
    pub(super) fn populate(&self, pages: &Range<u64>) -> Result<()> {
        let bytes = bytes_of(pages);
        if bytes.is_empty() {
            return Ok(());
        }
        match &self.verification {
            Some(verification) => verification.populate(self, pages),
            None => self.map.populate(&bytes).map_err(|error| self.read_error(&bytes, error)),
        }
    }

    /// Copies bytes out.
    pub(super) fn load(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match &self.verification {
            Some(verification) => verification.load(self, offset, buffer),
            None => self.map.load(offset, buffer).map_err(|stopped| self.copy_error(offset, stopped)),
        }
    }

    /// Copies bytes in.
    pub(super) fn store(&self, offset: u64, data: &[u8]) -> Result<()> {
        match &self.verification {
            Some(verification) => verification.store(self, offset, data),
            None => self.map.store(offset, data).map_err(|stopped| self.copy_error(offset, stopped)),
        }
    }

    /// Brings pages into memory, and keeps them there until the descriptor is closed.
    pub(super) fn pin(&self, pages: &Range<u64>, for_stores: bool) -> Result<io::Result<OwnedFd>> {
        match &self.verification {
            Some(verification) => verification.pin(self, pages, for_stores),
            None => Ok(self.attachment.pin(&self.map.addresses(&bytes_of(pages)), for_stores)),
        }
    }

    /// The error of an unavailable page in a range. The kernel does not say which page it is: reads find the page and the reason.
    pub(super) fn read_error(&self, bytes: &Range<u64>, error: io::Error) -> Error {
        let mut page = AlignedPage([0; PAGE_BYTES]);
        let mut fails = |offset: u64| Some((offset, self.backing.read_at(offset, &mut page.0).err()?));
        let found = bytes.clone().step_by(PAGE_BYTES).find_map(&mut fails);
        let (offset, source) = found.unwrap_or((bytes.start, error));
        Error::Read { backing: self.backing.describe(), offset, source }
    }

    /// The error of a copy that has met an unavailable page.
    fn copy_error(&self, offset: u64, stopped: Stopped) -> Error {
        let page = (offset + stopped.done as u64) / PAGE_BYTES as u64;
        self.read_error(&bytes_of(&(page..page + 1)), stopped.why)
    }

    // ---- durability

    /// Makes the stores to a range of bytes, or to the whole file, durable.
    pub(super) fn sync(&self, part: Option<&Range<u64>>) -> Result<()> {
        if self.access == Access::ReadOnly || part.is_some_and(Range::is_empty) {
            return Ok(());
        }
        self.map_sync_error(part.map_or_else(|| self.attachment.sync(), |bytes| self.map.sync(bytes)))?;
        file_end::check_not_shortened(&*self.backing, self.len())
    }

    /// Maps the failure of a write or a flush to an error.
    pub(super) fn map_sync_error(&self, result: io::Result<()>) -> Result<()> {
        result.map_err(|source| self.sync_error(source))
    }

    pub(super) fn sync_error(&self, source: io::Error) -> Error {
        let backing = self.backing.describe();
        match self.attachment.usage() {
            Ok(usage) if usage.flush_failed == 0 && usage.dirty > 0 => Error::Write {
                backing,
                offset: usage.first_dirty * PAGE_BYTES as u64,
                failed_pages: usage.dirty,
                source,
            },
            _ => Error::Flush { backing, source },
        }
    }
}

/// A page aligned for direct I/O.
#[repr(align(4096))]
struct AlignedPage([u8; PAGE_BYTES]);

/// Refuses options that the module does not support.
fn check_options(options: &MappingOptions, access: Access) -> Result<()> {
    let refused = |what, why| Err(Error::Unsupported { by: UnsupportedBy::KernelEngine, what, why });
    if access == Access::ReadWrite && options.verifier.as_ref().is_some_and(|verifier| verifier.seals()) {
        return refused(
            "a page verifier that seals on a writable mapping",
            "the module writes pages as they are: use Engine::Sigbus, or let PageVerifier::seals say that it changes nothing",
        );
    }
    if options.journal.is_some() {
        return refused(
            "an atomic mapping",
            "the module writes dirty pages whenever it needs memory: use Engine::Sigbus",
        );
    }
    if options.floor_bytes > 0 || options.ceiling_bytes.is_some() {
        let why = "the files of a cache share its memory evenly: use Engine::Sigbus, or a cache for each mapping";
        return refused("a floor or a ceiling of a mapping", why);
    }
    Ok(())
}

fn attach_error(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => Error::Unsupported {
            by: UnsupportedBy::KernelEngine,
            what: "a file without direct I/O, or with blocks larger than a page",
            why: "the module reads and writes past the page cache: use Engine::Sigbus",
        },
        Some(libc::EBUSY) => Error::Unsupported {
            by: UnsupportedBy::KernelEngine,
            what: "a file that is mapped otherwise already (another cache or a forked child has it with a verifier, or without one)",
            why: "wait until that mapping is closed, or map it by the same cache and alike",
        },
        Some(libc::EOPNOTSUPP) => Error::Unsupported {
            by: UnsupportedBy::KernelEngine,
            what: "a file of a stacked file system",
            why: "it could not be frozen: map the file of the file system below, or use Engine::Sigbus",
        },
        _ => Error::system("attaching the file to the kernel module")(error),
    }
}

/// The fetches under way. A region closes when there is none.
#[derive(Default)]
pub(super) struct Fetches {
    state: Mutex<FetchState>,
    ended: Condvar,
}

#[derive(Default)]
struct FetchState {
    running: usize,
    closing: bool,
}

impl Fetches {
    fn state(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all fetches, and waits for their end.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closing = true;
        while state.running > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A fetch under way. Its region does not close before its end.
pub(super) struct Fetching(Arc<KernelRegion>);

impl Fetching {
    /// Counts a new fetch.
    pub(super) fn begin(region: &Arc<KernelRegion>) -> Self {
        region.fetches.state().running += 1;
        Fetching(Arc::clone(region))
    }

    /// Whether the fetch should go on.
    pub(super) fn goes_on(&self) -> bool {
        !self.0.fetches.state().closing
    }

    pub(super) fn region(&self) -> &KernelRegion {
        &self.0
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.fetches.state().running -= 1;
        self.0.fetches.ended.notify_all();
    }
}
