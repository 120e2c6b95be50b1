//! A file as a range of addresses that is put together from extents of the medium.
//!
//! A part whose extents are not leased is a mapping of an empty file. A touch of it is a SIGBUS, whose handler leases a huge page's worth of
//! blocks and maps them in its place. So the server can take a part away at any time, and the next touch finds out what has become of it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::ioctl::{Setter, Updater, ioctl};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use vmio_pmfs_protocol::{Grant, LEASE, RETURN, Request};

use super::growth::{Growth, Turn};
use super::holder::Holder;
use crate::sys::address_table::{AddressTable, GRANULE_BYTES};
use crate::sys::fork::Generation;
use crate::sys::persistent_memory::Refused;
use crate::sys::reservation::Reservation;
use crate::sys::signal::{self, FaultAccess, FaultSource, Resolution, SignalsBlocked};
use crate::sys::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// The maps by their addresses.
static MAPS: AddressTable<Pieces> = AddressTable::new();

/// How often a lease is asked for while the server takes others back, and how long to wait in between.
const ATTEMPTS_MAX: u32 = 60_000;
const ATTEMPT_EVERY: Duration = Duration::from_millis(1);

/// A file of a mounted vmio-pmfs, mapped from an offset on. Forked children do not have the mapping.
pub(crate) struct LeasedMap {
    pieces: Arc<Pieces>,
}

/// The addresses of a map, and what they show.
pub(super) struct Pieces {
    range: Reservation,
    /// The block of the file that the first address shows.
    first_block: u32,
    file: OwnedFd,
    ino: u64,
    holder: Arc<Holder>,
    is_writable: bool,
    generation: Generation,
    /// Held while addresses get something else to show.
    changing: Mutex<()>,
    growth: Growth,
    /// The whole range shows the kernel's page cache: the server grants no leases while another program has the file mapped that way.
    is_cached: AtomicBool,
}

