//! The file or folder that a call changes, to flush it after the call.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use operation_log::FileIdentity;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fdatasync, fstat, fsync, openat, sync};
use rustix::io::Errno;

use super::FLUSHES;
use crate::settings::Settings;
use crate::unshared_fd_thread;

/// Linux's PATH_MAX.
const PATH_BYTES: usize = 4096;

/// A file or folder under the folders.
pub(crate) enum Target {
    /// A folder.
    Folder(OwnedFd),
    /// A regular file, open with O_PATH.
    File(OwnedFd),
    /// A folder or a regular file that the program has open.
    OfProgram(c_int),
    /// An object that only `sync` flushes: a link, a pipe or a device, which only the file system's journal has, or a folder that this user may
    /// change but not read.
    Everything,
}

impl Target {
    /// The folder that contains the last name of a path.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn folder_of(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        let path = unsafe { string(path) }?;
        let mut buffer = [0; PATH_BYTES];
        Self::find(folder, parent(path.to_bytes(), &mut buffer)?, OFlags::DIRECTORY)
    }

    /// The file or folder at a path; a link is followed.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn at(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        Self::find(folder, unsafe { string(path) }?, OFlags::empty())
    }

    /// The same, without following a link.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn at_itself(folder: c_int, path: *const c_char) -> Option<Self> {
        // SAFETY: by the caller.
        Self::find(folder, unsafe { string(path) }?, OFlags::NOFOLLOW)
    }

    /// The regular file of a descriptor of the program's.
    pub(crate) fn bytes_of(fd: c_int) -> Option<Self> {
        if fd < 0 {
            return None;
        }
        // SAFETY: the program has it open during its call, or gets its error.
        let opened = unsafe { BorrowedFd::borrow_raw(fd) };
        (kind_of(opened)? == FileType::RegularFile && is_under(opened)).then_some(Target::OfProgram(fd))
    }

    /// The file or folder of a descriptor of the program's.
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        if fd < 0 {
            return None;
        }
        // SAFETY: the program has it open during its call, or gets its error.
        let opened = unsafe { BorrowedFd::borrow_raw(fd) };
        if !is_under(opened) {
            return None;
        }
        Some(match kind_of(opened)? {
            _ if fcntl_getfl(opened).ok()?.contains(OFlags::PATH) => {
                return Settings::with_link(opened, |link| Self::find(libc::AT_FDCWD, link, OFlags::empty()));
            }
            FileType::RegularFile | FileType::Directory => Target::OfProgram(fd),
            _ => Target::Everything,
        })
    }

    /// Opens with O_PATH: that breaks no lease, and closing the descriptor ends no record locks.
    fn find(folder: c_int, path: &CStr, flags: OFlags) -> Option<Self> {
        // If there is no such file, the program's call fails anyway.
        let found = open_path(folder, path, flags)?;
        if !is_under(found.as_fd()) {
            return None;
        }
        Some(match kind_of(found.as_fd())? {
            FileType::RegularFile => Target::File(found),
            FileType::Directory => {
                let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(&found, c".", readable, Mode::empty()).map_or(Target::Everything, Target::Folder)
            }
            _ => Target::Everything,
        })
    }

    /// Returns when the change is durable.
    pub(super) fn flush(&self) -> Result<(), Errno> {
        FLUSHES.fetch_add(1, Ordering::Relaxed);
        match self {
            Target::Folder(opened) => fsync(opened),
            Target::File(found) => flush_in_own_thread(found.as_fd()),
            // SAFETY: the program has it open during its call.
            Target::OfProgram(fd) => fsync(unsafe { BorrowedFd::borrow_raw(*fd) }),
            Target::Everything => {
                sync();
                Ok(())
            }
        }
    }
}

/// The file or folder at a path, opened with O_PATH.
fn open_path(folder: c_int, path: &CStr, flags: OFlags) -> Option<OwnedFd> {
    let folder = match folder {
        libc::AT_FDCWD => CWD,
        // SAFETY: the program has it open during its call, or gets its error.
        0.. => unsafe { BorrowedFd::borrow_raw(folder) },
        // With an absolute path the folder does not matter.
        _ if path.to_bytes().starts_with(b"/") => CWD,
        _ => return None,
    };
    openat(folder, path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn kind_of(fd: BorrowedFd<'_>) -> Option<FileType> {
    fstat(fd).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

/// The state of the file at a path before an open. We keep no descriptor of it, so that the call gets the lowest free number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Before {
    /// Whether the present file, or the one that will be created, is under the folders.
    pub(crate) is_under: bool,
    /// Whether there is something other than a regular file.
    pub(crate) is_special: bool,
    file: Option<FileIdentity>,
}

impl Before {
    /// The file as a call with these flags finds it.
    ///
    /// # Safety
    /// The path is null or a C string.
    pub(crate) unsafe fn at(folder: c_int, path: *const c_char, flags: OFlags) -> Self {
        // SAFETY: by the caller.
        let Some(path) = (unsafe { string(path) }) else { return Before::default() };
        if let Some(found) = open_path(folder, path, flags & OFlags::NOFOLLOW) {
            let is_special = kind_of(found.as_fd()) != Some(FileType::RegularFile);
            let file = if is_special { None } else { FileIdentity::of(&found).ok() };
            return Before { is_under: is_under(found.as_fd()), is_special, file };
        }
        let mut buffer = [0; PATH_BYTES];
        let parent = parent(path.to_bytes(), &mut buffer).and_then(|path| open_path(folder, path, OFlags::DIRECTORY));
        Before { is_under: parent.is_some_and(|parent| is_under(parent.as_fd())), ..Before::default() }
    }

    /// Whether it is the regular file that the call has opened.
    pub(super) fn is(&self, opened: BorrowedFd<'_>) -> bool {
        self.file.is_some() && self.file == FileIdentity::of(opened).ok()
    }
}

/// Flushes the folder of an open file.
pub(super) fn flush_folder_of(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let folder = Settings::with_path(fd, |path| {
        let mut buffer = [0; PATH_BYTES];
        let parent = parent(path.as_os_str().as_bytes(), &mut buffer)?;
        Target::find(libc::AT_FDCWD, parent, OFlags::DIRECTORY)
    });
    folder.flatten().map_or(Ok(()), |folder| folder.flush())
}

/// Flushes a regular file that is open with O_PATH.
fn flush_in_own_thread(file: BorrowedFd<'_>) -> Result<(), Errno> {
    Settings::with_link(file, |path| {
        let open = |how| openat(CWD, path, how | OFlags::CLOEXEC, Mode::empty());
        let flushed =
            unshared_fd_thread::run(|| open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY)).ok().map(fsync));
        // If this user may neither read nor write the file, `sync` flushes it.
        flushed.flatten().unwrap_or_else(|| {
            sync();
            Ok(())
        })
    })
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

/// # Safety
/// The path is null or a C string.
unsafe fn string<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by the caller.
    if path.is_null() { None } else { Some(unsafe { CStr::from_ptr(path) }) }
}

/// The path without its last name.
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
