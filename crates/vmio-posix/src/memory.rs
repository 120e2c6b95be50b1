//! The calls on ranges of addresses: mmap, munmap, mremap, mprotect, madvise and msync.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fstat, fstatfs};
use vmio::backing::{Holder, Identity};
use vmio::{Access, Advice};

use crate::entry::Answer;
use crate::errno::{self, Errno};
use crate::file::{File, NotMapped, identity_of};
use crate::files_kept_open;
use crate::locks;
use crate::preallocation;
use crate::process::Process;
use crate::settings::Settings;
use crate::sigbus;
use crate::statistics::add;
use crate::table::{LockedTable, is_regular};
use crate::unserved_files;
use crate::windows::{Place, Rights};

/// OVERLAYFS_SUPER_MAGIC of the kernel's headers.
const OVERLAYFS: i64 = 0x794c_7630;

/// The arguments of an mmap of a file.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) len: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
    pub(crate) offset: u64,
}

impl Request {
    /// The bytes of the file, in whole pages.
    pub(crate) fn bytes(&self) -> Option<Range<u64>> {
        let page = vmio::PAGE_BYTES as u64;
        let end = self.offset.checked_add(self.len as u64)?.checked_next_multiple_of(page)?;
        (self.len > 0 && self.offset.is_multiple_of(page)).then_some(self.offset..end)
    }

    pub(crate) fn stores(&self) -> bool {
        self.protection & libc::PROT_WRITE != 0
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
    }

    /// The reason why vmio cannot serve it with any engine.
    fn unserved_reason(&self) -> Option<&'static str> {
        if self.protection & libc::PROT_EXEC != 0 {
            Some("it is executable")
        } else if self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
            Some("the program chooses its address")
        } else if self.flags & libc::MAP_SYNC != 0 && self.flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE {
            Some("it is persistent memory (MAP_SYNC)")
        } else if !self.is_shared() && self.stores() {
            Some("it is private and writable")
        } else {
            None
        }
    }

    /// The reason not to serve it where the pages are Linux's: Linux does better, and all processes see the same.
    fn why_linux_does_better(&self, fd: BorrowedFd<'_>) -> Option<&'static str> {
        if self.protection == libc::PROT_NONE {
            Some("it allows no access yet (PROT_NONE)")
        } else if self.flags & libc::MAP_LOCKED != 0 {
            Some("it is locked (MAP_LOCKED)")
        } else if fstatfs(fd).is_ok_and(|found| found.f_type == OVERLAYFS) {
            Some("vmio cannot evict the pages of an overlayfs file")
        } else {
            None
        }
    }

    /// Whether the program wants stores that are durable once they have left the processor's caches.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.flags & libc::MAP_SYNC != 0 && self.flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE
    }

    /// Whether its page tables are to be filled at once.
    pub(crate) fn populates(&self) -> bool {
        self.flags & libc::MAP_POPULATE != 0
    }

    /// The reason why it cannot be made of leased extents.
    pub(crate) fn why_not_by_leases(&self) -> Option<&'static str> {
        let flags = if self.is_synchronous() { self.flags & !libc::MAP_SYNC } else { self.flags };
        match (Request { flags, ..*self }).unserved_reason() {
            None if flags & libc::MAP_LOCKED != 0 => Some("it is locked (MAP_LOCKED)"),
            // The program may later allow stores to it, which are its own.
            None if !self.is_shared() => Some("it is private"),
            why => why,
        }
    }

    /// Whether the file is open for this access; if not, Linux chooses the error.
    pub(crate) fn is_allowed(&self, how: OFlags) -> bool {
        let mode = how & OFlags::RWMODE;
        let shares_stores = self.is_shared() && self.stores();
        !how.contains(OFlags::PATH) && (mode == OFlags::RDWR || (mode == OFlags::RDONLY && !shares_stores))
    }
}

