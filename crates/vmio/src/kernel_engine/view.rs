//! A file of the kernel module's at more addresses: it is mapped once more.

use std::ops::Range;

use crate::backing::Access;
use crate::error::{Error, Result, UnsupportedBy};
use crate::kernel_engine::KernelFile;
use crate::mapped_file::{HeldPages, MappedFile, ViewAddresses};
use crate::sys::file_map::FileMap;

/// Another mapping of what is attached; the module keeps all of them in step.
pub(super) struct KernelView {
    // Goes first: what is attached goes with its last mapping.
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

    /// Pages that are held are so at all addresses: a system call finds them, or has them mapped, at any.
    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        self.file.pin(pages, access)
    }
}
