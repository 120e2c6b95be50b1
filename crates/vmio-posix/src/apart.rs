//! A descriptor that the program does not have, for a moment.
//!
//! Who closes any descriptor of a file gives up all record locks of the process on it (`F_SETLK`): also those that the program has
//! taken by a descriptor of its own. A thread with descriptors of its own has no locks to give up.

use std::ffi::{c_int, c_void};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use vmio::SignalsBlocked;

/// Room for a few paths and a message. Not in the caller's frame: that may be a handler's on a stack of 8 KiB.
const STACK_BYTES: usize = 64 << 10;

struct Job<F, T> {
    call: Option<F>,
    outcome: Option<T>,
}

/// Runs a few system calls in a thread that begins with the process's descriptors, and whose own are gone when this returns; none if
/// there can be no thread. Allocates nothing; a child before exec may call it.
pub(crate) fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
    // The thread has no handlers of the program's to run.
    let _signals = SignalsBlocked::new();
    let mut job = Job { call: Some(call), outcome: None };
    // A thread in everything but its descriptors; this one goes on when it has ended.
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_VFORK;
    // SAFETY: the stack grows down from its end, and like `job` it is there until the thread has ended. It calls the kernel alone:
    // what belongs to this thread in the C library is not touched. Nobody else has the stack.
    unsafe {
        let stack =
            mmap_anonymous(ptr::null_mut(), STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?;
        libc::clone(perform::<F, T>, stack.byte_add(STACK_BYTES), flags, (&raw mut job).cast());
        let _ = munmap(stack, STACK_BYTES);
    }
    job.outcome
}

extern "C" fn perform<F: FnOnce() -> T, T>(job: *mut c_void) -> c_int {
    // SAFETY: whose address it is waits, and knows its type.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    job.outcome = job.call.take().map(|call| call());
    0
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, fcntl_lock};

    use super::*;

    #[test]
    fn locks_of_the_process_stay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fcntl_lock(file.as_file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let lock = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let inode = format!(":{} ", rustix::fs::fstat(&file).unwrap().st_ino);
            locks.lines().filter(|line| line.contains("POSIX") && line.contains(&inode)).count()
        };
        let open = || rustix::fs::open(file.path(), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).map(drop);
        assert_eq!(lock(), 1);
        assert_eq!(run(open), Some(Ok(())));
        assert_eq!(lock(), 1);
        open().unwrap();
        assert_eq!(lock(), 0, "the test shows nothing");
    }
}
