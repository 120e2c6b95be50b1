//! The addresses at which the program sees a file.
//!
//! A window has space for the whole file at its largest length, and byte n of the file is byte n of each window. A mapping of the program's
//! is a part of a window. Mappings that do not overlap share a window. If a mapping overlaps another, it gets addresses in another window,
//! as the kernel would give it.
//!
//! A file whose pages are in the page cache ([`File::uses_page_cache`](crate::file::File::uses_page_cache)) has only one window. Linux does
//! all calls on parts of it, and maps elsewhere whatever does not fit.

use std::ops::Range;

use rangemap::RangeSet;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect, munlock};
use vmio::{Access, Mapping, View};

use crate::errno::{self, Errno};

/// All addresses of one file.
pub(crate) struct Windows {
    windows: Vec<Window>,
    /// Whether Linux handles protection, forks and the rest, for each part separately.
    uses_page_cache: bool,
    /// Length of each in bytes.
    reserved: u64,
}

/// A range of addresses over the whole file.
struct Window {
    base: usize,
    rights: Rights,
    /// The bytes of the file that the program has mapped in it.
    live: RangeSet<u64>,
    /// The view that holds the addresses; none for the mapping's own addresses, which stay as long as the file.
    view: Option<View>,
}

/// The accesses that a window allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Whether stores are allowed. Once allowed they stay so: see [`Windows::make_writable`].
    pub(crate) is_writable: bool,
    /// Whether stores may ever be allowed: they reach the file.
    pub(crate) may_store: bool,
}

/// A part of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    window: usize,
    /// The byte of the file.
    pub(crate) offset: u64,
}

impl Windows {
    /// The addresses of the mapping itself, of which the program has mapped nothing yet.
    pub(crate) fn of(mapping: &Mapping, reserved: u64) -> Self {
        let stores = mapping.access() == Access::ReadWrite;
        let own = Window {
            base: mapping.as_ptr() as usize,
            rights: Rights { is_writable: stores, may_store: stores },
            live: RangeSet::new(),
            view: None,
        };
        Windows { windows: vec![own], uses_page_cache: false, reserved }
    }

    /// The same for a mapping whose faults Linux handles. A fork inherits it as without vmio.
    pub(crate) fn of_page_cache(mapping: &Mapping, reserved: u64) -> Result<Self, Errno> {
        // SAFETY: the range is the mapping's, and the advice changes no contents.
        unsafe { madvise(mapping.as_ptr().cast_mut().cast(), reserved as usize, Advice::LinuxDoFork)? };
        Ok(Windows { uses_page_cache: true, ..Windows::of(mapping, reserved) })
    }

    /// The same in a forked child, which inherits its parent's mappings.
    ///
    /// # Safety
    /// The mapping has adopted the addresses of the parent's mapping, whose windows these were.
    pub(crate) unsafe fn inherited(&self) -> Self {
        let own = self.windows.first().map(|own| Window {
            base: own.base,
            rights: own.rights,
            live: own.live.clone(),
            view: None,
        });
        Windows { windows: own.into_iter().collect(), ..*self }
    }

    /// The addresses of the mapping itself.
    pub(crate) fn addresses(&self) -> Option<Range<usize>> {
        self.windows.first().map(|own| own.base..own.base + self.reserved as usize)
    }

    /// Whether the program has nothing mapped.
    pub(crate) fn is_idle(&self) -> bool {
        self.windows.iter().all(|window| window.live.is_empty())
    }

    /// Maps bytes of the file, and returns their address.
    pub(crate) fn map(&mut self, mapping: &Mapping, bytes: Range<u64>, rights: Rights) -> Result<usize, Errno> {
        let is_too_long = bytes.end > self.reserved;
        if self.uses_page_cache {
            return if is_too_long { Err(Errno::BUSY) } else { self.windows[0].map_part(bytes, rights) };
        }
        if is_too_long {
            return Err(Errno::NOMEM);
        }
        let fits = |window: &Window| window.rights == rights && !window.live.overlaps(&bytes);
        let found = match self.windows.iter().position(fits) {
            Some(found) => found,
            None => match self.open(mapping, rights) {
                Ok(opened) => opened,
                // There are no views before Linux 6.7. A window with more rights is better than no mapping.
                Err(error) => {
                    let is_free = |window: &Window| {
                        window.rights.may_store == rights.may_store
                            && window.rights.is_writable >= rights.is_writable
                            && !window.live.overlaps(&bytes)
                    };
                    self.windows.iter().position(is_free).ok_or(error)?
                }
            },
        };
        let window = &mut self.windows[found];
        let address = window.base + bytes.start as usize;
        window.live.insert(bytes);
        Ok(address)
    }

    fn open(&mut self, mapping: &Mapping, rights: Rights) -> Result<usize, Errno> {
        let view = mapping.view().map_err(|error| errno::of(&error))?;
        let base = view.as_mut_ptr() as usize;
        if !rights.is_writable && mapping.access() == Access::ReadWrite {
            view.allow_stores(false).map_err(|error| errno::of(&error))?;
        }
        self.windows.push(Window { base, rights, live: RangeSet::new(), view: Some(view) });
        Ok(self.windows.len() - 1)
    }