/// The part of a file that one attempt has mapped.
enum Placed {
    /// Blocks from the first one wanted up to here; holes among them show nothing.
    UpTo(u32),
    /// The kernel serves the whole range from now on.
    ByKernel,
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
        let mode = fcntl_getfl(file)? & OFlags::RWMODE;
        if mode != OFlags::RDWR && is_writable == (mode == OFlags::RDONLY) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let stat = fstat(file)?;
        let Some(holder) = Holder::of(file, stat.st_dev, is_writable)? else { return Ok(None) };
        let first_block = u32::try_from(offset / PAGE_BYTES as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let access = access(is_writable);
        let len = len.next_multiple_of(GRANULE_BYTES);
        let mut range =
            Reservation::of_file_at_multiple(holder.nothing.as_fd(), 0, len, GRANULE_BYTES, access, MapFlags::SHARED)?;
        range.leave_out_on_fork()?;
        let pieces = Arc::new(Pieces {
            range,
            first_block,
            file: fcntl_dupfd_cloexec(file, 0)?,
            ino: stat.st_ino,
            is_writable,
            generation: Generation::of_this_process()?,
            changing: Mutex::default(),
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
        MAPS.insert(pieces.range.addresses(), pieces)?;
        let end = (stat.st_size as u64).saturating_sub(offset).min(len as u64);
        // If others have cut the file meanwhile, touches of it find that out.
        _ = map.pieces.place_all(&(0..end), false);
        Ok(Some(map))
    }

    /// The descriptors that must stay open: the map's own, and those of all maps of the mount.
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, [BorrowedFd<'_>; 3]) {
        (self.pieces.file.as_fd(), self.pieces.holder.descriptors())
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
        self.pieces.holder.is_synchronous && !self.pieces.is_cached.load(Ordering::Acquire)
    }

    /// Stores bytes behind the end of the file, which is `end`, and makes them part of it. Others see them from then on. Returns how many there was
    /// room for: none if the kernel must append.
    pub(crate) fn append(
        &self,
        end: u64,
        bytes: &[u8],
        store: impl Fn(*mut u8, &[u8]) -> Result<(), Refused>,
    ) -> usize {
        let pieces = &*self.pieces;
        if !pieces.is_writable || pieces.is_cached.load(Ordering::Acquire) {
            return 0;
        }
        let Some(turn) = pieces.growth.turn() else { return 0 };
        let mut done = 0;
        while done < bytes.len() {
            let at = end + done as u64;
            let room = match turn.room(&pieces.holder.slots, at) {
                0 => pieces.lease_to_grow(&turn, at),
                room => room,
            };
            let part = &bytes[done..][..room.min((bytes.len() - done) as u64) as usize];
            let Some(offset) = pieces.offset_of_byte(at, part.len()).filter(|_| !part.is_empty()) else { break };
            let is_stored = store(pieces.range.base().wrapping_add(offset), part).is_ok();
            if !is_stored || !turn.stored_up_to(&pieces.holder.slots, at + part.len() as u64) {
                break;
            }
            done += part.len();
        }
        done
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
        if !pieces.generation.is_current() {
            return;
        }
        let _signals = SignalsBlocked::new();
        MAPS.remove(pieces.range.addresses(), pieces);
        pieces.take_away(0);
        let _beginning = lock(&pieces.holder.beginning);
        if pieces.holder.remove(pieces.ino, pieces) {
            // The server looks at the slot for the last time.
            // SAFETY: the server reads a number.
            let returned = unsafe { ioctl(&pieces.file, Setter::<{ RETURN }, u64>::new(pieces.holder.number)) };
            if let Err(error) = returned {
                tracing::debug!(%error, "cannot return a lease: its server is gone");
            }
            pieces.growth.give_slot_back(&pieces.holder.slots);
        }
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn access(is_writable: bool) -> ProtFlags {
    if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}

/// The handler of a touch of what is not mapped yet.
fn resolve(address: usize, _: FaultAccess) -> Resolution {
    let Some(pieces) = MAPS.find(address) else { return Resolution::Declined };
    // Once the kernel serves the range, its errors are the file's.
    if !pieces.generation.is_current() || pieces.is_cached.load(Ordering::Acquire) {
        return Resolution::Declined;
    }
    let offset = address - pieces.range.base() as usize;
    let block = pieces.first_block + (offset / PAGE_BYTES) as u32;
    let per_page = (HUGE_PAGE_BYTES / PAGE_BYTES) as u32;
    let first = block / per_page * per_page;
    let mut next = first.max(pieces.first_block);
    // An answer may have too few extents to reach the block.
    while next <= block {
        match pieces.place(next..first + per_page, pieces.is_writable) {
            Placed::UpTo(end) if end > next => next = end,
            Placed::ByKernel => return Resolution::Resolved,
            _ => return Resolution::Declined,
        }
    }
    Resolution::Resolved
}

impl Pieces {
    /// Maps what a range of bytes has, as far as it reaches. With `fill` holes get blocks.
    fn place_all(&self, range: &Range<u64>, fill: bool) -> io::Result<()> {
        let block = |byte: u64| self.first_block + (byte / PAGE_BYTES as u64) as u32;
        let (mut next, end) = (block(range.start), block(range.end.next_multiple_of(PAGE_BYTES as u64)));
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
        for _ in 0..ATTEMPTS_MAX {
            let changing = lock(&self.changing);
            let mut grant = Request::new(self.holder.number, blocks.clone(), self.is_writable, fill).to_grant();
            // SAFETY: the server reads the request and writes a grant, which have as many bytes.
            let asked = unsafe { ioctl(&self.file, Updater::<{ LEASE }, Grant>::new(&mut grant)) };
            match asked {
                Ok(()) => return self.map_extents(&grant, fill),
                // The server takes leases of the file back: the holder's thread needs the lock for its answer.
                Err(Errno::AGAIN | Errno::INTR) => {
                    drop(changing);
                    std::thread::sleep(ATTEMPT_EVERY);
                }
                Err(Errno::BUSY | Errno::PERM) => return self.leave_to_kernel(),
                Err(_) => return Placed::Nothing,
            }
        }
        Placed::Nothing
    }

    /// Asks for blocks behind the end of the file and maps them. Returns how many bytes they have. Async-signal-safe.
    fn lease_to_grow(&self, turn: &Turn<'_>, end: u64) -> u64 {
        let Some(slot) = turn.slot_for(&self.holder.slots, end) else { return 0 };
        let _changing = lock(&self.changing);
        let mut grant = Request::to_grow(self.holder.number, slot).to_grant();
        // SAFETY: the server reads the request and writes a grant, which have as many bytes.
        let asked = unsafe { ioctl(&self.file, Updater::<{ LEASE }, Grant>::new(&mut grant)) };
        // Another length: then it is the kernel that knows better.
        if asked.is_err() || grant.size != end || !matches!(self.map_extents(&grant, true), Placed::UpTo(_)) {
            return 0;
        }
        let room_end = u64::from(grant.blocks().end) * PAGE_BYTES as u64;
        turn.has_room_up_to(room_end);
        room_end.saturating_sub(end)
    }

    /// Where bytes of the file are in the range, if all of them are.
    fn offset_of_byte(&self, at: u64, len: usize) -> Option<usize> {
        let offset = at.checked_sub(u64::from(self.first_block) * PAGE_BYTES as u64)? as usize;
        (offset.checked_add(len)? <= self.range.len()).then_some(offset)
    }

    fn map_extents(&self, grant: &Grant, fill: bool) -> Placed {
        let sync = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        let flags = if self.holder.is_synchronous { sync } else { MapFlags::SHARED };
        let granted = grant.blocks();
        let mut there = 0;
        for extent in grant.extents() {
            let (Some(at), len) = (self.offset_of(extent.file_block), extent.blocks as usize * PAGE_BYTES) else {
                return Placed::Nothing;
            };
            let from = extent.start * PAGE_BYTES as u64;
            let Some(len) = self.range.len().checked_sub(at).map(|room| len.min(room)) else { return Placed::Nothing };
            if self.show(at, len, flags, self.holder.medium.as_fd(), from).is_err() {
                return Placed::Nothing;
            }
            there += extent.blocks;
        }
        // A hole of a file that is not open for stores reads as zeros, which the kernel has.
        let has_holes = there < granted.end - granted.start;
        if has_holes && !self.is_writable && !fill {
            return self.leave_to_kernel();
        }
        Placed::UpTo(granted.end)
    }

    /// Where a block is in the range.
    fn offset_of(&self, block: u32) -> Option<usize> {
        let offset = block.checked_sub(self.first_block)? as usize * PAGE_BYTES;
        (offset < self.range.len()).then_some(offset)
    }

    /// Has the kernel's page cache serve the whole range.
    fn leave_to_kernel(&self) -> Placed {
        let from = u64::from(self.first_block) * PAGE_BYTES as u64;
        if self.show(0, self.range.len(), MapFlags::SHARED, self.file.as_fd(), from).is_err() {
            return Placed::Nothing;
        }
        self.is_cached.store(true, Ordering::Release);
        Placed::ByKernel
    }

    /// Takes everything from a block of the file on out of the range. When this returns, no thread can load or store there.
    pub(super) fn take_away(&self, from_block: u32) {
        if !self.generation.is_current() {
            return;
        }
        // What is stored by then is part of the file.
        self.growth.end();
        let _changing = lock(&self.changing);
        if self.is_cached.load(Ordering::Acquire) {
            return;
        }
        let at = (from_block.saturating_sub(self.first_block) as usize).saturating_mul(PAGE_BYTES);
        if at < self.range.len() {
            let len = self.range.len() - at;
            // Without this the file's blocks would become another's while this process stores to them.
            if self.show(at, len, MapFlags::SHARED, self.holder.nothing.as_fd(), at as u64).is_err() {
                std::process::abort();
            }
        }
    }

    /// Lets a part of the range show a part of a file.
    fn show(&self, at: usize, len: usize, flags: MapFlags, file: BorrowedFd<'_>, from: u64) -> io::Result<()> {
        assert!(at + len <= self.range.len(), "{len} bytes at {at} of a range of {}", self.range.len());
        let address = self.range.base().wrapping_add(at).cast();
        let (flags, access) = (flags | MapFlags::FIXED | MapFlags::NORESERVE, access(self.is_writable));
        // SAFETY: the range is ours, and stays so: what replaces a part of it is shared memory as well, of which safe code has only pointers.
        let shown = unsafe { mmap(address, len, access, flags, file, from) };
        if let Err(error) = shown {
            self.show_nothing(at, len);
            return Err(error.into());
        }
        // SAFETY: the range is ours; the advice changes no contents.
        unsafe { madvise(address, len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// After a refusal: the kernel may have removed what was there. Another thread may not get these addresses.
    fn show_nothing(&self, at: usize, len: usize) {
        let address = self.range.base().wrapping_add(at).cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `show`.
        let shown =
            unsafe { mmap(address, len, access(self.is_writable), flags, self.holder.nothing.as_fd(), at as u64) };
        if shown.is_err() {
            std::process::abort();
        }
    }
}
