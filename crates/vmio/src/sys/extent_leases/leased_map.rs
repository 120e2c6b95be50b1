//! A file as a range of addresses that is put together from extents of the medium.
//!
//! A part whose extents are not leased is a mapping of an empty file. A touch of it is a SIGBUS, whose handler leases a huge page's worth of
//! blocks and maps them in its place. So the server can take a part away at any time, and the next touch finds out what has become of it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::ioctl::{Setter, Updater, ioctl};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect};
use vmio_pmfs_protocol::{Grant, LEASE, RETURN, Request};

use super::blocks::{block_at, blocks_of, of_huge_page};
use super::changes::Changes;
use super::extent_count::ExtentCount;
use super::growth::Growth;
use super::holder::{Holder, is_of_pmfs};
use super::protections::Protections;
use super::showing::{Showing, showing};
use crate::sys::PAGE_BYTES;
use crate::sys::address_table::{AddressTable, GRANULE_BYTES};
use crate::sys::fork::Generation;
use crate::sys::reservation::Reservation;
use crate::sys::signal::{self, FaultAccess, FaultSource, Resolution, SignalsBlocked};

/// The maps by their addresses.
static MAPS: AddressTable<Pieces> = AddressTable::new();

/// Descriptors of maps have numbers from here on, if the process may have such.
const OWN_NUMBERS: i32 = 512;
/// How often a lease is asked for while the server takes others back, and how long to wait in between.
const ATTEMPTS_MAX: u32 = 60_000;
const ATTEMPT_EVERY: Duration = Duration::from_millis(1);

/// A file of a mounted vmio-pmfs, mapped from an offset on. Forked children do not have the mapping.
pub(crate) struct LeasedMap {
    pub(super) pieces: Arc<Pieces>,
}

/// How a file is to be mapped.
pub(super) struct Wanted {
    /// The byte of the file, a multiple of the page size.
    pub(super) offset: u64,
    /// The bytes of addresses, a multiple of [`GRANULE_BYTES`].
    pub(super) len: usize,
    /// The bytes of the file to map at once, as far as they are there.
    pub(super) at_once: usize,
    /// Whether the leases are for stores.
    pub(super) is_writable: bool,
    /// The accesses that the addresses allow.
    pub(super) protections: Protections,
    /// Whether stores are to be durable without a call, where the medium can do that.
    pub(super) is_synchronous: bool,
    /// Whether somebody calls msync on the addresses, or leaves it to the kernel to write stores back.
    pub(super) kernel_writes_back: bool,
}

/// The addresses of a map, and what they show.
pub(super) struct Pieces {
    pub(super) range: Reservation,
    /// The block of the file that the first address shows.
    pub(super) first_block: u32,
    /// Shared with the caller who must not let it close yet.
    pub(super) file: Arc<OwnedFd>,
    ino: u64,
    pub(super) holder: Arc<Holder>,
    pub(super) is_writable: bool,
    pub(super) is_synchronous: bool,
    generation: Generation,
    /// Changed by whoever may let a part show something else.
    protections: Mutex<Protections>,
    /// How often a part was taken away.
    taken_away: AtomicU64,
    /// Something is leased, so the kernel has no page of the file in its cache: the server takes all leases back before that.
    holds_blocks: AtomicBool,
    /// Between a loss and the next lease of a part, nobody tells of cuts behind it.
    changes: Changes,
    extents: ExtentCount,
    pub(super) growth: Growth,
    /// The whole range shows the kernel's page cache: the server grants no leases while another program has the file mapped that way.
    pub(super) is_cached: AtomicBool,
}

/// The part of a file that one attempt has mapped.
pub(super) enum Placed {
    /// Blocks from the first one wanted up to here; holes among them show nothing.
    UpTo(u32),
    /// The kernel serves the whole range from now on.
    ByKernel,
    /// The kernel has to serve the range: its holes are not leased, or the process has too many extents.
    Unserved,
    /// There is no such part, or no space for it.
    Nothing,
}

