//! Views: the same file at more addresses.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::backing::Access;
use crate::error::{Error, Result};
use crate::mapped_file::{HeldPages, ViewAddresses, touched_pages};
use crate::mapping::cached_file::CachedFile;
use crate::mapping::{Mapping, Pin};
use crate::sys::reservation::Reservation;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Maps the same file at another range of addresses, as a second mmap(MAP_SHARED) would.
    ///
    /// A page is in memory once for all addresses: a store at one shows at the others at once. The first touch of a resident page
    /// at another address is a minor fault: a trap, but no I/O.
    ///
    /// The mapping needs [`crate::FrameHint::SharedAddresses`], and may have 15 views at a time. With [`crate::Engine::Kernel`] any
    /// mapping may have views, as many as the address space holds, unless it has a page verifier or
    /// [`OnReadError::Poison`](crate::OnReadError::Poison).
    ///
    /// # Errors
    ///
    /// - [`Error::OneAddress`](crate::Error::OneAddress) for other frames.
    /// - [`Error::TooManyViews`](crate::Error::TooManyViews) for a sixteenth view.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) with [`crate::Engine::Managed`], without a cache, and with
    ///   [`crate::Engine::Kernel`] for a mapping with a verifier or poison.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// use vmio::backing::MemoryBacking;
    /// use vmio::{Cache, Error, FrameHint, Mapping, MappingOptions};
    ///
    /// let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// let options = MappingOptions::new().frames(FrameHint::SharedAddresses);
    /// let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, options)?;
    /// match map.view() {
    ///     Ok(view) => assert_ne!(view.as_ptr(), map.as_ptr()),
    ///     // Before Linux 6.7.
    ///     Err(Error::OneAddress { .. }) => {}
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn view(&self) -> Result<View> {
        self.file().check_not_forked()?;
        Ok(View { mapping: self.clone(), addresses: self.file().open_view()? })
    }
}

/// A file at another range of addresses: see [`Mapping::view`].
///
/// It keeps the file open, and grows and shrinks with the file. Other operations, such as a sync, go through [`Self::mapping`] for
/// all addresses of the file.
///
/// Dropping the view unmaps its addresses. Stores made there stay dirty like all others. A forked child does not have the view.
pub struct View {
    mapping: Mapping,
    addresses: Arc<dyn ViewAddresses>,
}

impl View {
    /// Returns a handle to the mapping of the view.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the length of the mapping in bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Returns whether the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Returns whether stores are allowed.
    pub fn access(&self) -> Access {
        self.mapping.access()
    }

    /// Returns the address of the first byte. It is valid as long as this view or a [`Pin`] of it exists: see [`Mapping::as_ptr`].
    pub fn as_ptr(&self) -> *const u8 {
        self.addresses.base().cast_const()
    }

    /// Returns the address of the first byte, for stores; a store to a read-only view is a SIGSEGV.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.addresses.base()
    }

    /// Allows or forbids stores at this view, as mprotect(2) does: a store that is forbidden is a SIGSEGV.
    ///
    /// # Default
    ///
    /// Stores are allowed if the mapping allows them.
    ///
    /// # Errors
    ///
    /// - [`Error::ReadOnly`](crate::Error::ReadOnly) for stores to a mapping that allows none.
    /// - [`Error::System`](crate::Error::System) if the system refuses the change.
    pub fn allow_stores(&self, allow: bool) -> Result<()> {
        self.mapping.file().check_not_forked()?;
        if allow && self.access() == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: self.mapping.describe() });
        }
        self.addresses.allow_stores(allow).map_err(Error::system("changing the protection of a view"))
    }

    /// Returns all bytes as a slice.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, nobody stores to the file at any of its addresses or shortens it, and nobody outside the process
    /// changes it.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as self; the caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() as usize) }
    }

    /// Pins a range as [`Mapping::pin`] does, so that system calls accept pointers into the range at this view.
    ///
    /// (Pins at another address keep the pages in memory, but not mapped here.)
    ///
    /// # Errors
    ///
    /// Those of [`Mapping::pin`].
    pub fn pin(&self, range: Range<u64>, access: Access) -> Result<Pin> {
        self.mapping.check_range(&range)?;
        let pinned = self.addresses.pin(touched_pages(&range), access)?;
        // The drop unpins the pages before their addresses go.
        let held: HeldPages = Box::new((pinned, Arc::clone(&self.addresses)));
        Ok(Pin::new(held, self.as_ptr(), range, access))
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "View of {} ({} bytes, {:?})", self.mapping.describe(), self.len(), self.access())
    }
}

/// The addresses of a view of a cached file.
pub(super) struct CachedView {
    file: CachedFile,
    number: usize,
    /// Present until the drop.
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

    fn allow_stores(&self, allow: bool) -> io::Result<()> {
        let (frames, range) = (self.file.region().deactivatable(), self.range.as_ref());
        let _signals = SignalsBlocked::new();
        frames.zip(range).map_or(Ok(()), |(frames, range)| frames.allow_stores(range, allow))
    }

    fn pin(&self, pages: Range<u64>, access: Access) -> Result<HeldPages> {
        Ok(Box::new(self.file.pin_for_user(pages, access, self.number)?))
    }
}

impl Drop for CachedView {
    fn drop(&mut self) {
        // The view stays with the parent of a forked child.
        if self.file.region().shared.generation.is_current()
            && let Some(range) = self.range.take()
        {
            self.file.region().remove_view(self.number, range);
        }
    }
}
