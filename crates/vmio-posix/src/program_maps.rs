//! Mappings that the program makes of files on a mounted vmio-pmfs: with a mode, the process maps the medium itself, by leases.
//!
//! The kernel sees mappings of the medium, so it does msync, mlock and most advice by itself. The addresses of a mapping stay its own until the program
//! has unmapped all of it: what it has unmapped of it allows no access.

use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rangemap::RangeSet;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fdatasync, fstat};
use vmio::backing::Identity;
use vmio::{Access, MapsHeldStill, PAGE_BYTES, ProgramMap, SignalsBlocked};

use crate::entry::Answer;
use crate::errno::Errno;
use crate::file::identity_of;
use crate::files_kept_open::MapFile;
use crate::memory::Request;
use crate::messages;
use crate::own_descriptors;
use crate::preallocation;
use crate::settings::Settings;
use crate::table::is_regular;

static MAPS: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());
/// Their number, for reading without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether [`NOT_DURABLE`] has any, likewise.
static HAVE_LOST: AtomicBool = AtomicBool::new(false);
/// Files whose mappings have ended with stores that may not be durable: the next sync says so.
static NOT_DURABLE: Mutex<Vec<Identity>> = Mutex::new(Vec::new());
/// In a forked child: its parent's, until the child has its own.
static PARENTS: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

/// A mapping of the program's.
struct Mapped {
    map: ProgramMap,
    /// Dropped after the map, which uses it.
    file: MapFile,
    identity: Identity,
    /// The byte of the file at the first address that is kept.
    first: u64,
    /// The addresses that the program has mapped.
    live: RangeSet<usize>,
    is_shared: bool,
}

/// While a thread that forks has this, nothing here changes.
pub(crate) struct HeldStill {
    maps: MutexGuard<'static, Vec<Mapped>>,
    shown: MapsHeldStill,
}

fn lock(mutex: &'static Mutex<Vec<Mapped>>) -> MutexGuard<'static, Vec<Mapped>> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the process has any.
#[inline]
pub(crate) fn are_there() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// Whether a sync of a file may have something to do here: [`before_sync`].
#[inline]
pub(crate) fn matter_to_syncs() -> bool {
    are_there() || HAVE_LOST.load(Ordering::Acquire)
}

fn of_io(error: &std::io::Error) -> Errno {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Errno::ACCESS,
        std::io::ErrorKind::InvalidInput => Errno::INVAL,
        std::io::ErrorKind::OutOfMemory => Errno::NOMEM,
        _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

fn access_of(protection: c_int) -> Option<Access> {
    match protection {
        libc::PROT_NONE => None,
        of if of & libc::PROT_WRITE != 0 => Some(Access::ReadWrite),
        _ => Some(Access::ReadOnly),
    }
}

/// mmap of a file: `None` if the kernel has to map it.
pub(crate) fn map(fd: BorrowedFd<'_>, request: Request) -> Answer<usize> {
    let settings = Settings::of_this_process().filter(|settings| settings.mode.is_some())?;
    if !ProgramMap::is_of_pmfs(fd) || !settings.covers_open(fd) {
        return None;
    }
    let (bytes, stat) = (request.bytes()?, fstat(fd).ok().filter(is_regular)?);
    let how = fcntl_getfl(fd).ok()?;
    if !request.is_allowed(how) {
        return None;
    }
    let say = |what: &dyn fmt::Display| {
        if settings.is_verbose {
            let path = Settings::with_path(fd, |path| path.display().to_string()).unwrap_or_default();
            messages::say(format_args!("{path}: bytes {}..{} {what}", bytes.start, bytes.end));
        }
    };
    if let Some(why) = request.why_not_by_leases() {
        say(&format_args!("are mapped by the kernel: {why}"));
        return None;
    }
    let is_shared = request.is_shared();
    if is_shared
        && request.stores()
        && let Err(error) = preallocation::allocate(fd, &bytes)
    {
        return Some(Err(error));
    }
    let most = if is_shared && how.contains(OFlags::RDWR) { Access::ReadWrite } else { Access::ReadOnly };
    let _no_handlers = SignalsBlocked::new();
    let mut maps = lock(&MAPS);
    let access = access_of(request.protection);
    let opened = MapFile::of(fd).and_then(|file| {
        let map = ProgramMap::open(file.descriptor()?, bytes.clone(), most, access, request.is_synchronous());
        Ok(map.map_err(|error| of_io(&error))?.map(|map| (map, file)))
    });
    let (map, file) = match opened {
        Ok(Some(both)) => both,
        Ok(None) => {
            say(&"are mapped by the kernel: this process may not open the medium, or that is a device in mode devdax");
            return None;
        }
        Err(error) => {
            say(&format_args!("are mapped by the kernel: {error}"));
            return None;
        }
    };
    let identity = identity_of(&stat);
    if request.is_synchronous() && !map.is_synchronous() {
        // The kernel says why not. A thread that forks waits for these mappings while it holds what the end of a map needs.
        drop(maps);
        drop((map, file));
        return None;
    }
    let address = map.addresses().start;
    let live = address..address + (bytes.end - bytes.start) as usize;
    if request.populates() {
        // As with Linux, a failure is ignored.
        _ = map.place(live.clone());
    }
    say(&format_args!("are mapped by leases of their extents at {address:#x}"));
    maps.push(Mapped::new(map, file, identity, bytes.start, RangeSet::from_iter([live]), is_shared));
    COUNT.store(maps.len(), Ordering::Release);
    Some(Ok(address))
}

fn whole_pages(address: usize, len: usize) -> Result<Range<usize>, Errno> {
    let end = len.checked_next_multiple_of(PAGE_BYTES).and_then(|len| address.checked_add(len));
    match end {
        Some(end) if address.is_multiple_of(PAGE_BYTES) => Ok(address..end),
        _ => Err(Errno::INVAL),
    }
}

/// The mappings that keep addresses of a range.
fn touched<'a>(maps: &'a mut [Mapped], addresses: &Range<usize>) -> impl Iterator<Item = &'a mut Mapped> {
    let addresses = addresses.clone();
    maps.iter_mut().filter(move |one| {
        let kept = one.map.kept();
        kept.start < addresses.end && addresses.start < kept.end
    })
}

