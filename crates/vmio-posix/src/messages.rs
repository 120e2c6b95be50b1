//! vmio's messages, on the standard error output with which the program was started, and nowhere else.
//!
//! A program may close descriptor 2, and its number may become a data file's. So a process that uses files under the folders keeps a
//! duplicate. In any other process the descriptor is checked before each message: a duplicate there would keep a pipe open, whose reader would
//! wait for a daemon that has closed its own end.
//!
//! Nothing here allocates.

use std::fmt;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::stderr;

use crate::own_descriptors;

/// The duplicate's lowest number: programs that choose the numbers of their own descriptors, as shells do, choose lower ones.
const FROM: RawFd = 512;
/// The longest message: a path and a sentence.
const BYTES_MAX: usize = 4096 + 512;

/// Whether standard error was open when the program started, and its file.
static WAS_OPEN: AtomicBool = AtomicBool::new(false);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// The duplicate; -1 for none.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Remembers the standard error output, when the library is loaded.
pub(crate) fn start() {
    if let Ok(stat) = fstat(stderr()) {
        DEVICE.store(stat.st_dev, Ordering::Relaxed);
        INODE.store(stat.st_ino, Ordering::Relaxed);
        WAS_OPEN.store(true, Ordering::Release);
    }
}

/// Keeps a duplicate, since the program may close its own descriptor.
pub(crate) fn keep() {
    if KEPT.load(Ordering::Acquire) >= 0 || !is_it(stderr()) {
        return;
    }
    // The limit may be lower.
    let duplicate = fcntl_dupfd_cloexec(stderr(), FROM).or_else(|_| fcntl_dupfd_cloexec(stderr(), 3));
    let Some(duplicate) = duplicate.ok().filter(is_kept_from_the_program) else { return };
    let fd = duplicate.as_raw_fd();
    match KEPT.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => _ = duplicate.into_raw_fd(),
        Err(_) => own_descriptors::remove(fd),
    }
}

/// Whether the process has a duplicate.
pub(crate) fn are_kept() -> bool {
    KEPT.load(Ordering::Acquire) >= 0
}

fn is_kept_from_the_program(fd: &OwnedFd) -> bool {
    own_descriptors::insert(fd.as_raw_fd())
}

/// Records the duplicate again in a forked child, which may close its parent's other descriptors.
pub(crate) fn belongs_to_child() {
    let fd = KEPT.load(Ordering::Acquire);
    if fd >= 0 {
        own_descriptors::insert(fd);
    }
}

/// Closes the duplicate when the process becomes a daemon, so that readers of a pipe do not wait for the daemon.
pub(crate) fn give_up() {
    let fd = KEPT.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        own_descriptors::remove(fd);
        // SAFETY: it is ours, and nobody uses it from here on.
        unsafe { rustix::io::close(fd) };
    }
}

/// Whether a descriptor refers to the file that standard error was at the start.
fn is_it(fd: BorrowedFd<'_>) -> bool {
    let is_same = |stat: rustix::fs::Stat| {
        (stat.st_dev, stat.st_ino) == (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed))
    };
    WAS_OPEN.load(Ordering::Acquire) && fstat(fd).is_ok_and(is_same)
}

/// Writes lines in one call, so that those of several threads do not mix. Errors are ignored.
pub(crate) fn write(text: &[u8]) {
    let kept = Some(KEPT.load(Ordering::Acquire)).filter(|fd| *fd >= 0);
    // SAFETY: only raw system calls of the program could close it, and `is_it` checks it before its use.
    let kept = kept.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let found = kept.into_iter().chain([stderr()]).find(|fd| is_it(*fd));
    if let Some(fd) = found {
        let _ = rustix::io::write(fd, text);
    }
}

/// Prints a message, cut to the longest length.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    write_formatted(format_args!("vmio run: {what}\n"));
}

/// Prints whole lines, cut to the longest length.
pub(crate) fn write_formatted(text: fmt::Arguments<'_>) {
    let mut buffer = [0; BYTES_MAX];
    let mut rest = &mut buffer[..];
    let _ = rest.write_fmt(text);
    let written = BYTES_MAX - rest.len();
    write(&buffer[..written]);
}
