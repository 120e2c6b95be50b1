//! The files of which messages explain faults, and these messages.
//!
//! [`Watched`] runs in calls of the program's. All else runs in the handler of SIGBUS, without allocations and locks.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::fstat;
use rustix::io::Errno;

use crate::messages;
use crate::settings::Settings;
use crate::unshared_fd_thread;

/// Files that can be watched; there are no messages about others.
const WATCHED_MAX: usize = 256;

/// A file, and the addresses at which it is mapped.
pub(crate) struct WatchedFile {
    /// 0 for none; [`BEING_FILLED`] while the rest is not valid yet.
    base: AtomicUsize,
    bytes: AtomicU64,
    fd: AtomicI32,
    /// Whether its pages are those of Linux's page cache.
    pub(crate) uses_page_cache: AtomicBool,
    /// The identity of the file: a forked child may close the descriptor and use its number for another file.
    device: AtomicU64,
    inode: AtomicU64,
    /// The messages printed about it, a bit for each reason.
    said: AtomicU32,
    /// The page that was last given space, and the number of stores to it tried again.
    last_page: AtomicU64,
    pub(crate) tries: AtomicU32,
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
pub(crate) enum Message {
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

/// The watched file that has an address, and the byte of the file there.
pub(crate) fn find(address: usize) -> Option<(&'static WatchedFile, u64)> {
    WATCHED_FILES.iter().find_map(|watched| Some((watched, watched.offset_of(address)?)))
}

impl WatchedFile {
    /// The byte of the file at an address.
    fn offset_of(&self, address: usize) -> Option<u64> {
        let base = self.base.load(Ordering::Acquire);
        let offset = address.checked_sub(base).filter(|_| base > BEING_FILLED)? as u64;
        (offset < self.bytes.load(Ordering::Relaxed)).then_some(offset)
    }

    /// The file and its length; `None` if the descriptor is another file's by now, which vmio must not touch.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'static>, u64)> {
        // SAFETY: the file is open while it is watched, except in a forked child, where the calls fail for a closed number.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) };
        let stat = fstat(fd).ok()?;
        let is_same =
            (stat.st_dev, stat.st_ino) == (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        is_same.then_some((fd, stat.st_size as u64))
    }

    /// Prints a message, once for each file and reason.
    pub(crate) fn say(&self, fd: BorrowedFd<'_>, message: Message, offset: u64) {
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

    /// How often in a row a store to a page with space was tried again.
    pub(crate) fn tries_of(&self, page: u64) -> u32 {
        if self.last_page.swap(page, Ordering::Relaxed) != page {
            self.tries.store(0, Ordering::Relaxed);
        }
        self.tries.load(Ordering::Relaxed)
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