/// Whether any mapping keeps addresses of a range.
fn overlap(addresses: &Range<usize>) -> bool {
    let _no_handlers = SignalsBlocked::new();
    touched(&mut lock(&MAPS), addresses).next().is_some()
}

/// Makes a call on the parts of a range that no mapping here keeps, and another one on those that mappings keep. `None` if none keeps any.
fn each_part(
    addresses: Range<usize>,
    on_others: impl Fn(Range<usize>) -> Result<(), Errno>,
    on_ours: impl Fn(&mut Mapped, Range<usize>) -> Result<(), Errno>,
) -> Answer<()> {
    let mut maps = lock(&MAPS);
    let mut others = RangeSet::from_iter([addresses.clone()]);
    let mut is_touched = false;
    for one in touched(&mut maps, &addresses) {
        is_touched = true;
        let kept = one.map.kept();
        others.remove(kept.clone());
        let part = kept.start.max(addresses.start)..kept.end.min(addresses.end);
        if let Err(error) = on_ours(one, part) {
            return Some(Err(error));
        }
    }
    if !is_touched {
        return None;
    }
    let done = others.iter().try_for_each(|part| on_others(part.clone()));
    end_unmapped(maps);
    Some(done)
}

/// Ends the mappings of which the program has unmapped all.
fn end_unmapped(mut maps: MutexGuard<'static, Vec<Mapped>>) {
    maps.iter().filter(|one| one.live.is_empty()).for_each(Mapped::flush_for_good);
    let ended: Vec<Mapped> = maps.extract_if(.., |one| one.live.is_empty()).collect();
    COUNT.store(maps.len(), Ordering::Release);
    // A thread that forks waits for the list while it holds what the end of a map needs.
    drop(maps);
    drop(ended);
}

impl Mapped {
    fn new(
        map: ProgramMap,
        file: MapFile,
        identity: Identity,
        start: u64,
        live: RangeSet<usize>,
        is_shared: bool,
    ) -> Mapped {
        let (own, others) = map.descriptors();
        [own].into_iter().chain(others).for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
        let first = start - (map.addresses().start - map.kept().start) as u64;
        Mapped { map, file, identity, first, live, is_shared }
    }

