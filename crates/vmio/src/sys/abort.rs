//! A panic where it would leave memory unsound is the end of the process.

/// Aborts if dropped by a panic. For code of others (backings, verifiers) that is called while other threads hold
/// pointers into what unwinding would free, or wait for a page word that nobody would settle.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
