//! A panic where it would leave memory unsound is the end of the process.

/// Aborts if dropped by a panic that began after it was made. For code of others (backings, verifiers) that is called
/// while other threads hold pointers into what unwinding would free, or wait for a page word that nobody would settle.
pub(crate) struct AbortOnUnwind {
    /// Made in a destructor, during the unwinding of a panic that has nothing to do with it.
    unwinding_before: bool,
}

impl AbortOnUnwind {
    /// Watches until it is dropped.
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