    /// The place of an address, if it is in a window.
    pub(crate) fn find(&self, address: usize) -> Option<Place> {
        self.windows.iter().enumerate().find_map(|(window, Window { base, .. })| {
            let offset = address.checked_sub(*base)? as u64;
            (offset < self.reserved).then_some(Place { window, offset })
        })
    }

    /// Whether a range of addresses overlaps a window.
    pub(crate) fn overlap(&self, addresses: &Range<usize>) -> bool {
        let reserved = self.reserved as usize;
        self.windows.iter().any(|window| window.base < addresses.end && addresses.start < window.base + reserved)
    }

    /// Bytes of the file from a place on, as far as the window goes.
    pub(crate) fn bytes(&self, place: Place, len: usize) -> Option<Range<u64>> {
        let end = place.offset.checked_add(len as u64).filter(|end| *end <= self.reserved)?;
        Some(place.offset..end)
    }

    /// Unmaps bytes of a window. A window without mapped bytes is removed.
    pub(crate) fn unmap(&mut self, mapping: &Mapping, place: Place, bytes: Range<u64>) {
        let window = &mut self.windows[place.window];
        if self.uses_page_cache {
            let known = bytes.start..bytes.end.min(mapping.len());
            window.unlock_part(&bytes);
            if !known.is_empty() {
                // Pages that stay in the page cache count against the budget.
                let _ = mapping.advise(known.clone(), vmio::Advice::Cold);
            }
            window.forget_part(&bytes);
            if !known.is_empty() {
                let _ = mapping.advise(known, vmio::Advice::Normal);
            }
        }
        window.live.remove(bytes);
        if window.live.is_empty() && place.window > 0 {
            self.windows.remove(place.window);
        }
    }

    /// Makes a mapping of the program's longer where it is; false if another is in the way.
    pub(crate) fn extend(&mut self, place: Place, more: Range<u64>) -> bool {
        let window = &mut self.windows[place.window];
        let mut is_free = more.end <= self.reserved && !window.live.overlaps(&more);
        if is_free && self.uses_page_cache {
            is_free = window.protect_part(&more, access(window.rights)).is_ok();
        }
        if is_free {
            window.live.insert(more);
        }
        is_free
    }

    /// The accesses that are allowed at a place.
    pub(crate) fn rights(&self, place: Place) -> Rights {
        self.windows[place.window].rights
    }

    /// Allows stores at a place, in all of its window. The window must stay one mapping for the kernel: copies into it would end at the
    /// seams otherwise.
    pub(crate) fn make_writable(&mut self, place: Place) -> Result<(), Errno> {
        let window = &mut self.windows[place.window];
        if let Some(view) = &window.view {
            view.allow_stores(true).map_err(|error| errno::of(&error))?;
        }
        window.rights.is_writable = true;
        Ok(())
    }
}

impl Window {
    /// Maps a part that Linux protects separately. Fails for a private mapping in a file's window for stores, since the program may later
    /// store to it.
    fn map_part(&mut self, bytes: Range<u64>, rights: Rights) -> Result<usize, Errno> {
        if self.rights.may_store != rights.may_store || self.live.overlaps(&bytes) {
            return Err(Errno::BUSY);
        }
        self.protect_part(&bytes, access(rights))?;
        let address = self.base + bytes.start as usize;
        self.live.insert(bytes);
        Ok(address)
    }

    /// Unlocks a part: the cache cannot evict locked memory.
    fn unlock_part(&self, bytes: &Range<u64>) {
        let (start, len) = (self.base + bytes.start as usize, (bytes.end - bytes.start) as usize);
        // SAFETY: the program has unmapped this part, whose faults Linux handles.
        let _ = unsafe { munlock(start as *mut _, len) };
    }

    /// Resets a part to its original advice and protection. Without protection the part behaves as with the other engines.
    fn forget_part(&self, bytes: &Range<u64>) {
        let (start, len) = (self.base + bytes.start as usize, (bytes.end - bytes.start) as usize);
        // SAFETY: the program has unmapped this part, whose faults Linux handles; the calls do not change the file.
        unsafe {
            for advice in [Advice::LinuxDoFork, Advice::LinuxDontNeed] {
                let _ = madvise(start as *mut _, len, advice);
            }
        }
        let _ = self.protect_part(bytes, MprotectFlags::empty());
    }

    fn protect_part(&self, bytes: &Range<u64>, flags: MprotectFlags) -> Result<(), Errno> {
        protect(self.base + bytes.start as usize, bytes.end - bytes.start, flags)
    }
}

fn access(rights: Rights) -> MprotectFlags {
    if rights.is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ }
}

fn protect(base: usize, len: u64, flags: MprotectFlags) -> Result<(), Errno> {
    // SAFETY: the range is a part of a mapping whose faults Linux handles, which vmio does not touch. The program decides on the protection.
    unsafe { mprotect(base as *mut _, len as usize, flags) }
}
