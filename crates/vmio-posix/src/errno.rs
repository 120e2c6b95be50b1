//! Errors as the numbers of the C library.

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
                // Pinned pages.
                Some(source) if source.kind() == io::ErrorKind::ResourceBusy => Errno::BUSY,
                _ => source.and_then(Errno::from_io_error).unwrap_or(Errno::IO),
            }
        }
    }
}

/// Ignores pinned pages, for callers that need them written but not dropped from memory.
pub(crate) fn unless_pinned(error: Errno) -> Result<(), Errno> {
    if error == Errno::BUSY { Ok(()) } else { Err(error) }
}
