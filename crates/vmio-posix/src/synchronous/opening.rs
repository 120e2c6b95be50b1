//! Files that are opened for stores, and new ones.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fstat, openat, seek};
use rustix::io::{DupFlags, Errno, dup3};

use super::is_for_data;
use super::target::{flush_data, flush_folder_of, is_under};
use crate::entry;
use crate::settings::Settings;

/// A file that the program has opened.
pub(crate) struct Opened {
    pub(crate) fd: c_int,
    /// Whether it has O_DSYNC, and the program did not ask for that.
    pub(crate) is_made_durable: bool,
}

/// Opens a file by a call that takes the flags: its data will be durable if they are to be, and its name is.
pub(crate) fn open(flags: c_int, call: impl Fn(c_int) -> c_int) -> Result<Opened, Errno> {
    let is_for_stores = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
    let is_made_durable = is_for_data() && is_for_stores && flags & libc::O_DSYNC == 0;
    let flags = if is_made_durable { flags | libc::O_DSYNC } else { flags };
    let (fd, is_new) = create(flags, call);
    if fd < 0 {
        return Ok(Opened { fd, is_made_durable: false });
    }
    // SAFETY: it was just opened.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    let outcome = entry::as_vmio(|| {
        if !is_regular(opened) {
            return Ok(false);
        }
        if !is_under(opened) {
            return Ok(is_made_durable && reopen(opened, OFlags::empty(), OFlags::DSYNC).is_err());
        }
        if is_new {
            flush_folder_of(opened)?;
        } else if flags & libc::O_TRUNC != 0 {
            flush_data(opened)?;
        }
        Ok(is_made_durable)
    });
    match outcome {
        Ok(is_made_durable) => Ok(Opened { fd, is_made_durable }),
        Err(error) => {
            // SAFETY: nobody knows of it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            Err(error)
        }
    }
}

/// The descriptor, and whether it is that of a file that was not there before.
fn create(flags: c_int, call: impl Fn(c_int) -> c_int) -> (c_int, bool) {
    if flags & libc::O_CREAT == 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return (call(flags), false);
    }
    if flags & libc::O_EXCL != 0 {
        return (call(flags), true);
    }
    let fd = call(flags & !libc::O_CREAT);
    // SAFETY: the address of the thread's errno is always valid.
    if fd < 0 && unsafe { *libc::__errno_location() } == libc::ENOENT {
        return (call(flags), true);
    }
    // SAFETY: it was just opened.
    if fd >= 0 && fstat(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok_and(|stat| is_folder(stat.st_mode)) {
        // SAFETY: nobody knows of it. It cannot be opened so, and the call says why.
        unsafe { libc::syscall(libc::SYS_close, fd) };
        return (call(flags), false);
    }
    (fd, false)
}

/// The C library has opened a stream on a file: what it writes is to be durable, and the name of a new one is.
pub(crate) fn opened_stream(fd: c_int, is_new: bool) -> Result<(), Errno> {
    if fd < 0 {
        return Ok(());
    }
    // SAFETY: the stream has it open.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    entry::as_vmio(|| {
        if !is_regular(opened) || !is_under(opened) {
            return Ok(());
        }
        if fcntl_getfl(opened)? & OFlags::RWMODE != OFlags::RDONLY {
            reopen(opened, OFlags::DSYNC, OFlags::empty())?;
            // It may have been cut.
            flush_data(opened)?;
        }
        if is_new { flush_folder_of(opened) } else { Ok(()) }
    })
}

/// Puts another description of the same file behind a descriptor, with these flags and without those.
fn reopen(fd: BorrowedFd<'_>, with: OFlags, without: OFlags) -> Result<(), Errno> {
    let once = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::TMPFILE;
    let flags = (fcntl_getfl(fd)? | with).difference(once | without);
    let closes = rustix::io::fcntl_getfd(fd)?.contains(rustix::io::FdFlags::CLOEXEC);
    let again = Settings::with_link(fd, |link| openat(CWD, link, flags | OFlags::CLOEXEC, Mode::empty()))?;
    seek(&again, SeekFrom::Start(seek(fd, SeekFrom::Current(0))?))?;
    // SAFETY: who has it open finds the same file behind it, at the same place.
    let mut same = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
    dup3(&again, &mut same, if closes { DupFlags::CLOEXEC } else { DupFlags::empty() })
}

fn is_regular(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

fn is_folder(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Directory
}
