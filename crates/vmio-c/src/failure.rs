//! The failure of a call, kept for the thread that made it; panics end here.

use std::any::Any;
use std::cell::Cell;
use std::error::Error;
use std::io;
use std::panic::{self, AssertUnwindSafe};

use crate::status::vmio_status;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: vmio_status,
    pub(crate) message: String,
    /// The errno of the kernel, or 0.
    pub(crate) errno: i32,
}

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

impl Failure {
    /// An argument that makes no sense.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Failure { status: vmio_status::VMIO_ERROR_INVALID, message: message.into(), errno: 0 }
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let what = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("a bug in vmio: {}", what.unwrap_or("a panic without a message"));
        Failure { status: vmio_status::VMIO_ERROR_BUG, message, errno: 0 }
    }
}

impl From<vmio::Error> for Failure {
    fn from(error: vmio::Error) -> Self {
        let mut message = error.to_string();
        let mut errno = 0;
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            errno = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).unwrap_or(errno);
            source = cause.source();
        }
        Failure { status: vmio_status::of(&error), message, errno }
    }
}

/// Runs the body of a function that C calls: no panic leaves it, and a failure is kept for [`last`].
pub(crate) fn report(body: impl FnOnce() -> Result<(), Failure>) -> vmio_status {
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    match outcome.unwrap_or_else(|panic| Err(Failure::of_panic(&*panic))) {
        Ok(()) => vmio_status::VMIO_OK,
        Err(failure) => {
            let status = failure.status;
            // A thread that is ending has nowhere left to keep it.
            let _ = LAST.try_with(|last| last.set(Some(failure)));
            status
        }
    }
}

/// The same for functions that return no status.
pub(crate) fn contain<T>(instead: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(instead)
}

/// Looks at the last failure of the calling thread.
pub(crate) fn last<T>(look: impl FnOnce(Option<&Failure>) -> T) -> T {
    let failure = LAST.try_with(Cell::take).unwrap_or(None);
    let seen = look(failure.as_ref());
    let _ = LAST.try_with(|last| last.set(failure));
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status_and_a_message() {
        let status = report(|| panic!("this is {}", "a test"));
        assert_eq!(status, vmio_status::VMIO_ERROR_BUG);
        let message = last(|failure| failure.map(|failure| failure.message.clone()));
        assert_eq!(message.as_deref(), Some("a bug in vmio: this is a test"));
    }

    #[test]
    fn a_failure_has_the_message_of_its_causes_and_stays_in_its_thread() {
        let source = io::Error::from_raw_os_error(5);
        let error = vmio::Error::Flush { backing: "disk".to_owned(), source };
        assert_eq!(report(|| Err(error.into())), vmio_status::VMIO_ERROR_FLUSH);
        assert_eq!(report(|| Ok(())), vmio_status::VMIO_OK);
        last(|failure| {
            let failure = failure.expect("a success does not clear it");
            assert!(failure.message.starts_with("flushing disk failed"), "{}", failure.message);
            assert!(failure.message.ends_with(": Input/output error (os error 5)"), "{}", failure.message);
            assert_eq!(failure.errno, 5);
        });
        std::thread::spawn(|| last(|failure| assert!(failure.is_none()))).join().unwrap();
    }
}
