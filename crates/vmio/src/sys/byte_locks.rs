//! Advisory locks on single bytes of a file that belong to an open file (Linux's open file description locks). They
//! stay when the process closes another descriptor of the file, and when a thread ends.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Which other locks a lock admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Other shared locks.
    Shared,
    /// None. The file must be open for writing.
    Exclusive,
}

/// A lock that an open file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub(crate) kind: LockKind,
    pub(crate) bytes: Range<u64>,
}

/// Takes the lock on some bytes; false if another open file holds one that forbids it.
pub(crate) fn try_lock(file: BorrowedFd<'_>, kind: LockKind, bytes: &Range<u64>) -> io::Result<bool> {
    let mut request = request(kind_code(kind), bytes);
    match fcntl(file, libc::F_OFD_SETLK, &mut request) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A lock that another open file, or another process, holds on some of the bytes.
pub(crate) fn held_by_others(file: BorrowedFd<'_>, bytes: &Range<u64>) -> io::Result<Option<HeldLock>> {
    // Ask for an exclusive lock, which every other lock forbids.
    let mut answer = request(libc::F_WRLCK, bytes);
    fcntl(file, libc::F_OFD_GETLK, &mut answer)?;
    let kind = match i32::from(answer.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Shared,
        _ => LockKind::Exclusive,
    };
    let start = answer.l_start as u64;
    // A length of 0 stands for all bytes up to the last that a file can have.
    let end = if answer.l_len == 0 { i64::MAX as u64 + 1 } else { start + answer.l_len as u64 };
    Ok(Some(HeldLock { kind, bytes: start..end }))
}

/// Releases the locks on some bytes, also for forked children that share the open file.
pub(crate) fn unlock(file: BorrowedFd<'_>, bytes: &Range<u64>) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, &mut request(libc::F_UNLCK, bytes))
}

fn kind_code(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
    }
}

fn request(code: i32, bytes: &Range<u64>) -> libc::flock {
    libc::flock {
        l_type: code as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start as i64,
        l_len: (bytes.end - bytes.start) as i64,
        l_pid: 0,
    }
}

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the commands of this file read and write one `flock`, which is ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_lock_is_seen_by_other_open_files_until_it_is_given_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        let (ours, other) = (file.as_file().as_fd(), other.as_fd());
        assert!(try_lock(ours, LockKind::Exclusive, &(5..8)).unwrap());
        assert_eq!(held_by_others(ours, &(0..10)).unwrap(), None, "its own");
        assert_eq!(held_by_others(other, &(7..10)).unwrap(), Some(HeldLock { kind: LockKind::Exclusive, bytes: 5..8 }));
        assert!(!try_lock(other, LockKind::Shared, &(7..8)).unwrap());
        assert!(try_lock(other, LockKind::Shared, &(8..9)).unwrap());
        unlock(ours, &(5..8)).unwrap();
        assert!(try_lock(other, LockKind::Shared, &(7..8)).unwrap());
        assert!(try_lock(ours, LockKind::Shared, &(7..8)).unwrap());
        assert!(!try_lock(ours, LockKind::Exclusive, &(7..8)).unwrap());
    }
}
