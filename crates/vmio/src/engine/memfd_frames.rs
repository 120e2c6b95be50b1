//! Pages of a memory file whose stores the kernel notes (userfaultfd WP_ASYNC). The first store to a page costs neither a fault in
//! vmio nor a shootdown. A page can be inactive: unmapped, and still in memory.

use std::io;
use std::sync::Arc;

use crate::engine::{DeactivatableFrames, Frames, InstallError, Prepare};
use crate::sys::PAGE_BYTES;
use crate::sys::kernel::{KernelFeature, KernelFeatures};
use crate::sys::memory_file::MemoryFile;
use crate::sys::pagemap::{Pagemap, SCAN_PAGES, StoredPages};
use crate::sys::reservation::Reservation;
use crate::sys::unmap::{UnmapList, Unmapper};
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};

const NEEDED: [KernelFeature; 3] = [KernelFeature::ShmemWp, KernelFeature::WpAsync, KernelFeature::PagemapScan];

/// The part that the frames of all ranges share.
#[derive(Clone)]
pub(crate) struct Tracker {
    userfaultfd: Arc<Userfaultfd>,
    pagemap: Arc<Pagemap>,
    unmapper: Arc<Unmapper>,
}

impl Tracker {
    /// Opens a userfaultfd for which the kernel tracks stores, and the files beside it. It is an error where the kernel cannot do
    /// that (Linux 6.7 can), or where `features` forbid it.
    pub(crate) fn open(
        features: KernelFeatures,
        userfaultfd: impl FnOnce(StoreTracking) -> io::Result<Userfaultfd>,
    ) -> io::Result<Self> {
        if !NEEDED.iter().all(|feature| features.allow(*feature)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Tracker {
            userfaultfd: Arc::new(userfaultfd(StoreTracking::Kernel)?),
            pagemap: Arc::new(Pagemap::open_to_scan()?),
            unmapper: Arc::new(Unmapper::probe(features)),
        })
    }

    /// The userfaultfd, for an engine that reads its messages.
    pub(crate) fn userfaultfd(&self) -> Arc<Userfaultfd> {
        Arc::clone(&self.userfaultfd)
    }
}

/// The frames of one range and of the ranges that share them.
pub(crate) struct MemfdFrames {
    base: usize,
    file: MemoryFile,
    tracker: Tracker,
}

impl MemfdFrames {
    /// Makes a registered range over a new memory file.
    pub(crate) fn reserve(
        len: usize,
        align: usize,
        tracker: Tracker,
        prepare: Prepare<'_>,
    ) -> io::Result<(Reservation, Box<dyn DeactivatableFrames>)> {
        let file = MemoryFile::new(len as u64)?;
        let mut frames = MemfdFrames { base: 0, file, tracker };
        let range = frames.share(len, align, prepare)?;
        frames.base = range.base() as usize;
        Ok((range, Box::new(frames)))
    }

    /// The file offset of an address in the first range.
    fn offset(&self, address: usize) -> u64 {
        (address - self.base) as u64
    }
}

impl Frames for MemfdFrames {
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError> {
        // SAFETY: the caller vouches for the range.
        unsafe { self.tracker.userfaultfd.copy(address, data, protect) }
            .map_err(|(installed_bytes, source)| InstallError { installed_bytes, source })
    }

    fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        self.tracker.userfaultfd.write_protect(address, len, true)
    }

    fn unprotect(&self, _address: usize, _len: usize) -> io::Result<()> {
        Ok(()) // The kernel does it when the store comes.
    }

    fn unmaps_scattered(&self) -> bool {
        false
    }

    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64 {
        pages.drop_ranges(0, |address, len| self.file.punch(self.offset(address), len as u64).is_ok())
    }
}

impl DeactivatableFrames for MemfdFrames {
    fn share(&self, len: usize, align: usize, prepare: Prepare<'_>) -> io::Result<Reservation> {
        let mut range = self.file.map(len, align)?;
        self.tracker.userfaultfd.register(range.base() as usize, range.len())?;
        prepare(&mut range)?;
        Ok(range)
    }

    unsafe fn deactivate(&self, addresses: &mut dyn Iterator<Item = usize>, len: usize) -> io::Result<u64> {
        // Never unmaps all that a page of page tables maps at once. A kernel that then frees such a page (Linux 6.14 may) could
        // report no stores to its pages in a later scan.
        let first = len.min(SCAN_PAGES / 2 * PAGE_BYTES);
        let mut shootdowns = 0;
        for address in addresses {
            shootdowns += 1;
            // SAFETY: the range is registered, so the next access faults; the file keeps the contents.
            unsafe { self.tracker.unmapper.zap(address, first)? };
            if first < len {
                // SAFETY: as above.
                unsafe { self.tracker.unmapper.zap(address + first, len - first)? };
            }
        }
        Ok(shootdowns)
    }

    fn reactivate(&self, address: usize, protect: bool) -> io::Result<bool> {
        self.tracker.userfaultfd.map_existing(address, protect)
    }

    fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.tracker.pagemap.stored(address, len, found)
    }

    fn was_stored(&self, address: usize) -> io::Result<bool> {
        self.tracker.pagemap.was_stored(address)
    }

    fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        self.tracker.pagemap.stored_and_protect(address, len, found)
    }

    fn forget_stores(&self, address: usize, len: usize) -> io::Result<()> {
        self.tracker.userfaultfd.write_protect(address, len, false)
    }

    fn read(&self, address: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read(self.offset(address), buffer)
    }
}
