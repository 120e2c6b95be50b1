//! Ends the process at a panic that would leave memory unsound.

/// Aborts if dropped by a panic that began after this was made. It is for code of others (backings, verifiers). While
/// that runs, other threads hold pointers into memory that unwinding would free, or wait for a page word that nobody
/// would settle.
pub(crate) struct AbortOnUnwind {
    /// True if this was made in a destructor, while an unrelated panic was unwinding.
    unwinding_before: bool,
}

impl AbortOnUnwind {
    /// Watches for panics until dropped.
    pub(crate) fn new() -> Self {
        AbortOnUnwind { unwinding_before: std::thread::panicking() }
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding_before {
            std::process::abort();
        }
    }
}
