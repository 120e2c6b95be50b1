//! What a call is about to change, and is flushed after it.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use rustix::fs::{CWD, Mode, OFlags, fdatasync, fsync, openat, sync};
use rustix::io::Errno;

use super::FLUSHES;
use crate::settings::Settings;

/// Linux's PATH_MAX.
const PATH_BYTES: usize = 4096;

/// Something under the folders.
pub(crate) enum Target {
    /// It could be opened.
    Opened(OwnedFd),
    /// It is the program's descriptor.
    OfProgram(c_int),
    /// It can only be flushed with everything else: this user may change it and not read it.
    Everything,
}

impl Target {
    /// The folder that has the name at the end of a path.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn folder_of(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        let path = unsafe { string(path) }?;
        let mut buffer = [0; PATH_BYTES];
        Self::open(folder, parent(path.to_bytes(), &mut buffer)?, OFlags::DIRECTORY)
    }

    /// The file or folder at a path, or where a link there leads to.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn at(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        Self::open(folder, unsafe { string(path) }?, OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    /// The same; a link stands for itself.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn at_itself(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        let path = unsafe { string(path) }?;
        match Self::open(folder, path, OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW) {
            // What is flushed of links is the journal that they are in.
            None => {
                match openat(of_folder(folder)?, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                {
                    Ok(link) if is_under(link.as_fd()) => Some(Target::Everything),
                    _ => None,
                }
            }
            found => found,
        }
    }

    /// What a descriptor of the program's is open for.
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        // SAFETY: the program has it open during its call, or gets its error.
        (fd >= 0 && is_under(unsafe { BorrowedFd::borrow_raw(fd) })).then_some(Target::OfProgram(fd))
    }

    fn open(folder: c_int, path: &CStr, flags: OFlags) -> Option<Self> {
        let folder = of_folder(folder)?;
        let open = |how| openat(folder, path, flags | how | OFlags::CLOEXEC, Mode::empty());
        let opened = match open(OFlags::RDONLY) {
            Err(Errno::ACCESS) if !flags.contains(OFlags::DIRECTORY) => open(OFlags::WRONLY),
            other => other,
        };
        match opened {
            Ok(opened) => is_under(opened.as_fd()).then_some(Target::Opened(opened)),
            Err(Errno::ACCESS) => {
                let found = openat(folder, path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
                is_under(found.as_fd()).then_some(Target::Everything)
            }
            // Then the call fails as well, or it is nothing that has data.
            Err(_) => None,
        }
    }

    /// Returns when what was changed is durable.
    pub(super) fn flush(&self) -> Result<(), Errno> {
        FLUSHES.fetch_add(1, Ordering::Relaxed);
        match self {
            Target::Opened(opened) => fsync(opened),
            // SAFETY: the program has it open during its call.
            Target::OfProgram(fd) => fsync(unsafe { BorrowedFd::borrow_raw(*fd) }),
            Target::Everything => {
                sync();
                Ok(())
            }
        }
    }
}

/// Flushes the folder that an open file is in.
pub(super) fn flush_folder_of(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let folder = Settings::with_path(fd, |path| {
        let mut buffer = [0; PATH_BYTES];
        let parent = parent(path.as_os_str().as_bytes(), &mut buffer)?;
        Target::open(libc::AT_FDCWD, parent, OFlags::DIRECTORY)
    });
    folder.flatten().map_or(Ok(()), |folder| folder.flush())
}

/// Makes the data of an open file durable.
pub(super) fn flush_data(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    FLUSHES.fetch_add(1, Ordering::Relaxed);
    fdatasync(fd)
}

/// Whether an open file lies under the folders.
pub(super) fn is_under(fd: BorrowedFd<'_>) -> bool {
    Settings::of_this_process().is_some_and(|settings| settings.covers_open(fd))
}

fn of_folder<'a>(folder: c_int) -> Option<BorrowedFd<'a>> {
    match folder {
        libc::AT_FDCWD => Some(CWD),
        // SAFETY: the program has it open during its call, or gets its error.
        0.. => Some(unsafe { BorrowedFd::borrow_raw(folder) }),
        _ => None,
    }
}

/// # Safety
/// It is null or a C string.
unsafe fn string<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by the caller.
    if path.is_null() { None } else { Some(unsafe { CStr::from_ptr(path) }) }
}

/// The path of what a path's last name is in.
fn parent<'a>(path: &[u8], buffer: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let parent = match path[..end].iter().rposition(|byte| *byte == b'/') {
        _ if end == 0 => b"/".as_slice(),
        Some(0) => b"/",
        Some(slash) => &path[..slash],
        None => b".",
    };
    buffer.get_mut(..parent.len())?.copy_from_slice(parent);
    *buffer.get_mut(parent.len())? = 0;
    CStr::from_bytes_with_nul(&buffer[..=parent.len()]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_folder_before_them() {
        for (path, expected) in [
            ("name", c"."),
            ("name//", c"."),
            ("/name", c"/"),
            ("a/name", c"a"),
            ("a//name/", c"a/"),
            ("/a/b/name", c"/a/b"),
            ("../name", c".."),
            ("/", c"/"),
        ] {
            assert_eq!(parent(path.as_bytes(), &mut [0; PATH_BYTES]), Some(expected), "{path}");
        }
        assert_eq!(parent(&[b'a'; PATH_BYTES], &mut [0; PATH_BYTES]), Some(c"."));
        assert_eq!(parent(&[[b'a'; PATH_BYTES].as_slice(), b"/b"].concat(), &mut [0; PATH_BYTES]), None);
    }
}
