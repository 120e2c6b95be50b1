//! SIGBUS in mapped files: the access is tried again, or a message gives the reason. With `--on-full wait` a program whose disk is full
//! waits until there is space. Pages that a reader thread could not read get another try, since they may be readable by now.
//!
//! The handler runs in the signal, without allocations and locks, except [`adopt_length`]. [`Watched`] runs in calls of the program's.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::thread::{Timespec, nanosleep};
use vmio::{PAGE_BYTES, Unavailable, WhyUnavailable};

use crate::entry::{self, Answer};
use crate::messages;
use crate::process::Process;
use crate::settings::Settings;
use crate::unshared_fd_thread;

/// Files that can be watched; there are no messages about others.
const WATCHED_MAX: usize = 256;
/// How often to retry a store to one page while there is space for the page.
const TRIES_MAX: u32 = 8;
/// The largest folio of the page cache, all of which XFS allocates at a store.
const FOLIO_BYTES_MAX: u64 = 2 << 20;
/// The time between two attempts to get space on a full disk.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A file, and the addresses at which it is mapped.
struct WatchedFile {
    /// 0 for none; [`BEING_FILLED`] while the rest is not valid yet.
    base: AtomicUsize,
    bytes: AtomicU64,
    fd: AtomicI32,
    /// Whether its pages are those of Linux's page cache.
    uses_page_cache: AtomicBool,
    /// The identity of the file: a forked child may close the descriptor and use its number for another file.
    device: AtomicU64,
    inode: AtomicU64,
    /// The messages printed about it, a bit for each reason.
    said: AtomicU32,
    /// The page that was last given space, and the number of stores to it tried again.
    last_page: AtomicU64,
    tries: AtomicU32,
}

const BEING_FILLED: usize = 1;

static WATCHED_FILES: [WatchedFile; WATCHED_MAX] = [const {
    WatchedFile {
        base: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
        uses_page_cache: AtomicBool::new(false),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        said: AtomicU32::new(0),
        last_page: AtomicU64::new(u64::MAX),
        tries: AtomicU32::new(0),
    }
}; WATCHED_MAX];

