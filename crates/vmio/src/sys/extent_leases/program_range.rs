//! A range of addresses that a program has mapped, with its own accesses, and what becomes of it in a forked child.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use vmio_pmfs_protocol::Persistence;

use super::leased_map::{LeasedMap, Wanted};
use super::protections::Protections;
use crate::sys::address_table::GRANULE_BYTES;
use crate::sys::reservation::Reservation;
use crate::sys::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// A part of a file of a mounted vmio-pmfs, mapped for a program. Its first byte has the place in a huge page that it has in the file.
pub(crate) struct ProgramRange {
    map: LeasedMap,
    /// The addresses before the part.
    lead: usize,
    len: usize,
    /// Whether stores have ever been allowed.
    has_allowed_stores: AtomicBool,
}

/// The accesses that addresses allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Nothing,
    Loads,
    LoadsAndStores,
}

impl Allowed {
    fn protection(self) -> ProtFlags {
        match self {
            Allowed::Nothing => ProtFlags::empty(),
            Allowed::Loads => ProtFlags::READ,
            Allowed::LoadsAndStores => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

impl ProgramRange {
    /// Maps bytes of a file, which may reach beyond its end; `None` if this process gets no leases of it.
    pub(crate) fn new(
        file: Arc<OwnedFd>,
        bytes: Range<u64>,
        is_writable: bool,
        allowed: Allowed,
        is_synchronous: bool,
    ) -> io::Result<Option<ProgramRange>> {
        let page = PAGE_BYTES as u64;
        if !bytes.start.is_multiple_of(page) || bytes.end <= bytes.start {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let lead = (bytes.start % HUGE_PAGE_BYTES as u64) as usize;
        let len =
            usize::try_from(bytes.end - bytes.start).ok().and_then(|len| len.checked_next_multiple_of(PAGE_BYTES));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let all = len.checked_add(lead).and_then(|all| all.checked_next_multiple_of(GRANULE_BYTES));
        let all = all.ok_or(io::ErrorKind::OutOfMemory)?;
        let mut protections = Protections::of(all, ProtFlags::empty());
        protections.set(lead..lead + len, allowed.protection());
        let offset = bytes.start - lead as u64;
        let at_once = lead + len;
        let wanted =
            Wanted { offset, len: all, at_once, is_writable, protections, is_synchronous, kernel_writes_back: true };
        let has_allowed_stores = AtomicBool::new(allowed == Allowed::LoadsAndStores);
        Ok(LeasedMap::begin(file, wanted, None)?.map(|map| ProgramRange { map, lead, len, has_allowed_stores }))
    }

    /// The addresses of the bytes, and of as many more as may be used.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let all = self.map.pieces.range.addresses();
        all.start + self.lead..all.end
    }

    /// The addresses that are kept for it, which nobody else may use.
    pub(crate) fn kept(&self) -> Range<usize> {
        self.map.pieces.range.addresses()
    }

    /// Whether stores can be allowed.
    pub(crate) fn is_writable(&self) -> bool {
        self.map.pieces.is_writable
    }

    /// The file, and the descriptors that all maps of its mount need.
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, [BorrowedFd<'_>; 3]) {
        self.map.descriptors()
    }

    /// The descriptor of the file, which stays open as long as anybody has this.
    pub(crate) fn file(&self) -> Arc<OwnedFd> {
        self.map.file()
    }

    /// The medium, if stores of the program have reached it by the processor's caches alone, and the kernel writes these back at a sync. That write-protects
    /// all that any process has stored to, so there must be a reason.
    pub(crate) fn cached_medium(&self) -> Option<BorrowedFd<'_>> {
        let holder = &self.map.pieces.holder;
        let has_stores = self.has_allowed_stores.load(Ordering::Acquire);
        (holder.persistence == Persistence::ByFence && has_stores).then(|| holder.medium.as_fd())
    }

    /// Whether the server has taken a part away, or the kernel serves the range.
    pub(crate) fn was_recalled(&self) -> bool {
        self.map.pieces.was_recalled()
    }

    /// The part of the range that addresses are of.
    fn part(&self, addresses: &Range<usize>) -> io::Result<Range<usize>> {
        let kept = self.kept();
        let is_within = kept.start <= addresses.start && addresses.start <= addresses.end && addresses.end <= kept.end;
        match is_within {
            true => Ok(addresses.start - kept.start..addresses.end - kept.start),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Changes the accesses that addresses allow.
    pub(crate) fn protect(&self, addresses: Range<usize>, allowed: Allowed) -> io::Result<()> {
        if allowed == Allowed::LoadsAndStores && !self.is_writable() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if allowed == Allowed::LoadsAndStores {
            self.has_allowed_stores.store(true, Ordering::Release);
        }
        self.map.pieces.protect(self.part(&addresses)?, allowed.protection())
    }

    /// Has what addresses show mapped, as loads and stores would: system calls then can use it. Holes get blocks if the range is for stores.
    pub(crate) fn place(&self, addresses: Range<usize>) -> io::Result<()> {
        let _signals = crate::SignalsBlocked::new();
        let part = self.part(&addresses)?;
        self.map.pieces.place_all(&(part.start as u64..part.end as u64), self.is_writable())
    }

    /// The same as far as the file goes, without blocks for holes.
    pub(crate) fn place_what_is_there(&self, addresses: Range<usize>) -> io::Result<()> {
        let _signals = crate::SignalsBlocked::new();
        let part = self.part(&addresses)?;
        self.map.pieces.place_all(&(part.start as u64..part.end as u64), false)
    }

    /// The accesses that an address allows.
    pub(crate) fn allowed_at(&self, address: usize) -> Allowed {
        let Ok(part) = self.part(&(address..address + 1)) else { return Allowed::Nothing };
        let access = self.map.pieces.with_protections(|all| all.parts(part).next().map(|(_, access)| access));
        let access = access.unwrap_or(ProtFlags::empty());
        match (access.contains(ProtFlags::READ), access.contains(ProtFlags::WRITE)) {
            (_, true) => Allowed::LoadsAndStores,
            (true, false) => Allowed::Loads,
            (false, false) => Allowed::Nothing,
        }
    }

    /// Whether stores are durable once they have left the processor's caches.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.map.is_synchronous()
    }

    /// In a forked child, which does not have its parent's range: has the kernel map the file there. Makes no allocation.
    pub(crate) fn inherit(&self) -> io::Result<()> {
        // The kernel refuses where something is mapped already.
        self.map_by_kernel(MapFlags::FIXED_NOREPLACE)
    }

    fn map_by_kernel(&self, how: MapFlags) -> io::Result<()> {
        let pieces = &self.map.pieces;
        let (base, first) = (pieces.range.base(), u64::from(pieces.first_block) * PAGE_BYTES as u64);
        pieces.with_protections(|protections| {
            protections.parts(0..pieces.range.len()).try_for_each(|(part, access)| {
                let (at, from) = (base.wrapping_add(part.start).cast(), first + part.start as u64);
                let flags = MapFlags::SHARED | MapFlags::NORESERVE | how;
                // SAFETY: the child has nothing else at these addresses, says the caller or the kernel.
                unsafe { mmap(at, part.len(), access, flags, pieces.file.as_fd(), from) }.map(drop)
            })
        })?;
        Ok(())
    }

    /// In a forked child, after [`Self::inherit`]: replaces the kernel's mapping by leases of the child's own; `None` if it gets none.
    ///
    /// # Safety
    /// The child has used the addresses for nothing else.
    pub(crate) unsafe fn adopted(&self) -> io::Result<Option<ProgramRange>> {
        let pieces = &self.map.pieces;
        let addresses = pieces.range.addresses();
        // SAFETY: `inherit` has mapped it, and the new map takes it over.
        let over = unsafe { Reservation::adopted(addresses)? };
        let wanted = Wanted {
            offset: u64::from(pieces.first_block) * PAGE_BYTES as u64,
            len: pieces.range.len(),
            at_once: self.lead + self.len,
            is_writable: pieces.is_writable,
            protections: pieces.protections(),
            is_synchronous: pieces.is_synchronous,
            kernel_writes_back: true,
        };
        let adopted = LeasedMap::begin(Arc::clone(&pieces.file), wanted, Some(over));
        if !matches!(adopted, Ok(Some(_))) {
            // The kernel's mapping is there, whole. The child's own children have it, too.
            // SAFETY: the range is the child's; the advice changes no contents.
            unsafe { madvise(pieces.range.base().cast(), pieces.range.len(), Advice::LinuxDoFork)? };
        }
        Ok(adopted?.map(|map| {
            map.pieces.range.take_over();
            let has_allowed_stores = AtomicBool::new(self.has_allowed_stores.load(Ordering::Acquire));
            ProgramRange { map, lead: self.lead, len: self.len, has_allowed_stores }
        }))
    }
}