    /// Makes the stores durable while syncs of the file by other threads find the mapping here: afterwards they would not.
    fn flush_for_good(&self) {
        let Some(medium) = self.map.medium_to_sync() else { return };
        // A store after the flush would be lost to them.
        let closed = self.map.protect(self.map.kept(), None).map_err(|error| of_io(&error));
        if let Err(error) = closed.and(fdatasync(medium)) {
            messages::say(format_args!("stores to a file that is unmapped may not be durable: {error}"));
            let mut files = NOT_DURABLE.lock().unwrap_or_else(PoisonError::into_inner);
            if !files.contains(&self.identity) {
                files.push(self.identity);
            }
            HAVE_LOST.store(true, Ordering::Release);
        }
    }

    /// The program has unmapped a part.
    fn forget(&mut self, part: Range<usize>) -> Result<(), Errno> {
        let is_all = self.live.iter().all(|live| part.start <= live.start && live.end <= part.end);
        if !is_all {
            self.map.protect(part.clone(), None).map_err(|error| of_io(&error))?;
        }
        self.live.remove(part);
        Ok(())
    }

    /// Punches holes into the file where the program has mapped it.
    fn punch(&self, part: &Range<usize>) -> Result<(), Errno> {
        if !self.map.is_writable() {
            return Err(Errno::ACCESS);
        }
        for live in self.live.overlapping(part) {
            let bytes = self.bytes(&(live.start.max(part.start)..live.end.min(part.end)));
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(self.file.as_fd()?, flags, bytes.start, bytes.end - bytes.start)?;
        }
        if self.live.gaps(part).next().is_some() { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// The bytes of the file at addresses.
    fn bytes(&self, part: &Range<usize>) -> Range<u64> {
        let base = self.map.kept().start;
        self.first + (part.start - base) as u64..self.first + (part.end - base) as u64
    }
}

/// munmap. `others` unmaps what is not ours.
pub(crate) fn unmap(address: usize, len: usize, others: impl Fn(Range<usize>) -> Result<(), Errno>) -> Answer<()> {
    let addresses = whole_pages(address, len).ok().filter(|part| !part.is_empty() && are_there())?;
    let _no_handlers = SignalsBlocked::new();
    each_part(addresses, others, Mapped::forget)
}

/// mprotect, likewise.
pub(crate) fn protect(
    address: usize,
    len: usize,
    protection: c_int,
    others: impl Fn(Range<usize>) -> Result<(), Errno>,
) -> Answer<()> {
    let addresses = whole_pages(address, len).ok().filter(|part| !part.is_empty() && are_there())?;
    let _no_handlers = SignalsBlocked::new();
    each_part(addresses, others, |one, part| {
        if protection & libc::PROT_EXEC != 0 {
            return Err(Errno::ACCESS);
        }
        if one.live.gaps(&part).next().is_some() {
            return Err(Errno::NOMEM);
        }
        let access = access_of(protection);
        if access == Some(Access::ReadWrite) && one.is_shared {
            preallocation::allocate(one.file.as_fd()?, &one.bytes(&part))?;
        }
        one.map.protect(part, access).map_err(|error| of_io(&error))
    })
}

/// mremap of one of these.
pub(crate) fn remap(address: usize, old_len: usize, new_len: usize, flags: c_int) -> Answer<usize> {
    if !are_there() {
        return None;
    }
    let _no_handlers = SignalsBlocked::new();
    let (old, new_len) = (whole_pages(address, old_len), new_len.checked_next_multiple_of(PAGE_BYTES));
    let mut maps = lock(&MAPS);
    let at = maps.iter().position(|one| one.map.kept().contains(&address))?;
    let (Ok(old), Some(new_len)) = (old, new_len.filter(|len| *len > 0)) else { return Some(Err(Errno::INVAL)) };
    // Not those that put it at an address of the program's choice, or leave the old mapping there.
    if flags & !libc::MREMAP_MAYMOVE != 0 || old.is_empty() {
        return Some(Err(Errno::INVAL));
    }
    let one = &mut maps[at];
    if one.live.gaps(&old).next().is_some() {
        return Some(Err(Errno::FAULT));
    }
    if new_len <= old.len() {
        let rest = address + new_len..old.end;
        return Some(if rest.is_empty() { Ok(()) } else { one.forget(rest) }.map(|()| address));
    }
    let access = one.map.access_at(old.start);
    let wanted = address..address.saturating_add(new_len);
    let is_free = wanted.end <= one.map.kept().end && !one.live.overlaps(&(old.end..wanted.end));
    if is_free {
        let grown = one.map.protect(old.end..wanted.end, access).map(|()| {
            one.live.insert(old.end..wanted.end);
            // As far as the file goes already; the rest comes as it is touched.
            _ = one.map.place_what_is_there(old.end..wanted.end);
            address
        });
        return Some(grown.map_err(|error| of_io(&error)));
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Some(Err(Errno::NOMEM));
    }
    let start = one.bytes(&old).start;
    let most = if one.map.is_writable() { Access::ReadWrite } else { Access::ReadOnly };
    let bytes = start..start + new_len as u64;
    let moved = one.file.as_fd().and_then(MapFile::of).and_then(|file| {
        let map = ProgramMap::open(file.descriptor()?, bytes, most, access, one.map.is_synchronous());
        Ok((map.map_err(|error| of_io(&error))?.ok_or(Errno::NOMEM)?, file))
    });
    let (map, file) = match moved {
        Ok(both) => both,
        Err(error) => return Some(Err(error)),
    };
    let moved = map.addresses().start;
    let live = RangeSet::from_iter(std::iter::once(moved..moved + new_len));
    let more = Mapped::new(map, file, one.identity, start, live, one.is_shared);
    if let Err(error) = one.forget(old) {
        return Some(Err(error));
    }
    maps.push(more);
    end_unmapped(maps);
    Some(Ok(moved))
}

/// Fails a mapping that would replace one of these.
pub(crate) fn refuse_fixed(addresses: &Range<usize>) -> Answer<usize> {
    (are_there() && overlap(addresses)).then_some(Err(Errno::NOMEM))
}

/// madvise: `None` if the kernel has to do it, on the mapping of the medium.
pub(crate) fn advise(address: usize, len: usize, advice: c_int) -> Answer<()> {
    let addresses = whole_pages(address, len).ok().filter(|part| !part.is_empty() && are_there())?;
    let _no_handlers = SignalsBlocked::new();
    let mut maps = lock(&MAPS);
    let mut outcome = None;
    for one in touched(&mut maps, &addresses) {
        let kept = one.map.kept();
        let part = kept.start.max(addresses.start)..kept.end.min(addresses.end);
        match advice {
            // The kernel would punch a hole into the medium.
            libc::MADV_REMOVE => {
                let punched = one.punch(&part);
                outcome = Some(outcome.unwrap_or(Ok(())).and(punched));
            }
            // Children get a mapping of their own. The kernel's copy would not give leases back.
            libc::MADV_DOFORK => outcome = Some(Ok(())),
            libc::MADV_WILLNEED => _ = one.map.place_what_is_there(part),
            // The kernel says what does not work.
            libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => _ = one.map.place(part),
            _ => {}
        }
    }
    outcome
}

/// Leases what a buffer of the program's shows, after a system call has failed with EFAULT. Returns whether it is worth another attempt.
pub(crate) fn place(buffer: Range<usize>) -> bool {
    if !are_there() || buffer.is_empty() {
        return false;
    }
    let _no_handlers = SignalsBlocked::new();
    let start = buffer.start / PAGE_BYTES * PAGE_BYTES;
    let Some(end) = buffer.end.checked_next_multiple_of(PAGE_BYTES) else { return false };
    let mut maps = lock(&MAPS);
    let found = touched(&mut maps, &(start..end)).find(|one| one.live.gaps(&(start..end)).next().is_none());
    found.is_some_and(|one| one.map.place(start..end).is_ok())
}

/// Leases what a buffer of the program's shows, where it shows nothing yet.
pub(crate) fn place_if_missing(buffer: Range<usize>) {
    let start = buffer.start / PAGE_BYTES * PAGE_BYTES;
    let Some(end) = buffer.end.checked_next_multiple_of(PAGE_BYTES) else { return };
    // The kernel touches the pages, and says what a touch would be.
    if !buffer.is_empty() && overlap(&(start..end)) {
        // The thread is inside vmio, so this is the C library's function.
        // SAFETY: the advice changes no contents.
        let are_there = unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(start), end - start, libc::MADV_POPULATE_READ)
        };
        if are_there != 0 {
            place(buffer);
        }
    }
}