impl LeasedMap {
    /// Maps `len` bytes from an offset on, with room to grow; `None` if the file is not of a mounted vmio-pmfs, or this process may not use the
    /// medium. The blocks that the file has already are mapped at once.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        is_writable: bool,
    ) -> io::Result<Option<LeasedMap>> {
        if !is_of_pmfs(file) {
            return Ok(None);
        }
        // Programs expect the lowest numbers for themselves.
        let own = fcntl_dupfd_cloexec(file, OWN_NUMBERS).or_else(|_| fcntl_dupfd_cloexec(file, 0))?;
        Self::by_own(Arc::new(own), offset, len, is_writable)
    }

    /// The same by a descriptor that stays open as long as anybody has it.
    pub(crate) fn by_own(
        file: Arc<OwnedFd>,
        offset: u64,
        len: usize,
        is_writable: bool,
    ) -> io::Result<Option<LeasedMap>> {
        let len = len.next_multiple_of(GRANULE_BYTES);
        let protections = Protections::of(len, access(is_writable));
        let wanted = Wanted {
            offset,
            len,
            at_once: len,
            is_writable,
            protections,
            is_synchronous: true,
            kernel_writes_back: false,
        };
        Self::begin(file, wanted, None)
    }

    /// The same with more choice: at addresses of its own, or over a mapping that a child forked just now has inherited.
    pub(super) fn begin(
        file: Arc<OwnedFd>,
        wanted: Wanted,
        over: Option<Reservation>,
    ) -> io::Result<Option<LeasedMap>> {
        let Wanted { offset, len, at_once, is_writable, protections, is_synchronous, kernel_writes_back } = wanted;
        let mode = fcntl_getfl(&file)? & OFlags::RWMODE;
        if mode != OFlags::RDWR && is_writable == (mode == OFlags::RDONLY) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let stat = fstat(&file)?;
        let holder = Holder::of(file.as_fd(), stat.st_dev, is_writable)?;
        let Some(holder) = holder.filter(|holder| holder.kernel_writes_back >= kernel_writes_back) else {
            return Ok(None);
        };
        let first_block = u32::try_from(offset / PAGE_BYTES as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let nothing = holder.nothing.as_fd();
        let access = ProtFlags::empty();
        let is_over = over.is_some();
        let mut range = match over {
            Some(range) => range,
            None => Reservation::of_file_at_multiple(nothing, 0, len, GRANULE_BYTES, access, MapFlags::SHARED)?,
        };
        range.leave_out_on_fork()?;
        let pieces = Arc::new(Pieces {
            range,
            first_block,
            file,
            ino: stat.st_ino,
            is_writable,
            is_synchronous: is_synchronous && holder.persistence.is_synchronous(),
            generation: Generation::of_this_process()?,
            protections: Mutex::new(protections),
            taken_away: AtomicU64::new(0),
            holds_blocks: AtomicBool::new(false),
            changes: Changes::new(),
            extents: ExtentCount::none(len / PAGE_BYTES)?,
            growth: Growth::new(),
            is_cached: AtomicBool::new(false),
            holder,
        });
        signal::install_sigbus_handler(FaultSource::Leases, resolve)?;
        let _signals = SignalsBlocked::new();
        {
            let _beginning = lock(&pieces.holder.beginning);
            if !pieces.holder.add(pieces.ino, &pieces) {
                pieces.holder.remove(pieces.ino, &pieces);
                return Ok(None);
            }
        }
        let map = LeasedMap { pieces };
        let pieces = &map.pieces;
        let begun = MAPS.insert(pieces.range.addresses(), pieces).and_then(|()| {
            // The kernel's mapping, if there is one, ends here.
            pieces.show(0, len, MapFlags::SHARED, pieces.holder.nothing.as_fd(), 0, &showing())
        });
        if let Err(error) = begun {
            if is_over {
                pieces.leave_to_kernel();
            }
            return Err(error);
        }
        let end = (stat.st_size as u64).saturating_sub(offset).min(at_once as u64);
        // If others have cut the file meanwhile, touches of it find that out.
        _ = map.pieces.place_all(&(0..end), false);
        Ok(Some(map))
    }

    /// The descriptors that must stay open: the map's own, and those of all maps of the mount.
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, [BorrowedFd<'_>; 3]) {
        (self.pieces.file.as_fd(), self.pieces.holder.descriptors())
    }

    /// The map's own descriptor of the file. It stays open as long as anybody has this.
    pub(crate) fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pieces.file)
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.pieces.range.base()
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pieces.range.len()
    }

    /// Whether the process has the mapping.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.pieces.range.is_here()
    }

    /// Whether stores are durable once they have left the processor's caches. Else only a sync of the file makes them so.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.pieces.is_synchronous && !self.pieces.growth.is_left()
    }

    /// Whether a sync of the file has nothing left to do, but for stores of programs to their mappings: all calls of all processes are durable when they
    /// return, and no process has the file mapped by the page cache.
    pub(crate) fn is_always_durable(&self) -> bool {
        let pieces = &self.pieces;
        // The server tells of appends that it has lost by a sync alone.
        let has_lost = || pieces.growth.turn().is_none_or(|turn| turn.may_have_lost());
        self.is_synchronous() && pieces.holds_blocks.load(Ordering::Acquire) && !has_lost()
    }

    /// Counts the times when the file may have become shorter. Nothing while the kernel serves the map, and alone knows.
    #[inline]
    pub(crate) fn cuts(&self) -> Option<u64> {
        let pieces = &self.pieces;
        // Not only once the page cache is there: what a thread copies just before may go there.
        (!pieces.growth.is_left()).then(|| pieces.changes.now())
    }

    /// Whether others may have taken something of a range of bytes away since [`Self::cuts`] was `before`.
    pub(crate) fn has_lost(&self, before: u64, range: &Range<u64>) -> bool {
        let pieces = &self.pieces;
        let last = range.end.saturating_sub(1) / PAGE_BYTES as u64 + u64::from(pieces.first_block);
        pieces.changes.has_lost(before, u32::try_from(last).unwrap_or(u32::MAX))
    }

    /// Fills the page tables for a range of bytes, as loads would. Holes get blocks if the map is for stores.
    pub(crate) fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        let signals = SignalsBlocked::new();
        self.pieces.place_all(range, self.pieces.is_writable)?;
        drop(signals);
        let at = self.base() as usize + range.start as usize;
        // SAFETY: the range is ours; this changes no contents.
        unsafe { madvise(at as *mut _, (range.end - range.start) as usize, Advice::LinuxPopulateRead)? };
        Ok(())
    }
}

