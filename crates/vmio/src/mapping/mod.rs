//! What the user holds: a file as a range of addresses.

mod advice;
pub(crate) mod opened;
pub(crate) mod options;
mod pin;
mod residency;
mod resize;
mod sync;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

pub use advice::Advice;
pub use pin::Pin;
pub use residency::Residency;
pub use sync::SyncHandle;

use crate::backing::{Access, Backing};
use crate::cache::Cache;
use crate::cache::region::Region;
use crate::error::{Error, Result};
use crate::mapping::opened::OpenRegion;
use crate::mapping::options::MappingOptions;
use crate::sys::PAGE_BYTES;

/// A file, device or other backing as a range of addresses, of which the cache keeps the useful part in memory.
///
/// Plain loads and stores through [`Self::as_ptr`] and [`Self::as_mut_ptr`] cost what they cost on ordinary memory
/// while their page is resident; a miss fetches the page in the thread that took it. Handles to the same file in one
/// process share one region.
///
/// A thread that blocks SIGBUS is killed by its first miss. System calls cannot be given pointers to pages that may
/// be evicted (they fail with EFAULT): [`Self::pin`] the range, or use [`Self::read_at`] and [`Self::write_at`].
pub struct Mapping {
    opened: Arc<OpenRegion>,
}

// SAFETY (of the Send and Sync that the compiler derives): Region is shared through atomics and locks only; the raw
// pointers that `as_ptr` and `as_mut_ptr` give out are the caller's to use soundly.

impl Mapping {
    /// Maps a backing. Opening the same file again in this process gives another handle to the same region; its
    /// options are then those of the first.
    ///
    /// Another process that has the file mapped for writing is an [`Error::InUse`].
    pub fn open(cache: &Cache, backing: impl Backing + 'static, options: MappingOptions) -> Result<Mapping> {
        Ok(Mapping { opened: OpenRegion::open(cache, Box::new(backing), options)? })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.opened.region
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.region().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether stores are allowed.
    pub fn access(&self) -> Access {
        self.region().access
    }

    /// What is mapped, for messages.
    pub fn describe(&self) -> String {
        self.region().backing.describe()
    }

    /// The first byte. Valid for loads of [`Self::len`] bytes as long as a handle or a [`Pin`] exists; loads behind
    /// the last page are a SIGBUS.
    pub fn as_ptr(&self) -> *const u8 {
        self.region().base().cast_const()
    }

    /// The first byte, for stores; a store to a read-only mapping is a SIGSEGV.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region().base()
    }

    /// All bytes as a slice.
    ///
    /// # Safety
    /// As long as the slice lives, nobody may store to the mapping or shorten it, and nobody outside the process may
    /// change the file: a page that was evicted and is read again would then change under the slice. A page that
    /// cannot be read is a SIGBUS.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as self; the caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() as usize) }
    }

    /// Copies bytes out. Sound beside any other thread that uses `read_at` and `write_at`: bytes being written at the
    /// same time are seen in part. A page that cannot be read is an error.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.in_pages(offset, buffer.len(), |page, source, at| {
            let pin = self.pin_page(page, Access::ReadOnly)?;
            for (byte, at) in buffer[at.clone()].iter_mut().zip(source..) {
                // SAFETY: the byte lies in a pinned page of the mapping; all safe accesses to it are atomic.
                *byte = unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::Relaxed);
            }
            drop(pin);
            Ok(())
        })
    }

    /// Copies bytes in, as by stores: they are durable after [`Self::sync`]. See [`Self::read_at`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.in_pages(offset, data.len(), |page, target, at| {
            let pin = self.pin_page_for_store(page)?;
            for (byte, at) in data[at.clone()].iter().zip(target..) {
                // SAFETY: as in `read_at`; should the page be protected again by now, the store traps like any other.
                unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(*byte, Ordering::Relaxed);
            }
            drop(pin);
            Ok(())
        })
    }

    /// Calls `each` with every page of a range: its number, the address of the range's part in it, and where that
    /// part lies in the caller's buffer.
    fn in_pages(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, &Range<usize>) -> Result<()>,
    ) -> Result<()> {
        self.check_range(&(offset..offset.saturating_add(len as u64)))?;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let in_page = PAGE_BYTES - at as usize % PAGE_BYTES;
            let part = done..len.min(done + in_page);
            each(at / PAGE_BYTES as u64, self.as_ptr() as usize + at as usize, &part)?;
            done = part.end;
        }
        Ok(())
    }

    /// The first error of a page that was replaced by poison (see [`crate::OnReadError::Poison`]) or could not be
    /// read, since the last call.
    pub fn take_read_error(&self) -> Option<Error> {
        if let Err(error) = self.opened.check_not_forked() {
            return Some(error);
        }
        let _signals = crate::sys::signal::SignalsBlocked::new();
        let failure = self.region().failures().read.take();
        failure.map(|(page, failure)| self.region().read_error(page, failure))
    }

    /// Syncs and, with the last handle, unmaps; reports what a mere drop could only log.
    pub fn close(self) -> Result<()> {
        let synced = if Arc::strong_count(&self.opened) > 1 { self.sync() } else { Ok(()) };
        match Arc::into_inner(self.opened) {
            Some(last) => synced.and(last.close()),
            None => synced, // Others go on using it.
        }
    }

    /// A range that lies within the mapping.
    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        self.opened.check_not_forked()?;
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        Err(Error::OutOfRange { range: range.clone(), len: self.len() })
    }

    /// The pages that lie wholly within a byte range, the last partial page of the file included if its end is.
    fn whole_pages(&self, range: &Range<u64>) -> Range<u64> {
        let page = PAGE_BYTES as u64;
        let end = if range.end == self.len() { range.end.div_ceil(page) } else { range.end / page };
        let first = range.start.div_ceil(page);
        first..end.max(first)
    }

    /// The pages that a byte range touches.
    fn touched_pages(range: &Range<u64>) -> Range<u64> {
        let page = PAGE_BYTES as u64;
        if range.is_empty() { 0..0 } else { range.start / page..range.end.div_ceil(page) }
    }
}

impl Clone for Mapping {
    /// Another handle to the same region.
    fn clone(&self) -> Self {
        Mapping { opened: Arc::clone(&self.opened) }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Mapping of {} ({} bytes, {:?})", self.describe(), self.len(), self.access())
    }
}
