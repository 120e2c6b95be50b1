//! vmio's own descriptor of a file that the program has open: a duplicate of the program's.
//!
//! The program may close its descriptors without our noticing (raw system calls, io_uring), and other files get their numbers. So vmio
//! writes back cached bytes, retires logs and returns leases by the duplicate. One system call on the duplicate also tells whether a number of
//! the program's still refers to the same open file.
//!
//! Closing it ends the process's record locks on the file (`F_SETLK`), as closing any descriptor does.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::fs::fstat;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

use crate::entry;
use crate::own_descriptors;

/// The lowest number for a duplicate: programs that choose the numbers of their own descriptors, as shells do, choose lower ones.
const FROM: RawFd = 512;
/// vmio takes at most one in this number of the descriptors that a process may have.
const LIMIT_DIVISOR: u64 = 4;

/// Since Linux 6.10; the libc crate has no name for it.
const F_DUPFD_QUERY: c_int = 1024 + 3;
const KCMP_FILE: libc::c_long = 0;

/// The number of own descriptors.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A number, or -1 for none.
pub(super) struct OwnDescriptor(AtomicI32);

impl OwnDescriptor {
    pub(super) const fn none() -> Self {
        OwnDescriptor(AtomicI32::new(-1))
    }

    /// Whether there are any in the process.
    pub(super) fn are_there() -> bool {
        TAKEN.load(Ordering::Relaxed) != 0
    }

    pub(super) fn get(&self) -> Option<BorrowedFd<'static>> {
        let fd = Some(self.0.load(Ordering::Acquire)).filter(|fd| *fd >= 0)?;
        // SAFETY: it is open until `close`, whose callers know that nobody uses it.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Duplicates a descriptor. Only the lease manager calls this, and only while there is no duplicate.
    pub(super) fn take(&self, fd: BorrowedFd<'_>) -> Result<BorrowedFd<'static>, Errno> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if u64::from(TAKEN.load(Ordering::Relaxed)) >= limit / LIMIT_DIVISOR {
            return Err(Errno::MFILE);
        }
        // The process's limit may be lower than that number.
        let own = fcntl_dupfd_cloexec(fd, FROM).or_else(|_| fcntl_dupfd_cloexec(fd, 3))?;
        if !own_descriptors::insert(own.as_raw_fd()) {
            return Err(Errno::MFILE);
        }
        TAKEN.fetch_add(1, Ordering::Relaxed);
        self.0.store(own.into_raw_fd(), Ordering::Release);
        self.get().ok_or(Errno::BADF)
    }

    /// Whether a descriptor of the program's refers to the same open file.
    pub(super) fn is_same(&self, fd: RawFd) -> bool {
        self.get().is_some_and(|own| is_same(fd, own))
    }

    /// Closes it, if there is one. Nobody may use it, and the process must have no record locks on the file, or be about to lose them.
    pub(super) fn close(&self) {
        let own = self.0.swap(-1, Ordering::AcqRel);
        if own >= 0 {
            TAKEN.fetch_sub(1, Ordering::Relaxed);
            own_descriptors::remove(own);
            // SAFETY: `take` opened it, and nobody uses it.
            unsafe { rustix::io::close(own) };
        }
    }
}

/// Whether two descriptors refer to one open file.
fn is_same(fd: RawFd, own: BorrowedFd<'_>) -> bool {
    // SAFETY: the call does not access memory.
    match entry::as_vmio(|| unsafe { libc::fcntl(fd, F_DUPFD_QUERY, own.as_raw_fd()) }) {
        0 => false,
        1.. => true,
        // SAFETY: the address of the thread's errno is always valid.
        _ if unsafe { *libc::__errno_location() } == libc::EINVAL => is_same_before_linux_6_10(fd, own),
        _ => false,
    }
}

#[cold]
fn is_same_before_linux_6_10(fd: RawFd, own: BorrowedFd<'_>) -> bool {
    // SAFETY: the call has no arguments.
    let process = libc::c_long::from(unsafe { libc::getpid() });
    let (fd, own_fd) = (libc::c_long::from(fd), libc::c_long::from(own.as_raw_fd()));
    // SAFETY: the call does not access memory.
    match unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, fd, own_fd) } {
        0 => true,
        1.. => false,
        _ => {
            // The kernel was built without kcmp, or a seccomp filter forbids it: compare the files at least.
            // SAFETY: fstat fails for a number that is not open.
            let identity = |fd| fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map(|stat| (stat.st_dev, stat.st_ino));
            identity(fd as RawFd).is_ok_and(|found| identity(own.as_raw_fd()) == Ok(found))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    type IsSame = fn(RawFd, BorrowedFd<'_>) -> bool;

    #[test]
    fn a_duplicate_is_told_from_another_open_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (duplicate, again) = (file.as_file().try_clone().unwrap(), File::open(file.path()).unwrap());
        for same in [is_same as IsSame, is_same_before_linux_6_10] {
            assert!(same(duplicate.as_raw_fd(), file.as_fd()) && same(file.as_raw_fd(), duplicate.as_fd()));
            assert!(!same(again.as_raw_fd(), file.as_fd()));
        }
        let closed = duplicate.into_raw_fd();
        // SAFETY: nobody else has it.
        unsafe { rustix::io::close(closed) };
        assert!(!is_same(-1, file.as_fd()));
    }

    #[test]
    fn it_outlives_the_programs_and_is_kept_from_it() {
        let file = tempfile::tempfile().unwrap();
        let own = OwnDescriptor::none();
        assert!(own.get().is_none() && !own.is_same(file.as_raw_fd()));
        let fd = own.take(file.as_fd()).unwrap().as_raw_fd();
        assert!(own_descriptors::contains(fd) && own.is_same(file.as_raw_fd()));
        drop(file);
        assert_eq!(fstat(own.get().unwrap()).unwrap().st_nlink, 0);
        own.close();
        assert!(own.get().is_none() && !own_descriptors::contains(fd));
    }
}
