//! What vmio says: on the standard error output that the program began with, and nowhere else.
//!
//! A program closes its descriptor 2, and the number becomes a data file's. So a process that uses files under the folders keeps a
//! duplicate, and in any other the descriptor is looked at before each message. The others keep none: whoever reads a pipe to its end
//! would wait for a daemon that has closed its own end.
//!
//! Nothing here is allocated.

use std::fmt;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::stderr;

use crate::own_descriptors;

/// The duplicate's number, or more: programs that choose the numbers of their own descriptors, as shells do, choose lower ones.
const FROM: RawFd = 512;
/// The longest message: a path, and what is said of it.
const BYTES_MAX: usize = 4096 + 512;

/// Whether there was one when the program began, and which file it was.
static WAS_OPEN: AtomicBool = AtomicBool::new(false);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// The duplicate; -1 for none.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// The library has been loaded.
pub(crate) fn start() {
    if let Ok(stat) = fstat(stderr()) {
        DEVICE.store(stat.st_dev, Ordering::Relaxed);
        INODE.store(stat.st_ino, Ordering::Relaxed);
        WAS_OPEN.store(true, Ordering::Release);
    }
}

/// Keeps it for the time when the program has closed its own.
pub(crate) fn keep() {
    if KEPT.load(Ordering::Acquire) >= 0 || !is_it(stderr()) {
        return;
    }
    // There may not be so many.
    let duplicate = fcntl_dupfd_cloexec(stderr(), FROM).or_else(|_| fcntl_dupfd_cloexec(stderr(), 3));
    let Some(duplicate) = duplicate.ok().filter(is_kept_from_the_program) else { return };
    let fd = duplicate.as_raw_fd();
    match KEPT.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => _ = duplicate.into_raw_fd(),
        Err(_) => own_descriptors::remove(fd),
    }
}

/// Whether the process has kept it.
pub(crate) fn are_kept() -> bool {
    KEPT.load(Ordering::Acquire) >= 0
}

fn is_kept_from_the_program(fd: &OwnedFd) -> bool {
    own_descriptors::insert(fd.as_raw_fd())
}

/// In a forked child, which may close all else that is its parent's.
pub(crate) fn are_the_childs() {
    let fd = KEPT.load(Ordering::Acquire);
    if fd >= 0 {
        own_descriptors::insert(fd);
    }
}

/// The process has become a daemon: who reads what others say there does not wait for it.
pub(crate) fn give_up() {
    let fd = KEPT.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        own_descriptors::remove(fd);
        // SAFETY: it is ours, and from here on nobody uses it.
        unsafe { rustix::io::close(fd) };
    }
}

/// Whether a descriptor is of what the program began with.
fn is_it(fd: BorrowedFd<'_>) -> bool {
    let is_same = |stat: rustix::fs::Stat| {
        (stat.st_dev, stat.st_ino) == (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed))
    };
    WAS_OPEN.load(Ordering::Acquire) && fstat(fd).is_ok_and(is_same)
}

/// Writes a line or more in one call, so that those of several threads stay whole. If nobody listens any more, that is all right.
pub(crate) fn write(text: &[u8]) {
    let kept = Some(KEPT.load(Ordering::Acquire)).filter(|fd| *fd >= 0);
    // SAFETY: it is never closed but by instructions of the program's own, and looked at before it is used.
    let kept = kept.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let found = kept.into_iter().chain([stderr()]).find(|fd| is_it(*fd));
    if let Some(fd) = found {
        let _ = rustix::io::write(fd, text);
    }
}

/// Says something, as far as it fits.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    write_formatted(format_args!("vmio run: {what}\n"));
}

/// The same of whole lines.
pub(crate) fn write_formatted(text: fmt::Arguments<'_>) {
    let mut buffer = [0; BYTES_MAX];
    let mut rest = &mut buffer[..];
    let _ = rest.write_fmt(text);
    let written = BYTES_MAX - rest.len();
    write(&buffer[..written]);
}
