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
        // SAFETY: as in `new`; the guard is not Send in practice: it lives inside one signal handler call.
        unsafe { *libc::__errno_location() = self.0 }
    }
}
