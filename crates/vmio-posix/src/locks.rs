//! The program's record locks beside vmio's own.
//!
//! vmio excludes other processes from a file by locks far behind its last possible byte (docs/formats/file-locks.md). A lock of the
//! program's "to the end of the file" would overlap those, and fail or wait for ever in its own process.

use std::ffi::{OsStr, c_int};
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libc::flock;
use rustix::fs::{SeekFrom, fstat, seek};
use vmio::SignalsBlocked;
use vmio::backing::Identity;

use crate::lock_calls::LOCK_CALLS;
use crate::own_descriptors;

/// The first byte that vmio may lock.
const VMIO_LOCKS: i64 = 1 << 62;

/// Whether the program has a record lock on a file. /proc lists a lock at the descriptors of the open file by which the program took it.
pub(crate) fn is_locked_by_program(identity: Identity) -> bool {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return true };
    let is_own = |name: &OsStr| name.to_str().and_then(|name| name.parse().ok()).is_some_and(own_descriptors::contains);
    let others = open.flatten().filter(|entry| !is_own(&entry.file_name()));
    // The file behind the link.
    let mut same = others.filter(|entry| {
        let metadata = fs::metadata(entry.path());
        metadata.is_ok_and(|found| found.dev() == identity.device && found.ino() == identity.inode)
    });
    same.any(|entry| {
        let about = fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name()));
        about.map_or(true, |about| about.lines().any(|line| line.starts_with("lock:") && line.contains("POSIX")))
    })
}

/// Closes something of vmio's, unless the program has a record lock on the file, or is about to take one: the close would end it. `None` then.
pub(crate) fn unless_locked<T>(identity: Identity, close: impl FnOnce() -> T) -> Option<T> {
    let _no_handlers = SignalsBlocked::new();
    let _no_calls = LOCK_CALLS.exclude()?;
    (!is_locked_by_program(identity)).then(close)
}

/// Whether a command of fcntl is about a lock.
pub(crate) fn is_about(command: c_int) -> bool {
    matches!(
        command,
        libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK
    )
}

/// Whether a lock counts from the position: the kernel must have the position then.
pub(crate) fn is_from_position(lock: &flock) -> bool {
    i32::from(lock.l_whence) == libc::SEEK_CUR
}

/// The same lock, counted from the beginning of the file.
pub(crate) fn absolute(lock: &flock, fd: BorrowedFd<'_>) -> Option<flock> {
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => i64::try_from(seek(fd, SeekFrom::Current(0)).ok()?).ok()?,
        libc::SEEK_END => fstat(fd).ok()?.st_size,
        _ => return None,
    };
    Some(flock { l_whence: libc::SEEK_SET as i16, l_start: base.checked_add(lock.l_start)?, ..*lock })
}

/// A lock that the kernel has found, as the program would see it: to the end of the file again.
pub(crate) fn unclipped(lock: &flock) -> flock {
    let reaches = lock.l_len > 0 && lock.l_start + lock.l_len == VMIO_LOCKS;
    flock { l_len: if reaches { 0 } else { lock.l_len }, ..*lock }
}

/// The lock to use instead of one that reaches vmio's locks.
pub(crate) fn clipped(lock: &flock) -> Option<flock> {
    let is_absolute = i32::from(lock.l_whence) == libc::SEEK_SET && (0..VMIO_LOCKS).contains(&lock.l_start);
    let room = VMIO_LOCKS - lock.l_start.max(0);
    let reaches = lock.l_len == 0 || lock.l_len > room;
    let is_taken = i32::from(lock.l_type) != libc::F_UNLCK;
    (is_absolute && reaches && is_taken).then_some(flock { l_len: room, ..*lock })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(kind: i32, whence: i32, start: i64, len: i64) -> flock {
        flock { l_type: kind as i16, l_whence: whence as i16, l_start: start, l_len: len, l_pid: 0 }
    }

    #[test]
    fn a_lock_to_the_end_ends_before_those_of_vmio() {
        let whole = clipped(&lock(libc::F_WRLCK, libc::SEEK_SET, 0, 0)).unwrap();
        assert_eq!((whole.l_start, whole.l_len), (0, VMIO_LOCKS));
        let rest = clipped(&lock(libc::F_RDLCK, libc::SEEK_SET, 100, i64::MAX - 100)).unwrap();
        assert_eq!((rest.l_start, rest.l_len), (100, VMIO_LOCKS - 100));
        assert_eq!((unclipped(&whole).l_len, unclipped(&rest).l_len), (0, 0));
        assert_eq!(unclipped(&lock(libc::F_RDLCK, libc::SEEK_SET, 100, 7)).l_len, 7);
    }

    #[test]
    fn locks_are_counted_from_the_beginning() {
        use std::io::Seek;
        use std::os::fd::AsFd;
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1000).unwrap();
        file.seek(std::io::SeekFrom::Start(30)).unwrap();
        for (whence, start) in [(libc::SEEK_SET, 5), (libc::SEEK_CUR, 35), (libc::SEEK_END, 1005)] {
            let found = absolute(&lock(libc::F_WRLCK, whence, 5, 0), file.as_fd()).unwrap();
            assert_eq!((i32::from(found.l_whence), found.l_start), (libc::SEEK_SET, start));
        }
        assert!(absolute(&lock(libc::F_WRLCK, 77, 5, 0), file.as_fd()).is_none());
    }

    #[test]
    fn other_locks_stay_as_they_are() {
        assert!(clipped(&lock(libc::F_WRLCK, libc::SEEK_SET, 1 << 30, 510)).is_none());
        // A release may cover more than was taken.
        assert!(clipped(&lock(libc::F_UNLCK, libc::SEEK_SET, 0, 0)).is_none());
        assert!(clipped(&lock(libc::F_WRLCK, libc::SEEK_CUR, 0, 0)).is_none());
    }
}
