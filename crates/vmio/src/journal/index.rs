//! The place of the newest version of each page of a file: in the file, or in the log. Read in the trap path.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;
use crate::sys::sparse_array::SparseArray;

/// Any file may grow to this length in bytes at least: the index costs address space only.
const ROOM_BYTES_MIN: u64 = 1 << 40;

/// A word for each page: 0 while its newest version is in the file, else the version's place in the log.
pub(crate) struct PageIndex(SparseArray<AtomicU64>);

impl PageIndex {
    /// An index for a file of this length, and for its growth to 1 TiB or twice the length, whichever is more.
    pub(crate) fn new(len: u64) -> io::Result<Self> {
        let room = len.saturating_mul(2).max(ROOM_BYTES_MIN);
        Ok(PageIndex(SparseArray::new(usize::try_from(room / PAGE_BYTES as u64).unwrap_or(usize::MAX))?))
    }

    /// The most pages that the file may have.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The page's newest version in the log; `None` if the file holds it.
    pub(crate) fn version(&self, page: u64) -> Option<Version> {
        Version::from_word(self.0.get(page as usize).load(Ordering::SeqCst))
    }

    /// Notes the newest version of a page.
    pub(crate) fn set(&self, page: u64, version: Version) {
        self.0.get(page as usize).fetch_max(Version::word(Some(version)), Ordering::SeqCst);
    }

    /// Notes that the file holds this version. A newer one stays in the log.
    pub(crate) fn clear(&self, page: u64, version: Version) {
        let word = self.0.get(page as usize);
        let _newer = word.compare_exchange(Version::word(Some(version)), 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}