/// Has the kernel write stores to a file back from the processor's caches, before a sync of the file. The server does not know of them.
pub(crate) fn before_sync(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    if !matter_to_syncs() {
        return Ok(());
    }
    let _no_handlers = SignalsBlocked::new();
    let maps = lock(&MAPS);
    if HAVE_LOST.load(Ordering::Acquire) {
        let identity = identity_of(&fstat(fd)?);
        let mut files = NOT_DURABLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = files.iter().position(|lost| *lost == identity) {
            files.swap_remove(at);
            HAVE_LOST.store(!files.is_empty(), Ordering::Release);
            return Err(Errno::IO);
        }
    }
    // To ask for the file takes a round trip to the server.
    if maps.iter().all(|one| one.map.medium_to_sync().is_none()) {
        return Ok(());
    }
    let identity = identity_of(&fstat(fd)?);
    match maps.iter().filter(|one| one.identity == identity).find_map(|one| one.map.medium_to_sync()) {
        Some(medium) => fdatasync(medium),
        None => Ok(()),
    }
}

/// The same before a sync of all files.
pub(crate) fn before_sync_of_all() -> Result<(), Errno> {
    if !are_there() {
        return Ok(());
    }
    let _no_handlers = SignalsBlocked::new();
    let maps = lock(&MAPS);
    let mut synced: Vec<RawFd> = Vec::new();
    for medium in maps.iter().filter_map(|one| one.map.medium_to_sync()) {
        // The maps of a mount share its descriptor.
        if !synced.contains(&medium.as_raw_fd()) {
            fdatasync(medium)?;
            synced.push(medium.as_raw_fd());
        }
    }
    Ok(())
}

