//! The interface between a [`crate::Mapping`] and the engine that serves it.

mod advice;
mod cache_identity;
pub(crate) mod file_end;
pub(crate) mod open_files;
pub(crate) mod opened;
mod sync_handle;
mod usage;

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use advice::Advice;
pub(crate) use cache_identity::CacheIdentity;
pub use sync_handle::SyncHandle;
pub use usage::Usage;

use crate::backing::Access;
use crate::cache::fetch::{Failure, Outcome, Urgency};
use crate::error::{Error, Result};
use crate::journal::{Journal, JournaledBacking};
use crate::sys::PAGE_BYTES;

/// A call may guess at most this share of the cache, as a divisor.
pub(crate) const GUESSED_SHARE: u64 = 8;

/// Keeps pinned pages in memory until it is dropped.
pub(crate) type HeldPages = Box<dyn Send + Sync>;

/// A handle to a file that is open as a range of addresses. The caller passes only ranges within the mapping, and calls
/// `check_not_forked` first.
pub(crate) trait MappedFile: Send + Sync {
    /// The first byte.
    fn base(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> u64;
    /// The part that all handles to the file share.
    fn opened(&self) -> &dyn OpenedFile;
    /// Whether stores are allowed.
    fn access(&self) -> Access {
        self.opened().access()
    }
    /// The description of the file, for messages.
    fn describe(&self) -> String {
        self.opened().describe()
    }
    /// Refuses on a read-only mapping.
    fn check_writable(&self) -> Result<()> {
        match self.access() {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly { backing: self.describe() }),
        }
    }
    /// Refuses in a forked child.
    fn check_not_forked(&self) -> Result<()> {
        self.opened().check_not_forked()
    }
    /// See [`crate::Mapping::read_at`].
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// See [`crate::Mapping::write_at`].
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// See [`crate::Mapping::advise`].
    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()>;
    /// See [`crate::Mapping::pin`].
    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages>;
    /// More addresses for the file: see [`crate::Mapping::view`].
    fn open_view(&self) -> Result<Arc<dyn ViewAddresses>>;
    /// See [`crate::Mapping::ensure`].
    fn ensure(&self, pages: Range<u64>) -> Result<()>;
    /// Begins to fetch ranges of pages: see [`crate::Mapping::fetch`], and for guesses [`crate::Mapping::prefetch`].
    fn fetch(&self, ranges: Vec<Range<u64>>, urgency: Urgency) -> Result<Arc<Outcome>>;
    /// The error to return for a failed fetch.
    fn fetch_error(&self, failure: Failure) -> Error;
    /// The most pages that one call may guess.
    fn guesses_max(&self) -> u64;
    /// Calls `each` for every page of the range that is in memory.
    fn for_each_resident(&self, pages: Range<u64>, each: &mut dyn FnMut(u64));
    /// See [`crate::Mapping::usage`].
    fn usage(&self) -> Usage;
    /// See [`crate::Mapping::set_len`].
    fn set_len(&self, len: u64) -> Result<()>;
    /// See [`crate::Mapping::sync`]; of a range of bytes, [`crate::Mapping::flush`].
    fn sync(&self, part: Option<Range<u64>>) -> Result<()>;
    /// See [`crate::Mapping::sync_begin`].
    fn sync_begin(&self) -> Result<SyncHandle>;
    /// The file as its journal knows it, if changes reach the file by commits only.
    fn journaled(&self) -> Option<&Arc<JournaledBacking>> {
        None
    }
    /// See [`crate::Mapping::take_read_error`].
    fn take_read_error(&self) -> Option<Error>;
}

/// The addresses of a [`crate::View`], which stay until the last user is gone.
pub(crate) trait ViewAddresses: Send + Sync {
    /// The first byte.
    fn base(&self) -> *mut u8;
    /// See [`crate::View::allow_stores`].
    fn allow_stores(&self, allow: bool) -> io::Result<()>;
    /// See [`crate::View::pin`].
    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages>;
}

/// The part that all handles to one file share; see [`crate::mapped_file::open_files`].
pub(crate) trait OpenedFile: Any + Send + Sync {
    /// Whether the file was opened through that cache.
    fn belongs_to(&self, cache: CacheIdentity) -> bool;
    /// Whether stores are allowed.
    fn access(&self) -> Access;
    /// The description of the file, for messages.
    fn describe(&self) -> String;
    /// Refuses in a forked child.
    fn check_not_forked(&self) -> Result<()>;
    /// Whether the file commits to that journal, if one is asked for.
    fn commits_to(&self, journal: Option<&Journal>) -> bool;
}

/// The bytes of a range of pages.
pub(crate) fn bytes_of(pages: &Range<u64>) -> Range<u64> {
    pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64
}

/// The pages that lie wholly within a byte range. If the range ends with the file, the last partial page is among them.
pub(crate) fn whole_pages(range: &Range<u64>, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    let end = if range.end == len { range.end.div_ceil(page) } else { range.end / page };
    let first = range.start.div_ceil(page);
    first..end.max(first)
}

/// The pages that a byte range touches.
pub(crate) fn touched_pages(range: &Range<u64>) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if range.is_empty() { 0..0 } else { range.start / page..range.end.div_ceil(page) }
}
