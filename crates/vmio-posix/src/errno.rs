//! Errors as the C library tells them.

use std::error::Error as _;
use std::io;

pub(crate) use rustix::io::Errno;

/// The number for an error of vmio's.
pub(crate) fn of(error: &vmio::Error) -> Errno {
    match error {
        // "The file has been locked", says mmap(2).
        vmio::Error::InUse { .. } | vmio::Error::AlreadyMapped { .. } => Errno::AGAIN,
        vmio::Error::ReadOnly { .. } => Errno::ACCESS,
        vmio::Error::BeyondReservation { .. } => Errno::FBIG,
        vmio::Error::TooManyViews { .. } | vmio::Error::OneAddress { .. } | vmio::Error::CacheExhausted { .. } => {
            Errno::NOMEM
        }
        other => {
            let source = other.source().and_then(|source| source.downcast_ref::<io::Error>());
            match source {
                // Pages that somebody holds.
                Some(source) if source.kind() == io::ErrorKind::ResourceBusy => Errno::BUSY,
                _ => source.and_then(Errno::from_io_error).unwrap_or(Errno::IO),
            }
        }
    }
}

/// Accepts pages that somebody holds, for callers that need them written, but not out of memory.
pub(crate) fn unless_held(error: Errno) -> Result<(), Errno> {
    if error == Errno::BUSY { Ok(()) } else { Err(error) }
}
