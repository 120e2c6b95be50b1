//! A thread with its own descriptor table, to open and close files for a moment.
//!
//! Closing any descriptor of a file ends all record locks of the process on it (`F_SETLK`), even those taken by another descriptor. A
//! thread that does not share the descriptor table has no locks to lose.

use std::ffi::{c_int, c_void};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use vmio::SignalsBlocked;

/// Space for a few paths and a message. The caller's stack may not have it: a signal handler's may be 8 KiB long.
const STACK_BYTES: usize = 64 << 10;

struct Job<F, T> {
    call: Option<F>,
    outcome: Option<T>,
}

/// Runs a function in a thread with a copy of the process's descriptor table, which ends with the thread. `None` if the thread cannot be
/// started. The function should make only a few system calls. This allocates nothing, so that a child before exec may call it.
pub(crate) fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
    // So that no handler of the program's runs in the thread.
    let _signals = SignalsBlocked::new();
    let mut job = Job { call: Some(call), outcome: None };
    // A thread in everything but its descriptors. With CLONE_VFORK the caller waits for its end.
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_VFORK;
    // SAFETY: the stack grows down from its end; the stack and `job` exist until the thread has ended. The thread makes system calls only,
    // and does not touch the C library's data of this thread. Nobody else has the stack.
    unsafe {
        let stack =
            mmap_anonymous(ptr::null_mut(), STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?;
        libc::clone(perform::<F, T>, stack.byte_add(STACK_BYTES), flags, (&raw mut job).cast());
        let _ = munmap(stack, STACK_BYTES);
    }
    job.outcome
}

extern "C" fn perform<F: FnOnce() -> T, T>(job: *mut c_void) -> c_int {
    // SAFETY: `run` passes the address of a job of this type, and waits.
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
        assert_eq!(lock(), 0, "the test does not show anything");
    }
}