/// While it exists, messages explain faults of a file.
pub(crate) struct Watched(Option<&'static WatchedFile>);

impl Watched {
    /// Watches `bytes` of address space from `base` on, where the file behind `fd` is mapped from its beginning, by Linux or by vmio's own
    /// pages.
    pub(crate) fn new(base: usize, bytes: u64, fd: BorrowedFd<'_>, uses_page_cache: bool) -> Self {
        // SAFETY: `resolve_or_explain` does as handlers of signals must.
        if unsafe { vmio::on_unresolved_sigbus(resolve_or_explain) }.is_err() {
            return Watched(None);
        }
        let Ok(stat) = fstat(fd) else { return Watched(None) };
        let claim = |watched: &&WatchedFile| {
            watched.base.compare_exchange(0, BEING_FILLED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        // A forked child inherits its parent's entries, with their messages.
        let inherited = WATCHED_FILES.iter().find(|watched| watched.base.load(Ordering::Relaxed) == base);
        let watched = inherited.or_else(|| WATCHED_FILES.iter().find(claim));
        if let Some(watched) = watched {
            watched.bytes.store(bytes, Ordering::Relaxed);
            watched.fd.store(fd.as_raw_fd(), Ordering::Relaxed);
            watched.uses_page_cache.store(uses_page_cache, Ordering::Relaxed);
            watched.device.store(stat.st_dev, Ordering::Relaxed);
            watched.inode.store(stat.st_ino, Ordering::Relaxed);
            if inherited.is_none() {
                watched.said.store(0, Ordering::Relaxed);
            }
            watched.last_page.store(u64::MAX, Ordering::Relaxed);
            watched.base.store(base, Ordering::Release);
        }
        Watched(watched)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watched) = self.0 {
            watched.base.store(0, Ordering::Release);
        }
    }
}

/// A message about a fault.
#[derive(Clone, Copy)]
enum Message {
    Shorter {
        len: u64,
    },
    NotRead,
    NoRoom(Errno),
    /// There is no space, and the access is tried again until there is.
    ProgramWaits(Errno),
    NotStored,
    /// The cache is full of pages that cannot be written.
    CacheIsFull(Errno),
}

impl WatchedFile {
    /// The byte of the file at an address.
    fn offset_of(&self, address: usize) -> Option<u64> {
        let base = self.base.load(Ordering::Acquire);
        let offset = address.checked_sub(base).filter(|_| base > BEING_FILLED)? as u64;
        (offset < self.bytes.load(Ordering::Relaxed)).then_some(offset)
    }

    /// The file and its length; `None` if the descriptor is another file's by now, which vmio must not touch.
    fn file(&self) -> Option<(BorrowedFd<'static>, u64)> {
        // SAFETY: the file is open while it is watched, except in a forked child, where the calls fail for a closed number.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) };
        let stat = fstat(fd).ok()?;
        let is_same =
            (stat.st_dev, stat.st_ino) == (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        is_same.then_some((fd, stat.st_size as u64))
    }

    /// Prints a message, once for each file and reason.
    fn say(&self, fd: BorrowedFd<'_>, message: Message, offset: u64) {
        let bit = match message {
            Message::Shorter { .. } => 1,
            Message::NotRead => 2,
            Message::NoRoom(_) => 4,
            Message::ProgramWaits(_) => 8,
            Message::NotStored => 16,
            Message::CacheIsFull(_) => 32,
        };
        if self.said.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        // Its stack has space for a path and a message, which the handler's may not have.
        unshared_fd_thread::run(|| Settings::with_path(fd, |path| say(path, message, offset)));
    }
}

fn say(path: &Path, message: Message, offset: u64) {
    let path = path.display();
    match message {
        Message::Shorter { len } => messages::say(format_args!(
            "SIGBUS: {path} was made shorter while it was mapped: it ends at byte {len}, and the program touched byte {offset}"
        )),
        Message::NotRead => {
            messages::say(format_args!("SIGBUS: cannot read byte {offset} of {path} from its device (see dmesg)"))
        }
        Message::NoRoom(error) => messages::say(format_args!(
            "SIGBUS: the disk has no space for a store to byte {offset} of {path}: {error}; with --on-full wait the program waits for space"
        )),
        Message::ProgramWaits(error) => messages::say(format_args!(
            "the program waits: the disk has no space for a store to byte {offset} of {path}: {error}"
        )),
        Message::NotStored => messages::say(format_args!(
            "SIGBUS: a store to byte {offset} of {path} fails though the disk has space (see dmesg)"
        )),
        Message::CacheIsFull(error) => messages::say(format_args!(
            "SIGBUS: the cache cannot write its dirty pages, and has no space for byte {offset} of {path}: {error}; with --engine managed and --on-full wait the program waits for space on the disk"
        )),
    }
}

/// Handles a SIGBUS that nobody else handles; true to try the access again.
fn resolve_or_explain(address: usize, is_store: bool) -> bool {
    // The calls that the cache makes are vmio's own.
    let refused = match entry::as_vmio(|| vmio::fault_again(address, is_store)) {
        Some(Ok(())) => return true,
        Some(Err(refused)) => Some(refused),
        None => None,
    };
    // The cache knows the file's main addresses, whichever window the fault is in.
    let known_at = refused.map_or(address, |refused| refused.mapping + refused.offset as usize + address % PAGE_BYTES);
    let Some((watched, offset)) =
        WATCHED_FILES.iter().find_map(|watched| Some((watched, watched.offset_of(known_at)?)))
    else {
        return false;
    };
    let Some((fd, len)) = watched.file() else { return false };
    let page = offset / PAGE_BYTES as u64;
    if let Some(Unavailable { why: WhyUnavailable::BehindEnd, .. }) = refused
        && page < len.div_ceil(PAGE_BYTES as u64)
        && entry::enter(|| adopt_length(address)).is_some_and(|adopted| adopted.is_ok())
    {
        return entry::as_vmio(|| vmio::fault_again(address, is_store)).is_some_and(|outcome| outcome.is_ok());
    }
    if page >= len.div_ceil(PAGE_BYTES as u64) {
        watched.say(fd, Message::Shorter { len }, offset);
        return false;
    }
    if let Some(Unavailable { why: WhyUnavailable::NotWritten(number), .. }) = refused {
        let error = if number == 0 { Errno::IO } else { Errno::from_raw_os_error(number) };
        watched.say(fd, Message::CacheIsFull(error), offset);
        return false;
    }
    if !is_store || refused.is_some() {
        watched.say(fd, Message::NotRead, offset);
        return false;
    }
    let uses_page_cache = watched.uses_page_cache.load(Ordering::Relaxed);
    let waits = Settings::of_this_process().is_some_and(|settings| settings.waits_for_space);
    let tries = watched.tries_of(page);
    let space = space_for(page, tries, len);
    match retry_on_intr(|| fallocate(fd, FallocateFlags::KEEP_SIZE, space.start, space.end - space.start)) {
        Ok(()) if tries < TRIES_MAX && uses_page_cache => {
            watched.tries.store(tries + 1, Ordering::Relaxed);
            true
        }
        Ok(()) => {
            watched.tries.store(0, Ordering::Relaxed);
            watched.say(fd, Message::NotStored, offset);
            false
        }
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) if waits => {
            watched.say(fd, Message::ProgramWaits(error), offset);
            let time = Timespec { tv_sec: 0, tv_nsec: RETRY_AFTER.subsec_nanos().into() };
            let _ = nanosleep(&time);
            // The repeated store finds out whether there is space by now. Before it the thread gets its pending signals.
            true
        }
        Err(error) => {
            watched.say(fd, Message::NoRoom(error), offset);
            false
        }
    }
}

/// Tells the mapping at an address about a length that another process has given the file. Takes locks and may allocate, as calls of the
/// program's do. The thread could wait for itself only in a program whose allocator works in a mapped file.
fn adopt_length(address: usize) -> Answer<()> {
    let (file, _) = Process::current()?.table.lock().by_address(address)?;
    Some(file.adopt_length().map(drop))
}

impl WatchedFile {
    /// How often in a row a store to a page with space was tried again.
    fn tries_of(&self, page: u64) -> u32 {
        if self.last_page.swap(page, Ordering::Relaxed) != page {
            self.tries.store(0, Ordering::Relaxed);
        }
        self.tries.load(Ordering::Relaxed)
    }
}

/// The range that needs space for a store to a page: the page itself or, if that was not enough, all of the folio that it may be in.
fn space_for(page: u64, tries: u32, len: u64) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    let start = page * page_bytes;
    if tries == 0 {
        return start..start + page_bytes;
    }
    let start = start / FOLIO_BYTES_MAX * FOLIO_BYTES_MAX;
    start..(start + FOLIO_BYTES_MAX).min(len.next_multiple_of(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_space_gets_it_with_its_folio() {
        let page = PAGE_BYTES as u64;
        assert_eq!(space_for(513, 0, 600 * page), 513 * page..514 * page);
        assert_eq!(space_for(513, 1, 600 * page - 5), 512 * page..600 * page);
        assert_eq!(space_for(3, 1, u64::MAX - page), 0..FOLIO_BYTES_MAX);
    }
}