/// mmap of a file.
pub(crate) fn map(fd: BorrowedFd<'_>, request: Request) -> Answer<usize> {
    let settings = Settings::of_this_process().filter(|settings| settings.cache.is_some())?;
    let (bytes, stat) = (request.bytes()?, fstat(fd).ok()?);
    if !is_regular(&stat) {
        return None;
    }
    let path = settings.path_under(fd)?;
    let how = fcntl_getfl(fd).ok()?;
    if !request.is_allowed(how) {
        return None;
    }
    if request.is_shared()
        && request.stores()
        && let Err(error) = preallocation::allocate(fd, &bytes)
    {
        return Some(Err(error));
    }
    let identity = identity_of(&stat);
    let linux_may_map_it_too = Process::current().is_some_and(Process::uses_page_cache);
    let why = match request.unserved_reason() {
        None if !linux_may_map_it_too && unserved_files::contains(identity) => {
            Some("another mapping of the file is not served")
        }
        why => why,
    };
    if why.is_some() && request.is_shared() && Process::current().is_none() {
        unserved_files::insert(identity);
    }
    let process = match why {
        Some(_) => Process::current()?,
        None => Process::start(settings)?,
    };
    let access = if how.contains(OFlags::RDWR) { Access::ReadWrite } else { Access::ReadOnly };
    let candidate = Candidate { process, fd, path: &path, identity, request, bytes, access };
    let mut table = process.table.lock();
    if let Some(why) = why {
        return candidate.unserved_beside(&table, why);
    }
    if process.uses_page_cache()
        && let Some(why) = request.why_linux_does_better(fd)
    {
        return candidate.unserved(why);
    }
    match candidate.file(&mut table) {
        Ok(file) => candidate.placed(&file),
        Err(answer) => answer,
    }
}

/// A mapping that vmio may serve.
struct Candidate<'a> {
    process: &'static Process,
    fd: BorrowedFd<'a>,
    path: &'a Path,
    identity: Identity,
    request: Request,
    /// The bytes of the file.
    bytes: Range<u64>,
    access: Access,
}

impl Candidate<'_> {
    /// Its file, opened if necessary; else the answer to the program.
    fn file(&self, table: &mut LockedTable<'_>) -> Result<Arc<File>, Answer<usize>> {
        let uses_page_cache = self.process.uses_page_cache();
        // With the managed engine Linux may later allow stores to a mapping for loads (mprotect).
        let stores = if uses_page_cache { self.request.is_shared() } else { self.request.stores() };
        let present = table.by_identity(self.identity);
        match present.map(|file| reopened(table, file, self.access, stores)).transpose() {
            Ok(Some(Some(file))) => return Ok(file),
            Ok(_) => {}
            Err(_) if uses_page_cache => return Err(self.unserved("it is mapped for loads only")),
            Err(error) => return Err(self.refused(error, "it is mapped for loads only")),
        }
        let opened = File::open(&self.process.cache, self.fd, self.path.to_owned(), self.access, self.bytes.end);
        let file = Arc::new(opened.map_err(|not_mapped| self.not_opened(not_mapped))?);
        sigbus::explain();
        add(&self.process.statistics.files, 1);
        table.insert(Arc::clone(&file));
        Ok(file)
    }

    fn not_opened(&self, NotMapped { error, opened }: NotMapped) -> Answer<usize> {
        let mut opened = opened;
        if opened.is_some() && locks::unless_locked(self.identity, || opened = None).is_none() {
            opened.into_iter().for_each(files_kept_open::keep);
        }
        match (errno::of(&error), &error) {
            // A lock that is not vmio's says nothing about who has the pages.
            (_, vmio::Error::InUse { holder: Holder::Stranger, .. }) if self.process.uses_page_cache() => {
                self.unserved(error)
            }
            // Another vmio process has it: neither would see the other's stores.
            (number @ Errno::AGAIN, _) => self.refused(number, error),
            _ => {
                // A file that the engine can never map need not be opened again.
                if self.request.is_shared()
                    || matches!(error, vmio::Error::Unsupported { by: vmio::UnsupportedBy::KernelEngine, .. })
                {
                    unserved_files::insert(self.identity);
                }
                self.unserved(error)
            }
        }
    }

    /// Gives the mapping its addresses.
    fn placed(&self, file: &File) -> Answer<usize> {
        let (request, bytes) = (self.request, &self.bytes);
        let place = || {
            file.adopt_length()?;
            let may_store = request.is_shared() && self.access == Access::ReadWrite && file.is_writable();
            let rights = Rights { is_writable: request.stores(), may_store };
            let address = file.windows().map(&file.mapping, bytes.clone(), rights)?;
            if request.flags & libc::MAP_POPULATE != 0 {
                // As with Linux, a failure is ignored.
                let _ = file.mapping.advise(file.within(bytes.clone()), Advice::WillNeed);
            }
            Ok(address)
        };
        match place() {
            Ok(address) => {
                add(&self.process.statistics.mappings, 1);
                let how = if request.stores() { "for loads and stores" } else { "for loads" };
                self.process.note(format_args!(
                    "{}: bytes {}..{} are mapped {how} at {address:#x}",
                    self.path.display(),
                    bytes.start,
                    bytes.end
                ));
                Some(Ok(address))
            }
            Err(Errno::BUSY) if self.process.uses_page_cache() => {
                self.unserved("it overlaps a mapping that is not served, or it is private")
            }
            Err(error) => self.refused(error, error),
        }
    }

    /// Lets Linux map it.
    fn unserved(&self, why: impl fmt::Display) -> Answer<usize> {
        add(&self.process.statistics.not_served, 1);
        self.process.note(format_args!("{}: not served: {why}", self.path.display()));
        None
    }

    /// Lets Linux map it, while vmio may have the file mapped at other addresses: Linux must see the stores made there.
    fn unserved_beside(&self, table: &LockedTable<'_>, why: &str) -> Answer<usize> {
        let is_shared = self.request.is_shared();
        self.unserved(why);
        if let Some(Err(error)) = table.by_identity(self.identity).map(|file| file.prepare_for_linux(is_shared)) {
            return Some(Err(error));
        }
        if is_shared && !self.process.uses_page_cache() {
            unserved_files::insert(self.identity);
        }
        None
    }

    /// Makes the program's mmap fail.
    fn refused(&self, number: Errno, why: impl fmt::Display) -> Answer<usize> {
        add(&self.process.statistics.not_served, 1);
        self.process.note(format_args!("{}: refused: {why}", self.path.display()));
        Some(Err(number))
    }
}

