//! Private anonymous pages with synchronous write-protect: cheapest to install and to evict clean.

use std::io;
use std::sync::Arc;

use crate::engine::{Frames, InstallError};
use crate::sys::unmap::{UnmapList, Unmapper};
use crate::sys::userfaultfd::Userfaultfd;

/// Frames that the kernel allocates at UFFDIO_COPY and frees at MADV_DONTNEED.
pub(crate) struct AnonymousFrames {
    userfaultfd: Arc<Userfaultfd>,
    unmapper: Unmapper,
}

impl AnonymousFrames {
    /// Frames of ranges attached to this userfaultfd.
    pub(crate) fn new(userfaultfd: Arc<Userfaultfd>) -> Self {
        AnonymousFrames { userfaultfd, unmapper: Unmapper::probe() }
    }
}

impl Frames for AnonymousFrames {
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError> {
        // Zeros are copied as well: a page from UFFDIO_ZEROPAGE takes no trap on its first store.
        // SAFETY: the caller vouches for the range.
        unsafe { self.userfaultfd.copy(address, data, protect) }
            .map_err(|(installed_bytes, source)| InstallError { installed_bytes, source })
    }

    fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        self.userfaultfd.write_protect(address, len, true)
    }

    fn unprotect(&self, address: usize, len: usize) -> io::Result<()> {
        self.userfaultfd.write_protect(address, len, false)
    }

    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64 {
        // SAFETY: the caller vouches for the pages; their next access faults, since the range is registered.
        unsafe { self.unmapper.unmap(pages) }
    }
}
