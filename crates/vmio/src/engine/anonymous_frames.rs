//! Private anonymous pages with synchronous write-protection: the cheapest to install and to evict clean.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::engine::{Frames, InstallError};
use crate::sys::kernel::{KernelFeature, KernelFeatures};
use crate::sys::pagemap::Pagemap;
use crate::sys::reservation::Reservation;
use crate::sys::unmap::{UnmapList, Unmapper};
use crate::sys::userfaultfd::Userfaultfd;

/// Frames that the kernel allocates at UFFDIO_COPY and frees at MADV_DONTNEED.
pub(crate) struct AnonymousFrames {
    userfaultfd: Arc<Userfaultfd>,
    unmapper: Unmapper,
    may_move: bool,
    /// Tells which spans are huge pages.
    pagemap: Option<Pagemap>,
}

impl AnonymousFrames {
    /// Makes frames for ranges attached to this userfaultfd.
    pub(crate) fn new(userfaultfd: Arc<Userfaultfd>, features: KernelFeatures) -> Self {
        let may_move = userfaultfd.moves_pages() && features.allow(KernelFeature::MovePages);
        AnonymousFrames {
            userfaultfd,
            unmapper: Unmapper::probe(features),
            may_move,
            pagemap: Pagemap::open_to_scan().ok(),
        }
    }
}

impl Frames for AnonymousFrames {
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError> {
        // Copies zeros as well: the first store to a page of UFFDIO_ZEROPAGE takes no trap.
        // SAFETY: the caller vouches for the range.
        unsafe { self.userfaultfd.copy(address, data, protect) }
            .map_err(|(installed_bytes, source)| InstallError { installed_bytes, source })
    }

    fn installs_spans(&self) -> bool {
        self.may_move
    }

    unsafe fn install_span(&self, address: usize, source: &Reservation) -> io::Result<()> {
        let len = source.len();
        // The trap may have left a page of page tables. With it the kernel would split the huge page.
        // SAFETY: the caller vouches for the span, which holds nothing.
        unsafe { self.unmapper.zap(address, len)? };
        // SAFETY: the caller vouches for both ends.
        let moved = unsafe { self.userfaultfd.move_pages(address, source.base() as usize, len) };
        moved.and_then(|()| self.userfaultfd.write_protect(address, len, true)).inspect_err(|_| {
            // SAFETY: the caller vouches for the range. The pages that have arrived there are the caller's, and count as absent.
            let _ = unsafe { self.unmapper.zap(address, len) };
        })
    }

    unsafe fn take_span(&self, address: usize, target: &Reservation) -> io::Result<()> {
        let (to, len) = (target.base() as usize, target.len());
        let is_huge = match &self.pagemap {
            Some(pagemap) => pagemap.is_huge(address, len)?,
            None => false,
        };
        if !is_huge {
            return Err(io::ErrorKind::Other.into()); // The span is in small pages by now.
        }
        // Earlier small pages may have left a page of page tables there.
        // SAFETY: the caller vouches for the target, which holds nothing.
        unsafe { self.unmapper.zap(to, len)? };
        // SAFETY: the caller vouches for both ends.
        unsafe { self.userfaultfd.move_pages(to, address, len) }
    }

    fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        self.userfaultfd.write_protect(address, len, true)
    }

    fn unprotect(&self, address: usize, len: usize) -> io::Result<()> {
        self.userfaultfd.write_protect(address, len, false)
    }

    fn unmaps_scattered(&self) -> bool {
        self.unmapper.is_batched()
    }

    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64 {
        // SAFETY: the caller vouches for the pages; their next access faults, since the range is registered.
        unsafe { self.unmapper.unmap(pages) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let pagemap = self.pagemap.as_ref().map(Pagemap::descriptor);
        [Some(self.userfaultfd.fd().as_fd()), self.unmapper.descriptor(), pagemap].into_iter().flatten().collect()
    }
}