/// Reopens a file for stores that is mapped for loads only, if the program has nothing of it mapped just now.
fn reopened(
    table: &mut LockedTable<'_>,
    file: Arc<File>,
    access: Access,
    stores: bool,
) -> Result<Option<Arc<File>>, Errno> {
    let is_narrower = access == Access::ReadWrite && !file.is_writable();
    if is_narrower && file.is_idle() {
        // There are no stores to write.
        let _ = table.close(file);
        return Ok(None);
    }
    if is_narrower && stores { Err(Errno::AGAIN) } else { Ok(Some(file)) }
}

/// Fails an mmap with MAP_FIXED, if the range that the program wants is vmio's.
pub(crate) fn refuse_fixed_over_ours(addresses: Range<usize>) -> Answer<usize> {
    let process = Process::current()?;
    if !process.table.overlap(&addresses) {
        return None;
    }
    process.note(format_args!("mmap at {:#x} fails: a file is mapped there through vmio", addresses.start));
    Some(Err(Errno::NOMEM))
}

/// The part of a file at the address and length of a call.
struct Part {
    file: Arc<File>,
    place: Place,
    bytes: Range<u64>,
}

/// The part of a mapped file at an address. It stays there while the table is locked.
fn part_at(table: &LockedTable<'_>, address: usize, len: usize) -> Option<Result<Part, Errno>> {
    let (file, place) = table.by_address(address)?;
    let bytes = len.checked_next_multiple_of(vmio::PAGE_BYTES).and_then(|len| file.windows().bytes(place, len));
    Some(match bytes {
        Some(bytes) if address.is_multiple_of(vmio::PAGE_BYTES) => Ok(Part { file, place, bytes }),
        _ => Err(Errno::INVAL),
    })
}

/// The process and its table, if it has mapped anything.
fn lock_table() -> Option<(&'static Process, LockedTable<'static>)> {
    let process = Process::current().filter(|process| !process.table.is_empty())?;
    Some((process, process.table.lock()))
}

/// munmap, also of parts.
pub(crate) fn unmap(address: usize, len: usize) -> Answer<()> {
    let (process, mut table) = lock_table()?;
    let Some(part) = part_at(&table, address, len) else {
        // Linux would unmap addresses of a file's window, which another mapping might get.
        let overlaps = table.overlap(&(address..address.saturating_add(len)));
        return overlaps.then_some(Err(Errno::INVAL));
    };
    Some(part.and_then(|Part { file, place, bytes }| {
        if bytes.is_empty() {
            return Err(Errno::INVAL);
        }
        file.windows().unmap(&file.mapping, place, bytes);
        if file.is_idle() {
            close_unmapped(process, &mut table, file);
        }
        Ok(())
    }))
}

