//! Opening files for writing, and creating files.

use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fstat, openat, seek};
use rustix::io::{DupFlags, Errno, dup3};

use super::is_for_data;
use super::target::{Before, flush_data, flush_folder_of, is_under};
use crate::entry;
use crate::settings::Settings;

/// In rustix this is the name of O_SYNC.
const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as u32);

/// A file that the program has opened.
pub(crate) struct Opened {
    pub(crate) fd: c_int,
    /// Whether it has O_DSYNC without the program asking for it.
    pub(crate) is_made_durable: bool,
}

/// Opens the file at a path by a call that takes the flags. The name of the file is then durable; in sync mode its writes will be, too.
///
/// # Safety
/// The path is null or a C string.
pub(crate) unsafe fn open(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce(c_int) -> c_int,
) -> Result<Opened, Errno> {
    let asked = OFlags::from_bits_retain(flags as u32);
    if asked.contains(OFlags::PATH) {
        // An open with O_PATH creates nothing, and its descriptor can change nothing.
        return Ok(Opened { fd: call(flags), is_made_durable: false });
    }
    let is_for_stores = is_for_data() && asked & OFlags::RWMODE != OFlags::RDONLY && !asked.contains(DSYNC);
    let may_be_new = asked.contains(OFlags::CREATE) && !asked.contains(OFlags::TMPFILE);
    let before = if is_for_stores || may_be_new {
        // SAFETY: by the caller.
        entry::as_vmio(|| unsafe { Before::at(folder, path, asked) })
    } else {
        Before::default()
    };
    let is_made_durable = is_for_stores && before.is_under && (!before.is_special || asked.contains(OFlags::TMPFILE));
    let fd = call(if is_made_durable { flags | libc::O_DSYNC } else { flags });
    if fd < 0 {
        return Ok(Opened { fd, is_made_durable: false });
    }
    // SAFETY: it was just opened.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    let outcome = entry::as_vmio(|| {
        if !is_regular(opened) {
            return Ok(is_made_durable);
        }
        let is_under = is_under(opened);
        let is_to_be_durable = is_for_stores && is_under;
        // The file is not where we looked: a link led to a missing file.
        if is_to_be_durable && !is_made_durable {
            reopen(opened, DSYNC, OFlags::empty())?;
        } else if is_made_durable && !is_to_be_durable {
            return Ok(reopen(opened, OFlags::empty(), DSYNC).is_err());
        }
        if is_under && may_be_new && !before.is(opened) {
            flush_folder_of(opened)?;
        } else if is_under && asked.contains(OFlags::TRUNC) {
            flush_data(opened)?;
        }
        Ok(is_to_be_durable)
    });
    match outcome {
        Ok(is_made_durable) => Ok(Opened { fd, is_made_durable }),
        Err(error) => {
            // SAFETY: nobody else has the descriptor yet.
            unsafe { rustix::io::close(fd) };
            Err(error)
        }
    }
}

/// Makes the writes of a stream durable that the C library has opened, and the name of a new file.
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
        let flags = fcntl_getfl(opened)?;
        if flags & OFlags::RWMODE != OFlags::RDONLY {
            if !flags.contains(DSYNC) {
                reopen(opened, DSYNC, OFlags::empty())?;
            }
            // The open may have cut the file.
            flush_data(opened)?;
        }
        if is_new { flush_folder_of(opened) } else { Ok(()) }
    })
}

/// Replaces the description of a descriptor by another of the same file, with some flags added and others removed.
fn reopen(fd: BorrowedFd<'_>, with: OFlags, without: OFlags) -> Result<(), Errno> {
    let once = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::TMPFILE;
    let flags = (fcntl_getfl(fd)? | with).difference(once | without);
    let closes = rustix::io::fcntl_getfd(fd)?.contains(rustix::io::FdFlags::CLOEXEC);
    let again = Settings::with_link(fd, |link| openat(CWD, link, flags | OFlags::CLOEXEC, Mode::empty()))?;
    seek(&again, SeekFrom::Start(seek(fd, SeekFrom::Current(0))?))?;
    // SAFETY: the descriptor keeps its file and position, as far as its users see.
    let mut same = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
    dup3(&again, &mut same, if closes { DupFlags::CLOEXEC } else { DupFlags::empty() })
}

fn is_regular(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}
