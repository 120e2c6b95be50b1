//! A forked child has a heap of its own, with the contents of its parent's: a private mapping of a copy of the file.
//!
//! The parent makes the copy before the fork, so that stores of the one do not reach the other. If the file system can share blocks between
//! files, that takes no time.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};

use crate::memory::HeapMemory;

/// Longer than any message.
const LINE_BYTES_MAX: usize = 200;

thread_local! {
    /// The copy for the child of this thread's present fork; -1 if there is none.
    static COPY: Cell<RawFd> = const { Cell::new(-1) };
}

/// The heap of this process.
static HEAP: OnceLock<&HeapMemory> = OnceLock::new();

/// Whether this process's heap is such a private mapping. The kernel copies it for its own children.
static IS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Registers the handlers for forks of this process, which has this heap.
pub(crate) fn follow(heap: &'static HeapMemory) {
    let _ = HEAP.set(heap);
    // SAFETY: the functions exist as long as the process: nothing unloads the library.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

extern "C" fn before() {
    if IS_PRIVATE.load(Ordering::Relaxed) {
        return;
    }
    let Some(heap) = HEAP.get() else { return };
    match copy(heap) {
        Ok(copy) => COPY.set(copy.into_raw_fd()),
        Err(error) => say("no copy of the heap for a forked process", &error),
    }
}

extern "C" fn in_parent() {
    drop(take_copy());
}

extern "C" fn in_child() {
    if IS_PRIVATE.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(heap) = HEAP.get() else { return };
    let mapped = take_copy().ok_or(io::Error::from(io::ErrorKind::NotFound)).and_then(|copy| map(heap, copy.as_fd()));
    if let Err(error) = mapped {
        say("a forked process ends, since it has no heap", &error);
        std::process::abort();
    }
}

fn take_copy() -> Option<OwnedFd> {
    let copy = COPY.replace(-1);
    // SAFETY: the number comes from an OwnedFd, and each process takes it once.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A file without a name, with the heap's contents. Both files use the page cache, so nothing need be written before.
fn copy(heap: &HeapMemory) -> io::Result<OwnedFd> {
    let length = heap.length;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(&heap.folder, c".", flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&copy, length as u64)?;
    if rustix::fs::ioctl_ficlone(&copy, &heap.file).is_err() {
        copy_data(heap.file.as_fd(), copy.as_fd(), length as u64)?;
    }
    Ok(copy)
}

/// Copies the file without its holes.
fn copy_data(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: u64) -> io::Result<()> {
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            other => other?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        let (mut read_at, mut write_at) = (start, start);
        while read_at < end {
            let wanted = (end - read_at) as usize;
            if rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), wanted)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// Maps the copy at the heap's addresses.
fn map(heap: &HeapMemory, copy: BorrowedFd<'_>) -> io::Result<()> {
    let (start, length) = (heap.start, heap.length);
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
    // SAFETY: the range is the heap's, of which the child has inherited no memory. Everything that its pointers refer to is in the copy.
    unsafe { rustix::mm::mmap(start as *mut _, length, protection, flags, copy, 0) }?;
    Ok(())
}

/// Prints an error without an allocation: the child has no heap, and its parent's may have been in the middle of anything. So the message
/// has the error's number.
fn say(what: &str, error: &io::Error) {
    let mut line = Line::default();
    let written = match error.raw_os_error() {
        Some(number) => writeln!(line, "vmio: {what}: error {number} of the system"),
        None => writeln!(line, "vmio: {what}: {:?}", error.kind()),
    };
    if written.is_ok() {
        let _ = rustix::io::write(rustix::stdio::stderr(), line.bytes());
    }
}

/// A line of text on the stack.
struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    len: usize,
}

impl Line {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for Line {
    fn default() -> Self {
        Line { bytes: [0; LINE_BYTES_MAX], len: 0 }
    }
}

impl Write for Line {
    /// Appends text; an error if the text is too long.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
