//! `errno` belongs to the interrupted program: a signal handler must leave it as it was.

/// Puts the thread's `errno` back when dropped.
pub(crate) struct PreservedErrno(libc::c_int);

impl PreservedErrno {
    /// Remembers the thread's `errno`.
    pub(crate) fn new() -> Self {
        // SAFETY: __errno_location returns the calling thread's errno, valid as long as the thread lives.
        PreservedErrno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for PreservedErrno {
    fn drop(&mut self) {
        // SAFETY: __errno_location returns the calling thread's errno. The guard lives inside one call of a signal
        // handler, so this is the thread of `new`.
        unsafe { *libc::__errno_location() = self.0 }
    }
}
