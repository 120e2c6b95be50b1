//! Pages that could not be brought in: how many, and the first that nobody has asked about.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// The pages of a mapping that could not be brought in.
#[derive(Default)]
pub(crate) struct ReadFailures {
    /// Counted before anything else may stand in the page's place.
    count: AtomicU64,
    /// The trap path takes this lock as well: block signals first.
    first: Mutex<Option<(u64, ReadFailure)>>,
}

/// Why a page could not be read, in a form that needs no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The system's error number.
    Os(i32),
    /// An error without one.
    Kind(io::ErrorKind),
    /// The verifier rejected it.
    Corrupt,
}

impl ReadFailures {
    /// Notes one more page. The caller has signals blocked.
    pub(crate) fn note(&self, page: u64, failure: ReadFailure) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((page, failure));
    }

    /// The number of pages so far. It includes each page that an earlier load of the caller has met.
    pub(crate) fn count(&self) -> u64 {
        fence(Ordering::Acquire);
        self.count.load(Ordering::Acquire)
    }

    /// Takes the first page since the last call.
    pub(crate) fn take_first(&self) -> Option<(u64, ReadFailure)> {
        let _signals = SignalsBlocked::in_miss();
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ReadFailure {
    /// The error for a page of a backing.
    pub(crate) fn into_error(self, backing: String, page: u64) -> Error {
        let offset = page * PAGE_BYTES as u64;
        match self {
            ReadFailure::Corrupt => Error::Corrupt { backing, offset },
            ReadFailure::Os(code) => Error::Read { backing, offset, source: io::Error::from_raw_os_error(code) },
            ReadFailure::Kind(kind) => Error::Read { backing, offset, source: kind.into() },
        }
    }
}

impl From<&io::Error> for ReadFailure {
    fn from(error: &io::Error) -> Self {
        error.raw_os_error().map_or(ReadFailure::Kind(error.kind()), ReadFailure::Os)
    }
}
