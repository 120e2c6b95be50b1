//! A further range of addresses for a file of the kernel module: one more mapping of it.

use std::io;
use std::ops::Range;

use crate::backing::Access;
use crate::error::{Error, Result, UnsupportedBy};
use crate::kernel_engine::KernelFile;
use crate::mapped_file::{HeldPages, MappedFile, ViewAddresses};
use crate::sys::file_map::FileMap;

/// Another mapping of the attachment. The module keeps all of them consistent.
pub(super) struct KernelView {
    // Dropped first: the attachment ends with its last mapping.
    map: FileMap,
    file: KernelFile,
}

impl KernelView {
    pub(super) fn open(file: &KernelFile) -> Result<Self> {
        let region = file.region();
        if region.verification.is_some() {
            return Err(Error::Unsupported {
                by: UnsupportedBy::KernelEngine,
                what: "a second range of addresses for a mapping with a page verifier or poison",
                why: "pages mapped there would not be verified: use Engine::Sigbus with FrameHint::SharedAddresses",
            });
        }
        let map = region.map_again().map_err(Error::system("mapping the file once more through the kernel module"))?;
        Ok(KernelView { map, file: file.clone() })
    }
}

impl ViewAddresses for KernelView {
    fn base(&self) -> *mut u8 {
        self.map.base()
    }

    fn allow_stores(&self, allow: bool) -> io::Result<()> {
        self.map.allow_stores(allow)
    }

    /// A pin holds at all addresses: a system call finds the page at any of them, or has it mapped there.
    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        self.file.pin(pages, access)
    }
}