impl Drop for LeasedMap {
    fn drop(&mut self) {
        let pieces = &self.pieces;
        // In a forked child, too, where a touch of other memory at these addresses would find it.
        MAPS.remove(pieces.range.addresses(), pieces);
        if !pieces.generation.is_current() {
            return;
        }
        let _signals = SignalsBlocked::new();
        pieces.take_away(0);
        let _beginning = lock(&pieces.holder.beginning);
        if pieces.holder.remove(pieces.ino, pieces) {
            // The server looks at the slot for the last time.
            // SAFETY: the server reads a number.
            let returned = unsafe { ioctl(&pieces.file, Setter::<{ RETURN }, u64>::new(pieces.holder.number)) };
            if let Err(error) = returned {
                tracing::debug!(%error, "cannot return a lease: its server is gone");
                return;
            }
            pieces.growth.give_slots_back(&pieces.holder.slots);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn access(is_writable: bool) -> ProtFlags {
    if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}

/// The handler of a touch of what is not mapped yet.
fn resolve(address: usize, _: FaultAccess) -> Resolution {
    let Some(pieces) = MAPS.find(address) else { return Resolution::Declined };
    if !pieces.generation.is_current() {
        return Resolution::Declined;
    }
    if pieces.is_cached.load(Ordering::Acquire) {
        return touched(address);
    }
    let offset = address - pieces.range.base() as usize;
    let Some(block) = block_at(pieces.first_block, offset as u64) else { return Resolution::Declined };
    let around = of_huge_page(block);
    let mut next = around.start.max(pieces.first_block);
    // An answer may have too few extents to reach the block.
    while next <= block {
        match pieces.place(next..around.end, pieces.is_writable) {
            Placed::UpTo(end) if end > next => next = end,
            Placed::ByKernel => return Resolution::Resolved,
            _ => return Resolution::Declined,
        }
    }
    Resolution::Resolved
}

/// The outcome of a touch of what the kernel serves: it may have hit what was there before. Then it works by now, and else the error is the file's.
fn touched(address: usize) -> Resolution {
    let page = address / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the advice changes no contents.
    let is_there = unsafe { madvise(page as *mut _, PAGE_BYTES, Advice::LinuxPopulateRead) }.is_ok();
    if is_there { Resolution::Resolved } else { Resolution::Declined }
}

impl Pieces {
    /// Maps what a range of bytes has, as far as it reaches. With `fill` holes get blocks.
    pub(super) fn place_all(&self, range: &Range<u64>, fill: bool) -> io::Result<()> {
        let Some(Range { start: mut next, end }) = blocks_of(self.first_block, range) else {
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        while next < end && !self.is_cached.load(Ordering::Acquire) {
            match self.place(next..end, fill) {
                Placed::UpTo(to) if to > next => next = to,
                Placed::ByKernel => {}
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// Asks for a lease of blocks and maps them. Async-signal-safe.
    fn place(&self, blocks: Range<u32>, fill: bool) -> Placed {
        let request = Request::new(self.holder.number, blocks, self.is_writable, fill);
        let mut grant = Grant::empty();
        for _ in 0..ATTEMPTS_MAX {
            match self.ask(&request, &mut grant) {
                Ok(showing) => {
                    let placed = self.map_extents(&grant, fill, &showing);
                    drop(showing);
                    return if matches!(placed, Placed::Unserved) { self.leave_to_kernel() } else { placed };
                }
                // The server takes leases of the file back.
                Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(ATTEMPT_EVERY),
                Err(Errno::BUSY | Errno::PERM) => return self.leave_to_kernel(),
                Err(_) => return Placed::Nothing,
            }
        }
        Placed::Nothing
    }

    /// Asks for a lease. The caller maps it while it has the lock. EAGAIN if the server has taken it back by then, EBUSY if the kernel serves the map by then, and
    /// ECANCELED while a thread may store by an append that is over.
    ///
    /// The lock is not held meanwhile: the holder's thread needs it to answer recalls, for which the server may wait before it answers this.
    pub(super) fn ask(&self, request: &Request, grant: &mut Grant) -> Result<Showing, Errno> {
        // A forked child has other memory here.
        if !self.generation.is_current() {
            return Err(Errno::FAULT);
        }
        let before = self.taken_away.load(Ordering::SeqCst);
        request.put(grant);
        // SAFETY: the server reads the request and writes a grant, which have as many bytes.
        unsafe { ioctl(&self.file, Updater::<{ LEASE }, Grant>::new(grant))? };
        let showing = showing();
        self.changes.granted();
        if self.taken_away.load(Ordering::SeqCst) != before {
            return Err(Errno::AGAIN);
        }
        // Recalls pass over a map that is left to the kernel.
        if self.growth.is_left() {
            return Err(Errno::BUSY);
        }
        if self.growth.is_abandoned() {
            return Err(Errno::CANCELED);
        }
        if !grant.extents().is_empty() {
            self.holds_blocks.store(true, Ordering::Release);
        }
        Ok(showing)
    }

    pub(super) fn map_extents(&self, grant: &Grant, fill: bool, held: &Showing) -> Placed {
        let flags = if self.is_synchronous { self.holder.map_flags() } else { MapFlags::SHARED };
        let granted = grant.blocks();
        let mut there = 0;
        for extent in grant.extents() {
            let (Some(at), len) = (self.offset_of(extent.file_block), extent.blocks as usize * PAGE_BYTES) else {
                return Placed::Nothing;
            };
            let from = extent.start * PAGE_BYTES as u64;
            let Some(len) = self.range.len().checked_sub(at).map(|room| len.min(room)) else { return Placed::Nothing };
            // The kernel has a limit for the number of mappings, behind which it cannot even take one away (vm.max_map_count).
            if !self.extents.shows(at / PAGE_BYTES..(at + len) / PAGE_BYTES) {
                return Placed::Unserved;
            }
            if self.show(at, len, flags, self.holder.medium.as_fd(), from, held).is_err() {
                return Placed::Nothing;
            }
            there += extent.blocks;
        }
        // A hole of a file that is not open for stores reads as zeros, which the kernel has.
        let has_holes = there < granted.end - granted.start;
        if has_holes && !self.is_writable && !fill { Placed::Unserved } else { Placed::UpTo(granted.end) }
    }

    /// Where a block is in the range.
    fn offset_of(&self, block: u32) -> Option<usize> {
        let offset = block.checked_sub(self.first_block)? as usize * PAGE_BYTES;
        (offset < self.range.len()).then_some(offset)
    }

    /// Has the kernel's page cache serve the whole range.
    pub(super) fn leave_to_kernel(&self) -> Placed {
        let from = u64::from(self.first_block) * PAGE_BYTES as u64;
        // What an append has stored to extents by now counts, and nothing that it stores later.
        self.growth.leave();
        self.holds_blocks.store(false, Ordering::Release);
        // It would store over what others append to the page cache. Without the lock: a thread with a turn may wait for that.
        if !self.growth.end(&self.holder.slots) {
            return Placed::Nothing;
        }
        let held = &showing();
        if self.is_cached.load(Ordering::Acquire) {
            return Placed::ByKernel;
        }
        if self.show(0, self.range.len(), MapFlags::SHARED, self.file.as_fd(), from, held).is_err() {
            return Placed::Nothing;
        }
        self.extents.ends_at(0);
        self.is_cached.store(true, Ordering::Release);
        Placed::ByKernel
    }

    /// Takes everything from a block of the file on out of the range. When this returns, no thread can load or store there.
    pub(super) fn take_away(&self, from_block: u32) {
        if !self.generation.is_current() {
            return;
        }
        // What is stored by then is part of the file.
        let is_over = self.growth.end(&self.holder.slots);
        // A thread that may still append finds nothing to store to, wherever the end of the file is.
        let from_block = if is_over { from_block } else { 0 };
        let held = showing();
        self.taken_away.fetch_add(1, Ordering::SeqCst);
        // Before the server hears that it has everything back.
        self.holds_blocks.store(false, Ordering::Release);
        self.changes.lost(from_block);
        if self.is_cached.load(Ordering::Acquire) {
            return;
        }
        let at = (from_block.saturating_sub(self.first_block) as usize).saturating_mul(PAGE_BYTES);
        if at < self.range.len() {
            let len = self.range.len() - at;
            // Without this the file's blocks would become another's while this process stores to them.
            if self.show(at, len, MapFlags::SHARED, self.holder.nothing.as_fd(), at as u64, &held).is_err() {
                std::process::abort();
            }
        }
        self.extents.ends_at(at / PAGE_BYTES);
    }

    /// Whether a part was ever taken away.
    pub(super) fn was_recalled(&self) -> bool {
        self.taken_away.load(Ordering::SeqCst) > 0 || self.is_cached.load(Ordering::SeqCst)
    }

    /// Changes the accesses that a part of the range allows.
    pub(super) fn protect(&self, part: Range<usize>, access: ProtFlags) -> io::Result<()> {
        assert!(part.end <= self.range.len(), "{part:?} of a range of {}", self.range.len());
        let _signals = SignalsBlocked::new();
        let _showing = showing();
        lock(&self.protections).set(part.clone(), access);
        let address = self.range.base().wrapping_add(part.start).cast();
        // SAFETY: the range is ours, and safe code has only pointers to it.
        unsafe { mprotect(address, part.len(), MprotectFlags::from_bits_retain(access.bits()))? };
        Ok(())
    }

    /// The accesses that the range allows.
    pub(super) fn protections(&self) -> Protections {
        self.with_protections(Protections::clone)
    }

    pub(super) fn with_protections<T>(&self, look: impl FnOnce(&Protections) -> T) -> T {
        let _signals = SignalsBlocked::new();
        look(&lock(&self.protections))
    }

    /// Lets a part of the range show a part of a file.
    fn show(
        &self,
        at: usize,
        len: usize,
        flags: MapFlags,
        file: BorrowedFd<'_>,
        from: u64,
        _held: &Showing,
    ) -> io::Result<()> {
        assert!(at + len <= self.range.len(), "{len} bytes at {at} of a range of {}", self.range.len());
        let protections = lock(&self.protections);
        let address = |at: usize| self.range.base().wrapping_add(at).cast();
        let show = |flags: MapFlags, file: BorrowedFd<'_>, from: u64| {
            let flags = flags | MapFlags::FIXED | MapFlags::NORESERVE;
            protections.parts(at..at + len).try_for_each(|(part, access)| {
                let from = from + (part.start - at) as u64;
                // SAFETY: the range is ours, and stays so: what replaces a part of it is shared memory as well, of which safe code has only
                // pointers.
                unsafe { mmap(address(part.start), part.len(), access, flags, file, from) }.map(drop)
            })
        };
        if let Err(error) = show(flags, file, from) {
            // The kernel may have removed what was there. Another thread may not get these addresses.
            if show(MapFlags::SHARED, self.holder.nothing.as_fd(), at as u64).is_err() {
                std::process::abort();
            }
            return Err(error.into());
        }
        // SAFETY: the range is ours; the advice changes no contents.
        unsafe { madvise(address(at), len, Advice::LinuxDontFork)? };
        Ok(())
    }
}