/// Closes a file when the program has unmapped all of it, and first writes its stores, so that other processes find them in the file.
/// Closing any descriptor ends the program's record locks (fcntl). So if it has some on the file, vmio closes the file later, when the
/// program closes a descriptor of it. Until then Linux does the calls on it.
fn close_unmapped(process: &Process, table: &mut LockedTable<'_>, file: Arc<File>) {
    let path = file.path.clone();
    let mut synced = if file.keeps_stores() { file.sync_all() } else { Ok(()) };
    let (identity, mut file) = (file.identity, Some(file));
    let closed = locks::unless_locked(identity, || file.take().map_or(Ok(()), |file| table.close(file)));
    synced = synced.and(closed.unwrap_or(Ok(())).map_err(|error| errno::of(&error)));
    if let Some(file) = file {
        synced = synced.and(file.give_up(0..u64::MAX).or_else(errno::unless_pinned));
    }
    if let Err(error) = synced {
        process.say(format_args!("{}: stores are lost: {error}", path.display()));
    }
}

/// Closes an unmapped file before the program closes a descriptor of it.
pub(crate) fn before_close(fd: BorrowedFd<'_>) -> Answer<()> {
    if files_kept_open::are_there()
        && let Ok(stat) = fstat(fd)
    {
        files_kept_open::release(identity_of(&stat));
    }
    let (process, mut table) = lock_table()?;
    let file = table.by_identity(identity_of(&fstat(fd).ok()?))?;
    if file.is_idle() {
        let path = file.path.clone();
        if let Err(error) = table.close(file) {
            process.say(format_args!("{}: stores are lost: {error}", path.display()));
        }
    }
    None
}

/// mremap.
pub(crate) fn remap(address: usize, old_len: usize, new_len: usize, flags: c_int) -> Answer<usize> {
    let (process, table) = lock_table()?;
    let part = part_at(&table, address, old_len)?;
    Some(part.and_then(|Part { file, place, bytes: old }| {
        if flags & !libc::MREMAP_MAYMOVE != 0 || old_len == 0 || new_len == 0 {
            process.note(format_args!("{}: mremap with flags {flags:#x} fails", file.path.display()));
            return Err(Errno::INVAL);
        }
        let new_len = (new_len as u64).checked_next_multiple_of(vmio::PAGE_BYTES as u64);
        let new_end = new_len.and_then(|len| old.start.checked_add(len)).ok_or(Errno::NOMEM)?;
        let mut windows = file.windows();
        if new_end > old.end && windows.rights(place).is_writable {
            file.preallocate(&(old.end..new_end))?;
        }
        if new_end <= old.end {
            if new_end < old.end {
                windows.unmap(&file.mapping, place, new_end..old.end);
            }
            return Ok(address);
        }
        if windows.extend(place, old.end..new_end) {
            return Ok(address);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno::NOMEM);
        }
        let rights = windows.rights(place);
        let moved = windows.map(&file.mapping, old.start..new_end, rights).map_err(|error| match error {
            Errno::BUSY => Errno::NOMEM,
            error => error,
        })?;
        windows.unmap(&file.mapping, place, old);
        Ok(moved)
    }))
}

/// msync of pages that are vmio's own.
pub(crate) fn sync(address: usize, len: usize, flags: c_int) -> Answer<()> {
    let part = part_with_own_pages(address, len)?;
    // As with Linux, MS_ASYNC begins nothing: the cache writes when it sees fit.
    Some(part.and_then(
        |Part { file, bytes, .. }| {
            if flags & libc::MS_SYNC == 0 || !file.is_writable() { Ok(()) } else { file.sync(bytes) }
        },
    ))
}

/// The error of an msync that Linux has done without one. Linux reports each failure of write-back once for an open file, and the background
/// reclaimer, which has the file in common with the mapping, may have got the report.
pub(crate) fn failed_before(address: usize, len: usize, flags: c_int) -> Answer<()> {
    if flags & libc::MS_SYNC == 0 {
        return None;
    }
    let (process, table) = lock_table()?;
    let has_failed = process.uses_page_cache()
        && table.overlapping(&(address..address.saturating_add(len))).any(|file| file.has_failed());
    has_failed.then_some(Err(Errno::IO))
}