/// Completes an msync that the kernel has done: what others have taken away from a mapping, the kernel does not see there.
pub(crate) fn after_sync(address: usize, len: usize, flags: c_int) -> Answer<()> {
    let addresses = whole_pages(address, len).ok().filter(|_| are_there() && flags & libc::MS_SYNC != 0)?;
    let _no_handlers = SignalsBlocked::new();
    let mut maps = lock(&MAPS);
    let mut recalled = touched(&mut maps, &addresses).filter(|one| one.map.was_recalled());
    let synced = recalled.try_for_each(|one| {
        one.map.medium_to_sync().map_or(Ok(()), fdatasync)?;
        fdatasync(one.file.as_fd()?)
    });
    synced.err().map(Err)
}

/// Keeps everything as it is while the thread forks.
pub(crate) fn hold_still() -> HeldStill {
    HeldStill { maps: lock(&MAPS), shown: ProgramMap::hold_still() }
}

/// In a child just after its fork: the kernel maps the files at the addresses of the parent's mappings.
pub(crate) fn are_left_to_parent(held: HeldStill) {
    let HeldStill { mut maps, shown } = held;
    // SAFETY: the thread has forked. Children that share their parent's memory do not come here; those that share its descriptors alone are not made by
    // programs that map files.
    unsafe { shown.end_in_child() };
    let maps = mem::take(&mut *maps);
    COUNT.store(0, Ordering::Release);
    // Where something else lies by now, the child has no such mapping.
    let (inherited, others): (Vec<Mapped>, Vec<Mapped>) = maps.into_iter().partition(|one| one.map.inherit().is_ok());
    for one in &others {
        messages::say(format_args!("a child lacks the mapping of a file at {:#x}", one.map.addresses().start));
    }
    mem::forget(others);
    // A child of a child that has done nothing had only these.
    mem::forget(mem::replace(&mut *lock(&PARENTS), inherited));
}

/// In a child, once all fork handlers have run: it gets leases of its own.
pub(crate) fn adopt_from_parent() {
    let theirs = mem::take(&mut *lock(&PARENTS));
    let mut maps = lock(&MAPS);
    for one in theirs {
        // SAFETY: the child has done nothing yet, so the kernel's mappings from `are_left_to_parent` are there.
        if let Ok(Some(map)) = unsafe { one.map.adopt() } {
            let start = one.first + (map.addresses().start - map.kept().start) as u64;
            let Mapped { map: theirs, file, identity, live, is_shared, .. } = one;
            drop(theirs);
            // The child's copy of the parent's descriptor.
            maps.push(Mapped::new(map, file, identity, start, live, is_shared));
        }
        // Else the kernel's mapping stays, which needs no descriptor.
    }
    COUNT.store(maps.len(), Ordering::Release);
}
