//! A mapping that a program makes of a file on a mounted vmio-pmfs.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Access;
use crate::sys::extent_leases::{Allowed, HeldHolders, HeldStill, ProgramRange, hold_holders, hold_still, is_of_pmfs};

/// A part of a file of a mounted vmio-pmfs at addresses that a program uses as it would those of an mmap: for `vmio run`.
///
/// The process maps the medium itself, by leases of the file's extents, so that 2 MiB take one page fault. Each byte allows its own accesses, and a
/// forked child can have the mapping, too.
///
/// # Examples
///
/// ```no_run
/// use std::os::fd::OwnedFd;
/// use std::sync::Arc;
/// use vmio::{Access, ProgramMap};
///
/// let file = Arc::new(OwnedFd::from(std::fs::File::open("/mnt/pmfs/data")?));
/// let map = ProgramMap::open(Arc::clone(&file), 0..1 << 30, Access::ReadOnly, Some(Access::ReadOnly), false)?;
/// assert!(map.is_some(), "the file is not of a vmio-pmfs whose medium this process may open");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ProgramMap {
    range: ProgramRange,
}

/// While it exists, all mappings of extents stay as they are: [`ProgramMap::hold_still`].
pub struct MapsHeldStill {
    _shown: HeldStill,
    holders: HeldHolders,
}

impl fmt::Debug for MapsHeldStill {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MapsHeldStill").finish_non_exhaustive()
    }
}

impl MapsHeldStill {
    /// Ends it in a forked child, which has none of its parent's leases, and closes the descriptors of these.
    ///
    /// # Safety
    ///
    /// The caller is the one thread of a child forked just now, with descriptors of its own, by the thread that made this.
    pub unsafe fn end_in_child(self) {
        self.holders.close_in_child();
    }
}

impl fmt::Debug for ProgramMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ProgramMap").field("addresses", &self.addresses()).finish()
    }
}

fn allowed(access: Option<Access>) -> Allowed {
    match access {
        None => Allowed::Nothing,
        Some(Access::ReadOnly) => Allowed::Loads,
        Some(Access::ReadWrite) => Allowed::LoadsAndStores,
    }
}

impl ProgramMap {
    /// Maps bytes of a file, which may reach beyond its end. The descriptor stays open as long as anybody has it: closing it would end the record locks
    /// of the process (`fcntl`, F_SETLK), as closing any descriptor does. `most` are the accesses that can ever be allowed, `access` those of the beginning, none for
    /// `PROT_NONE`. With `is_synchronous` stores are durable once they have left the processor's caches (MAP_SYNC), if the medium can do that;
    /// else a sync of the file makes them so.
    ///
    /// Returns `None` if the file is none of a mounted vmio-pmfs, or this process may not open the medium. So it does if that is a device in mode
    /// devdax, where the kernel has no msync.
    ///
    /// # Errors
    ///
    /// Those of mmap: a start that is no multiple of the page size, no address space.
    pub fn open(
        file: Arc<OwnedFd>,
        bytes: Range<u64>,
        most: Access,
        access: Option<Access>,
        is_synchronous: bool,
    ) -> io::Result<Option<ProgramMap>> {
        let range = ProgramRange::new(file, bytes, most == Access::ReadWrite, allowed(access), is_synchronous)?;
        Ok(range.map(|range| ProgramMap { range }))
    }

    /// Returns whether a file is of a mounted vmio-pmfs. Opens and maps nothing.
    pub fn is_of_pmfs(file: BorrowedFd<'_>) -> bool {
        is_of_pmfs(file)
    }

    /// Returns the addresses from the first byte on: those of the bytes, and behind them some more for the file's next bytes, which allow no access.
    pub fn addresses(&self) -> Range<usize> {
        self.range.addresses()
    }

    /// Returns all addresses that the mapping keeps for itself.
    pub fn kept(&self) -> Range<usize> {
        self.range.kept()
    }

    /// Returns whether stores can be allowed.
    pub fn is_writable(&self) -> bool {
        self.range.is_writable()
    }

    /// Changes the accesses that a range of addresses allows, of whole pages.
    ///
    /// # Errors
    ///
    /// Those of mprotect, and `PermissionDenied` for stores where they cannot be allowed.
    pub fn protect(&self, addresses: Range<usize>, access: Option<Access>) -> io::Result<()> {
        self.range.protect(addresses, allowed(access))
    }

    /// Leases what a range of addresses shows, so that system calls can use pointers into it. Holes get blocks if stores can be allowed.
    ///
    /// # Errors
    ///
    /// The range reaches behind the end of the file, or there is no space for a hole.
    pub fn place(&self, addresses: Range<usize>) -> io::Result<()> {
        self.range.place(addresses)
    }

    /// Leases what a range of addresses shows, as far as the file goes, and leaves holes as they are.
    ///
    /// # Errors
    ///
    /// The range reaches behind the end of the file.
    pub fn place_what_is_there(&self, addresses: Range<usize>) -> io::Result<()> {
        self.range.place_what_is_there(addresses)
    }

    /// Returns the accesses that an address allows.
    pub fn access_at(&self, address: usize) -> Option<Access> {
        match self.range.allowed_at(address) {
            Allowed::Nothing => None,
            Allowed::Loads => Some(Access::ReadOnly),
            Allowed::LoadsAndStores => Some(Access::ReadWrite),
        }
    }

    /// Returns whether stores are durable once they have left the processor's caches.
    pub fn is_synchronous(&self) -> bool {
        self.range.is_synchronous()
    }

    /// Returns whether others have taken parts of it away: a sync of its addresses then does not reach all stores made there.
    pub fn was_recalled(&self) -> bool {
        self.range.was_recalled()
    }

    /// Returns the descriptor that the map needs, and those that all maps of the same mount need: as [`crate::SharedMap::descriptors`].
    pub fn descriptors(&self) -> (BorrowedFd<'_>, [BorrowedFd<'_>; 3]) {
        self.range.descriptors()
    }

    /// Returns the map's own descriptor of the file. It stays open as long as anybody has this: closing it ends the record locks of the process
    /// (`fcntl`, F_SETLK), as closing any descriptor does.
    pub fn file(&self) -> Arc<OwnedFd> {
        self.range.file()
    }

    /// Returns the medium if stores through the mapping are durable only once the medium is synced: on persistent memory, where a sync of the file
    /// does not know of them.
    pub fn medium_to_sync(&self) -> Option<BorrowedFd<'_>> {
        self.range.cached_medium()
    }

    /// Keeps all mappings of extents as they are while the result exists, but for touches by this thread. A thread that forks holds it, so that the child
    /// inherits none.
    pub fn hold_still() -> MapsHeldStill {
        MapsHeldStill { holders: hold_holders(), _shown: hold_still() }
    }

    /// Has the kernel map the file at the addresses, in a forked child, which does not have its parent's mapping. Allocates nothing.
    ///
    /// # Errors
    ///
    /// Something else is mapped there.
    pub fn inherit(&self) -> io::Result<()> {
        self.range.inherit()
    }

    /// Maps the file at the addresses by leases of the child's own, after [`Self::inherit`] of its parent's mapping. Returns `None` if it gets none: the
    /// kernel's mapping stays.
    ///
    /// # Errors
    ///
    /// Those of mmap.
    ///
    /// # Safety
    ///
    /// The child has put nothing else at the addresses.
    pub unsafe fn adopt(&self) -> io::Result<Option<ProgramMap>> {
        // SAFETY: by the caller.
        let range = unsafe { self.range.adopted()? };
        Ok(range.map(|range| ProgramMap { range }))
    }
}