/// madvise and posix_madvise.
pub(crate) fn advise(address: usize, len: usize, advice: c_int) -> Answer<()> {
    let (_, table) = lock_table()?;
    let part = part_at(&table, address, len);
    drop(table);
    if advice == libc::MADV_DONTNEED
        && let Some(Ok(Part { file, bytes, .. })) = &part
        && file.uses_page_cache()
    {
        // Linux only unmaps them, and fails by itself if it may not.
        let _ = file.mapping.advise(file.within(bytes.clone()), Advice::Cold);
        return None;
    }
    // Where pages are Linux's, vmio handles advice about reads only.
    let is_of_reads =
        matches!(advice, libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_WILLNEED);
    let part = part.filter(|part| !part.as_ref().is_ok_and(|part| part.file.uses_page_cache() && !is_of_reads))?;
    Some(part.and_then(|Part { file, bytes, .. }| {
        let advice = match advice {
            libc::MADV_NORMAL => Advice::Normal,
            libc::MADV_RANDOM => Advice::Random,
            libc::MADV_SEQUENTIAL => Advice::Sequential { window_bytes: 0 },
            libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Advice::WillNeed,
            libc::MADV_DONTNEED | libc::MADV_PAGEOUT => Advice::DontNeed,
            libc::MADV_COLD => Advice::Cold,
            // These change contents, and not only residency.
            libc::MADV_REMOVE | libc::MADV_FREE | libc::MADV_WIPEONFORK => return Err(Errno::INVAL),
            // Advice about huge pages, dumps and the like has no effect on a cache.
            _ => return Ok(()),
        };
        let within = file.within(bytes);
        if within.is_empty() {
            return Ok(());
        }
        match file.mapping.advise(within, advice) {
            // As with Linux, pages that cannot be written stay, and msync reports the error.
            Err(vmio::Error::Write { .. }) => Ok(()),
            // Pinned pages stay, too.
            Err(vmio::Error::System { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            // Linux reads later, if at all: the access that needs the page gets the error.
            Err(_) if file.uses_page_cache() => Ok(()),
            outcome => outcome.map_err(|error| errno::of(&error)),
        }
    }))
}

/// Like [`part_at`], for long calls, which do not keep the table locked. `None` where pages are Linux's.
fn part_with_own_pages(address: usize, len: usize) -> Option<Result<Part, Errno>> {
    let (_, table) = lock_table()?;
    part_at(&table, address, len).filter(|part| !part.as_ref().is_ok_and(|part| part.file.uses_page_cache()))
}

/// mprotect. It can allow stores, but cannot forbid them again, nor loads: see [`crate::windows`].
pub(crate) fn protect(address: usize, len: usize, protection: c_int) -> Answer<()> {
    let (process, table) = lock_table()?;
    let part = part_at(&table, address, len)?;
    let stores = protection & libc::PROT_WRITE != 0;
    if let Ok(Part { file, place, bytes }) = &part
        && stores
        && file.windows().rights(*place).may_store
        && let Err(error) = file.preallocate(bytes)
    {
        return Some(Err(error));
    }
    if part.as_ref().is_ok_and(|part| part.file.uses_page_cache()) {
        return None;
    }
    Some(part.and_then(|Part { file, place, .. }| {
        let mut windows = file.windows();
        let rights = windows.rights(place);
        if protection & libc::PROT_EXEC != 0 || (stores && !rights.may_store) {
            process.note(format_args!("{}: mprotect to {protection:#x} fails", file.path.display()));
            return Err(Errno::ACCESS);
        }
        match (stores, rights.is_writable) {
            (true, false) => return windows.make_writable(place),
            (false, true) => process.note(format_args!("{}: mprotect does not forbid stores", file.path.display())),
            _ if protection == libc::PROT_NONE => {
                process.note(format_args!("{}: mprotect does not forbid loads", file.path.display()));
            }
            _ => {}
        }
        Ok(())
    }))
}

/// mlock fails: the memory is the cache's, which may be smaller than the range that the program wants to lock.
pub(crate) fn lock(address: usize) -> Answer<()> {
    let (process, table) = lock_table()?;
    let (file, _) = table.by_address(address).filter(|(file, _)| !file.uses_page_cache())?;
    process.note(format_args!("{}: mlock fails", file.path.display()));
    Some(Err(Errno::AGAIN))
}

/// A call that has no effect on a mapped file succeeds.
pub(crate) fn succeed_on_ours(address: usize) -> Answer<()> {
    let (_, table) = lock_table()?;
    table.by_address(address).filter(|(file, _)| !file.uses_page_cache()).map(|_| Ok(()))
}
