//! The way into vmio from a call of the program's, and the only one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vmio::SignalsBlocked;

use crate::cancellation::NotCancelled;
use crate::errno::Errno;
use crate::process::Process;

/// What is to be done about a call: `None`, leave it to the C library, or its outcome.
pub(crate) type Answer<T> = Option<Result<T, Errno>>;

thread_local! {
    // Constant and without a destructor: its first use allocates nothing.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread is inside vmio already: what it calls now is vmio's own.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs something of vmio's in any thread, whether that is inside already or not.
pub(crate) fn as_vmio<T>(call: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _before = Before(INSIDE.replace(true));
    call()
}

/// The calling thread is vmio's own, for good: of the cache's, which call the C library in the middle of a miss.
pub(crate) fn stay_inside() {
    INSIDE.set(true);
}

/// Runs something of vmio's for a call of the program's. Calls that it makes itself, also such as allocate, go to the C
/// library. A panic ends here: the call fails with EIO.
///
/// Once files are mapped, the program's signal handlers wait until it is done: one that ends the process in the middle of it
/// could not have the stores written. A thread is not cancelled meanwhile either.
pub(crate) fn enter<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    if INSIDE.replace(true) {
        return None;
    }
    let _not_cancelled = NotCancelled::new();
    let _no_handlers = Process::current().filter(|process| !process.table.is_empty()).map(|_| SignalsBlocked::new());
    // What a panic has left half done is behind locks that take no notice of it, or is never seen again.
    let answer = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(false);
    answer.unwrap_or(Some(Err(Errno::IO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vmio_calls_itself_is_not_its_business() {
        let answer = enter(|| {
            assert!(is_inside() && enter(|| Some(Ok(1))).is_none());
            Some(Ok(2))
        });
        assert_eq!(answer, Some(Ok(2)));
        assert!(!is_inside());
    }

    #[test]
    fn a_panic_is_an_error_of_the_call() {
        assert_eq!(enter::<()>(|| panic!("as a test")), Some(Err(Errno::IO)));
        assert!(!is_inside());
    }
}
