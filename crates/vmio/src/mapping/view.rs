//! The same file at more addresses.

use std::ops::Range;
use std::sync::Arc;

use crate::backing::Access;
use crate::error::Result;
use crate::mapped_file::{HeldPages, ViewAddresses, touched_pages};
use crate::mapping::cached_file::CachedFile;
use crate::mapping::{Mapping, Pin};
use crate::sys::reservation::Reservation;

impl Mapping {
    /// Another range of addresses for the same file, as a second mmap(MAP_SHARED) of it would give. A page is in memory once,
    /// whatever addresses it is touched at: a store at one is seen at the others at once. The first touch of a resident
    /// page at another address costs a trap, but no I/O.
    ///
    /// It takes a mapping that was opened with [`crate::FrameHint::SharedAddresses`]; others are an
    /// [`Error::OneAddress`](crate::Error::OneAddress), with the managed engine or without a cache an
    /// [`Error::Unsupported`](crate::Error::Unsupported). A
    /// mapping may have 15 views at a time ([`Error::TooManyViews`](crate::Error::TooManyViews)).
    ///
    /// With the kernel module any mapping may have views, as many as there are addresses for, but one with a page verifier, or
    /// with [`OnReadError::Poison`](crate::OnReadError::Poison) ([`Error::Unsupported`](crate::Error::Unsupported)).
    pub fn view(&self) -> Result<View> {
        self.file().check_not_forked()?;
        Ok(View { mapping: self.clone(), addresses: self.file().open_view()? })
    }
}

/// A file at another range of addresses: see [`Mapping::view`]. It keeps the file open, and grows and shrinks with it.
/// What else there is to do with the file, such as a sync, is done through [`Self::mapping`] for all its addresses.
///
/// Dropping the view unmaps its addresses; what was stored there stays dirty like any other store. A forked child
/// does not have it.
pub struct View {
    mapping: Mapping,
    addresses: Arc<dyn ViewAddresses>,
}

impl View {
    /// A handle to what is seen here.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Length in bytes, that of the mapping.
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Whether stores are allowed.
    pub fn access(&self) -> Access {
        self.mapping.access()
    }

    /// The first byte, as [`Mapping::as_ptr`]: valid as long as this view, or a [`Pin`] of it, exists.
    pub fn as_ptr(&self) -> *const u8 {
        self.addresses.base().cast_const()
    }

    /// The first byte, for stores; a store to a read-only view is a SIGSEGV.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.addresses.base()
    }

    /// All bytes as a slice.
    ///
    /// # Safety
    /// As for [`Mapping::as_slice`], of stores at any address of the file.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as self; the caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() as usize) }
    }

    /// As [`Mapping::pin`]: system calls may be given pointers into the range at this view. (Pages that are pinned at
    /// another address stay in memory, but need not be mapped here.)
    pub fn pin(&self, range: Range<u64>, access: Access) -> Result<Pin> {
        self.mapping.check_range(&range)?;
        let pinned = self.addresses.pin(touched_pages(&range), access)?;
        // The pages are let go before their addresses.
        let held: HeldPages = Box::new((pinned, Arc::clone(&self.addresses)));
        Ok(Pin::new(held, self.as_ptr(), range, access))
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "View of {} ({} bytes, {:?})", self.mapping.describe(), self.len(), self.access())
    }
}

/// The addresses of a view whose pages are our cache's.
pub(super) struct CachedView {
    file: CachedFile,
    number: usize,
    /// Always there until the drop.
    range: Option<Reservation>,
}

impl CachedView {
    pub(super) fn open(file: &CachedFile) -> Result<Self> {
        let (number, range) = file.region().add_view()?;
        Ok(CachedView { file: file.clone(), number, range: Some(range) })
    }
}

impl ViewAddresses for CachedView {
    fn base(&self) -> *mut u8 {
        self.range.as_ref().map_or(std::ptr::null_mut(), Reservation::base)
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        Ok(Box::new(self.file.pin_for_user(pages, access, self.number)?))
    }
}

impl Drop for CachedView {
    fn drop(&mut self) {
        // A forked child has nothing of it: its parent goes on using the view.
        if self.file.region().shared.generation.is_current()
            && let Some(range) = self.range.take()
        {
            self.file.region().remove_view(self.number, range);
        }
    }
}
